/**
 * A client of `loadmanager sidecar`: it attaches, polls the lease, takes the hooks, and admits requests.
 *
 * Copy it with `hooks.mjs`, `session.mjs` and `keys.mjs`. The contract is docs/sidecar.md. Use:
 *
 *     const bundles = new Bundles({ sidecar, secretFile, urls: { http: url }, host })
 *     await bundles.start()
 *     await bundles.admit(key, async (claim) => { … write with claim.token … })   // or NotHere
 *     await bundles.stop()                                                         // on SIGTERM
 */

import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'

import { HookActs, hookServer } from './hooks.mjs'
import { OVERTAKEN, Session } from './session.mjs'

const ANSWER_TIMEOUT_MS = 3_000
const LEAVE_TIMEOUT_MS = 120_000
const PAUSE_MS = 100
const ARRIVAL_TIMEOUT_MS = 5_000

/** @typedef {import('./session.mjs').Hook} Hook */
/** @typedef {import('./session.mjs').Answer} Answer */
/** @typedef {import('./session.mjs').Instant} Instant */

/** We do not serve this key: give status, headers and body to the client. */
export class NotHere extends Error {
  /**
   * @param {number} status
   * @param {string} body
   * @param {Record<string, string>} headers
   */
  constructor(status, body, headers) {
    super(body)
    this.status = status
    this.body = body
    this.headers = headers
  }
}

/**
 * A 503: nothing was done, the client looks the key up again.
 * @param {string} title
 */
export function notServing(title) {
  const body = JSON.stringify({ type: 'urn:loadmanager:not-serving', title, status: 503 })
  return new NotHere(503, body, { 'Content-Type': 'application/problem+json', 'Retry-After': '1' })
}

/** @returns {Instant} */
function readClocks() {
  return { monotonic: performance.now(), wall: Date.now() }
}

/** @template State */
export class Bundles {
  /** @type {Session<State> | undefined} */
  #session
  /** @type {Promise<void> | undefined} A POST /v1/session that is under way. */
  #attaching
  #secret = ''
  #retryMs = PAUSE_MS
  #sidecar
  #secretFile
  #urls
  #acts
  #hooks
  #now
  #log
  #stopping = false
  /** @type {Promise<void> | undefined} Rejects if the sidecar refuses this service for good. */
  running

  /**
   * @param {object} options
   * @param {string} options.sidecar  its address: `http://127.0.0.1:7070`
   * @param {string} options.secretFile
   * @param {Record<string, string>} options.urls  where clients reach the service, by protocol
   * @param {import('./hooks.mjs').Host<State>} options.host
   * @param {() => Instant} [options.now]
   * @param {(line: string) => void} [options.log]
   */
  constructor({ sidecar, secretFile, urls, host, now = readClocks, log = console.error }) {
    this.#sidecar = sidecar.replace(/\/+$/, '')
    this.#secretFile = secretFile
    this.#urls = urls
    this.#acts = new HookActs(host, log)
    this.#hooks = hookServer(() => this.#secret, (event) => this.#onHook(event), log)
    this.#now = now
    this.#log = log
  }

  /** Takes hooks from now on, and attaches when the sidecar is there. */
  async start() {
    await once(this.#hooks.listen(0, '127.0.0.1'), 'listening')
    this.running = this.#run()
  }

  /**
   * Runs `serve` if the key is ours now, or will be within five seconds. `release` waits for `serve` to end.
   *
   * @template T
   * @param {import('./keys.mjs').Key} key
   * @param {(claim: import('./session.mjs').Claim<State>) => Promise<T> | T} serve
   * @param {string} [cluster]  the header Loadmanager-Cluster of the request
   * @returns {Promise<T>}
   * @throws {NotHere}
   */
  async admit(key, serve, cluster = '') {
    const deadline = performance.now() + ARRIVAL_TIMEOUT_MS
    if (cluster && cluster !== this.#session?.cluster) await this.#arrival(key, ARRIVAL_TIMEOUT_MS, cluster)
    for (let round = 0; ; round += 1) {
      const claim = this.#session?.claimAt(key)
      if (claim) {
        claim.enter() // counted first, then checked: a `release` in between would not wait for us
        try {
          if (this.#session?.mayServe(claim, this.#now())) return await serve(claim)
        } finally {
          claim.leave()
        }
      }
      const left = deadline - performance.now()
      if (left <= 0) throw notServing(`the lease of ${key.fullName} has ended`)
      if (round > 0) await sleep(PAUSE_MS / 10)
      await this.#arrival(key, Math.ceil(left), cluster)
    }
  }

  /**
   * Gives all bundles away, and returns when that is done; serve requests until then. Afterwards `admit` still says
   * where keys are.
   */
  async stop() {
    this.#stopping = true
    await this.#attaching
    const session = this.#session
    if (session && !session.over) {
      const answer = await this.#ask('DELETE', `/v1/session/${session.id}`, { timeout_ms: LEAVE_TIMEOUT_MS })
      if (answer?.status !== 200) this.#log(`the sidecar did not end the session: ${answer?.status ?? 'no answer'}`)
      this.#forget(session)
    }
    this.#hooks.close()
    this.#hooks.closeAllConnections()
  }

  // --- session and lease

  async #run() {
    while (!this.#stopping) {
      this.#attaching = this.#attach()
      await this.#attaching
      this.#attaching = undefined
      if (!this.#session || this.#session.over) await sleep(this.#retryMs)
      else await this.#poll(this.#session)
    }
  }

  async #attach() {
    const { port } = /** @type {import('node:net').AddressInfo} */ (this.#hooks.address())
    const hooks = `http://127.0.0.1:${port}/loadmanager`
    const body = { protocol: 1, hooks, urls: this.#urls, offers: this.#acts.offers }
    this.#secret = await readFile(this.#secretFile, 'utf8').then((text) => text.trim(), () => '')
    const answer = this.#secret ? await this.#ask('POST', '/v1/session', { body }) : undefined
    if (answer?.status === 201) {
      const { session, broker } = JSON.parse(answer.text)
      this.#session = new Session(session, broker)
      this.#log(`attached as ${broker}, session ${session}`)
    } else if (answer?.status === 400 || answer?.status === 422) {
      throw new Error(`the sidecar refuses this service: ${answer.text}`)
    }
    this.#retryMs = 1000 * Number(answer?.headers.get('Retry-After')) || PAUSE_MS
  }

  /** @param {Session<State>} session */
  async #poll(session) {
    while (!session.over) {
      const asked = this.#now() // before the question: the answer may be late
      const answer = await this.#ask('GET', `/v1/session/${session.id}/lease`)
      if (answer?.status === 410 || answer?.status === 401) this.#forget(session)
      else if (answer?.status !== 200) await sleep(PAUSE_MS)
      else await this.#renew(session, asked, JSON.parse(answer.text))
    }
  }

  /**
   * @param {Session<State>} session
   * @param {Instant} asked
   * @param {import('./session.mjs').Lease} lease
   */
  async #renew(session, asked, lease) {
    for (const hook of lease.abandon) await session.inSequence(hook, () => this.#acts.abandon(session, hook))
    session.renew(asked, lease)
  }

  /** @param {Session<State>} session */
  #forget(session) {
    if (!session.over) this.#log(`session ${session.id} has ended`)
    for (const claim of session.end()) this.#acts.end(claim)
  }

  /**
   * @param {{type: string, data: Hook}} event
   * @returns {Promise<Answer>}
   */
  async #onHook({ type, data }) {
    if (data.session !== this.#session?.id) await this.#attaching // the answer to our POST may be behind this hook
    return this.#session ? this.#acts.take(this.#session, type, data) : OVERTAKEN
  }

  // --- questions to the sidecar

  /**
   * Waits until the key's bundle is here.
   * @param {import('./keys.mjs').Key} key
   * @param {number} timeout_ms
   * @param {string} cluster  the one that the client means, or empty
   * @throws {NotHere}
   */
  async #arrival(key, timeout_ms, cluster) {
    const path = `/v1/claims/${encodeURIComponent(key.fullName)}?timeout_ms=${timeout_ms}`
    const answer = await this.#ask('GET', path, {
      timeout_ms: timeout_ms + ANSWER_TIMEOUT_MS,
      headers: cluster ? { 'Loadmanager-Cluster': cluster } : {},
    })
    if (answer?.status === 200) return
    if (!answer || ![404, 421, 503].includes(answer.status)) throw notServing('the sidecar does not answer')
    const given = ['Content-Type', 'Retry-After', 'Loadmanager-Cluster'].map((name) => [name, answer.headers.get(name)])
    throw new NotHere(answer.status, answer.text, Object.fromEntries(given.filter(([, value]) => value !== null)))
  }

  /**
   * The answer; undefined if there is none.
   * @param {string} method
   * @param {string} path
   * @param {{body?: object, timeout_ms?: number, headers?: Record<string, string>}} [options]
   */
  async #ask(method, path, { body, timeout_ms = ANSWER_TIMEOUT_MS, headers = {} } = {}) {
    try {
      const response = await fetch(this.#sidecar + path, {
        method,
        headers: {
          ...headers,
          Authorization: `Bearer ${this.#secret}`,
          ...(body && { 'Content-Type': 'application/json' }),
        },
        body: body && JSON.stringify(body),
        signal: AbortSignal.timeout(timeout_ms),
      })
      return { status: response.status, headers: response.headers, text: await response.text() }
    } catch {
      return undefined
    }
  }
}
