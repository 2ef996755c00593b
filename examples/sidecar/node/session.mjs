/**
 * What one session with the sidecar knows: the bundles that we hold, the hooks that came, and until when we may serve.
 *
 * It decides, and has neither clock nor socket: `bundles.mjs` brings both.
 */

/**
 * Readings of two clocks, in ms. The monotonic clock stops while a machine sleeps, the wall clock may be set back: so
 * each deadline is on both.
 * @typedef {{monotonic: number, wall: number}} Instant
 */

/**
 * What a hook says of a bundle; `lo` ≤ position < `hi` are its keys.
 * @typedef {object} Hook
 * @property {string} session
 * @property {number} sequence
 * @property {string} bundle
 * @property {string} namespace
 * @property {number} lo
 * @property {number} hi
 * @property {number} partition
 * @property {string} token
 * @property {string | null} [hand_off]
 * @property {{broker: string, urls: Record<string, string>} | null} [to]
 */

/**
 * What the sidecar answers to a poll.
 * @typedef {object} Lease
 * @property {string} state
 * @property {Record<string, number>} valid_ms  by partition
 * @property {{bundle: string, sequence: number}[]} abandon
 * @property {string[]} shared  namespaces that are served without regard to deadlines
 * @property {string} [cluster]  as the header Loadmanager-Cluster names it
 */

/** @typedef {{status: number, body?: object}} Answer */

/** The answer to a hook that came too late: nothing was changed. */
export const OVERTAKEN = { status: 409, body: { title: 'a hook with a higher sequence, or another session, came' } }

/**
 * The right to serve one bundle, under one token, and what the service keeps for it.
 * @template State
 */
export class Claim {
  /** Whether requests are admitted: from the end of `acquire` to the begin of `release` or `abandon`. */
  open = false
  /** Whether `release` or `abandon` has done its work. */
  ended = false
  /** @type {State | undefined} What `acquire` returned. */
  state
  #inProgress = 0
  /** @type {(() => void)[]} */
  #waiting = []

  /**
   * @param {Hook} hook  an `acquire`
   * @param {string} broker
   */
  constructor({ bundle, namespace, lo, hi, partition, token }, broker) {
    this.broker = broker
    this.bundle = bundle
    this.namespace = namespace
    this.lo = lo
    this.hi = hi
    this.partition = partition
    this.token = token
  }

  /** @param {import('./keys.mjs').Key} key */
  includes({ namespace, position }) {
    return namespace === this.namespace && this.lo <= position && position < this.hi
  }

  enter() {
    this.#inProgress += 1
  }

  leave() {
    this.#inProgress -= 1
    if (this.#inProgress === 0) for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Resolves when no request is in progress. @returns {Promise<void>} */
  idle() {
    return this.#inProgress === 0 ? Promise.resolve() : new Promise((resolve) => this.#waiting.push(resolve))
  }
}

/** @template State */
export class Session {
  #over = false
  /** @type {Map<string, {sequence: number, answer: Promise<Answer>}>} The newest hook, by bundle. */
  #newest = new Map()
  /** @type {Map<string, Claim<State>>} The newest claim that was opened, by bundle; it may be closed. */
  #claims = new Map()
  /** @type {Map<number, Instant>} By partition. */
  #deadlines = new Map()
  /** @type {Set<string>} */
  #shared = new Set()

  /**
   * @param {string} id
   * @param {string} broker  the name under which the sidecar takes part
   */
  constructor(id, broker) {
    this.id = id
    this.broker = broker
    /** The cluster of the newest lease. */
    this.cluster = ''
  }

  /** The session has ended: nothing may be served, and no hook counts. Returns the claims that have not ended. */
  end() {
    this.#over = true
    return [...this.#claims.values()].filter((claim) => !claim.ended)
  }

  get over() {
    return this.#over
  }

  /**
   * Does what a hook asks for, if it is the newest for its bundle. A repeat gets the answer of the first time, also
   * while the work still goes on.
   *
   * @param {{session?: string, bundle: string, sequence: number}} hook
   * @param {() => Promise<Answer>} act
   * @returns {Promise<Answer>}
   */
  inSequence({ session = this.id, bundle, sequence }, act) {
    const newest = this.#newest.get(bundle)
    if (this.#over || session !== this.id || (newest && sequence < newest.sequence)) return Promise.resolve(OVERTAKEN)
    if (newest?.sequence === sequence) return newest.answer
    const entry = { sequence, answer: /** @type {Promise<Answer>} */ (Promise.resolve(OVERTAKEN)) }
    this.#newest.set(bundle, entry) // before it acts, so that everything older sees that it is overtaken
    entry.answer = act()
    return entry.answer
  }

  /**
   * Whether no higher sequence came for this bundle meanwhile, and the session goes on.
   * @param {{bundle: string, sequence: number}} hook
   */
  isNewest({ bundle, sequence }) {
    return !this.#over && this.#newest.get(bundle)?.sequence === sequence
  }

  /**
   * Admits requests to a bundle that is loaded. False if its `acquire` was overtaken: then nothing is served.
   * @param {Claim<State>} claim
   * @param {Hook} hook
   */
  open(claim, hook) {
    if (!this.isNewest(hook)) return false
    claim.open = true
    this.#claims.set(claim.bundle, claim)
    return true
  }

  /**
   * The claim that was opened last under this name.
   * @param {string} bundle
   */
  claim(bundle) {
    return this.#claims.get(bundle)
  }

  /** All claims that are open. */
  get claims() {
    return [...this.#claims.values()].filter((claim) => claim.open)
  }

  /**
   * The open claim with this key. A process holds tens of bundles, so it looks at each.
   * @param {import('./keys.mjs').Key} key
   */
  claimAt(key) {
    for (const claim of this.#claims.values()) if (claim.open && claim.includes(key)) return claim
    return undefined
  }

  /**
   * Replaces what earlier leases said. This one counts from `asked`: the moment before the question was sent.
   * @param {Instant} asked
   * @param {Lease} lease
   */
  renew(asked, { valid_ms, shared, cluster = '' }) {
    this.cluster = cluster
    const until = (/** @type {number} */ valid) => ({ monotonic: asked.monotonic + valid, wall: asked.wall + valid })
    const deadlines = Object.entries(valid_ms).map(([partition, valid]) => [Number(partition), until(valid)])
    this.#deadlines = new Map(/** @type {[number, Instant][]} */ (deadlines))
    this.#shared = new Set(shared)
  }

  /**
   * @param {Claim<State>} claim
   * @param {Instant} now
   */
  mayServe(claim, now) {
    if (this.#over || !claim.open) return false
    if (this.#shared.has(claim.namespace)) return true
    const until = this.#deadlines.get(claim.partition)
    return until !== undefined && now.monotonic < until.monotonic && now.wall < until.wall
  }
}
