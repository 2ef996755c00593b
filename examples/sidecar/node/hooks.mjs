/**
 * The hooks: what the sidecar calls when bundles come and go, checked for its signature, and done in their sequence.
 */

import { createServer } from 'node:http'
import { Webhook } from 'standardwebhooks'

import { Claim, OVERTAKEN } from './session.mjs'

const MOST_HAND_OFF_BYTES = 65_536

/** @typedef {import('./session.mjs').Hook} Hook */
/** @typedef {import('./session.mjs').Answer} Answer */
/**
 * @template State
 * @typedef {import('./session.mjs').Session<State>} Session
 */

/**
 * The service, as the load manager calls it. `acquire` returns what the service keeps for the bundle; it is then
 * `claim.state`, and ends by `release` or `abandon`. A hook that throws declines.
 *
 * @template State
 * @typedef {object} Host
 * @property {(bundle: Hook) => Promise<void>} [prepare]  warm up; the present owner serves on
 * @property {(claim: Claim<State>, handOff: Buffer | null) => Promise<State>} acquire
 *   raise `claim.token` in the storage, then load
 * @property {(claim: Claim<State>, to: Hook['to']) => Promise<Buffer | null>} release
 *   requests in progress have ended: flush, and hand over at most 64 KiB
 * @property {(claim: Claim<State>) => void} abandon  stop at once, write nothing; requests may be in progress
 * @property {(claims: Claim<State>[]) => object[]} [load]  for each bundle the fields of BundleLoad
 * @property {(claim: Claim<State>) => number[]} [positions]  of the keys of the bundle
 * @property {(claim: Claim<State>) => [number, number, number][]} [rates]
 *   position, messages/s, bytes/s of the busy keys
 */

/**
 * A server for hooks. It answers 401 to those that the sidecar has not signed.
 *
 * @param {() => string} secret
 * @param {(event: {type: string, data: Hook}) => Promise<Answer>} onHook
 * @param {(line: string) => void} log
 */
export function hookServer(secret, onHook, log) {
  return createServer({ keepAliveTimeout: 60_000 }, async (request, response) => {
    /** @type {Answer} */
    let answer
    try {
      let payload = ''
      for await (const chunk of request.setEncoding('utf8')) payload += chunk
      const signed = isSigned(secret(), request, payload)
      answer = signed ? await onHook(JSON.parse(payload)) : { status: 401, body: { title: 'another signature' } }
    } catch (error) {
      log(`a hook failed: ${error}`)
      answer = { status: 500, body: { title: String(error) } }
    }
    response.writeHead(answer.status, answer.body && { 'Content-Type': 'application/json' })
    response.end(answer.body && JSON.stringify(answer.body))
  })
}

/**
 * @param {string} secret
 * @param {import('node:http').IncomingMessage} request
 * @param {string} payload
 */
function isSigned(secret, { headers }, payload) {
  try {
    new Webhook(secret).verify(payload, /** @type {Record<string, string>} */ (headers))
    return true
  } catch {
    return false
  }
}

/**
 * Does what hooks ask for.
 * @template State
 */
export class HookActs {
  #host
  #log

  /**
   * @param {Host<State>} host
   * @param {(line: string) => void} log
   */
  constructor(host, log) {
    this.#host = host
    this.#log = log
  }

  /** The optional hooks that the service has. */
  get offers() {
    const optional = /** @type {const} */ (['prepare', 'load', 'positions', 'rates'])
    return optional.filter((hook) => this.#host[hook])
  }

  /**
   * @param {Session<State>} session
   * @param {string} type
   * @param {Hook} hook
   * @returns {Promise<Answer>}
   */
  async take(session, type, hook) {
    if (session.over || hook.session !== session.id) return OVERTAKEN
    if (type === 'load') return { status: 200, body: { loads: this.#host.load?.(session.claims) ?? [] } }
    return session.inSequence(hook, () => this.#act(session, type, hook))
  }

  /**
   * @param {Session<State>} session
   * @param {string} type
   * @param {Hook} hook
   * @returns {Promise<Answer>}
   */
  async #act(session, type, hook) {
    const claim = session.claim(hook.bundle)
    switch (type) {
      case 'prepare':
        return this.#declining(async () => this.#host.prepare?.(hook))
      case 'acquire':
        return this.#acquire(session, hook)
      case 'release':
        return this.#release(session, hook)
      case 'abandon':
        return this.abandon(session, hook)
      case 'positions':
      case 'rates':
        return { status: 200, body: { [type]: claim?.open ? this.#host[type]?.(claim) : [] } }
      default:
        return { status: 404, body: { title: `there is no hook ${type} here` } }
    }
  }

  /**
   * @param {Session<State>} session
   * @param {Hook} hook
   * @returns {Promise<Answer>}
   */
  async #acquire(session, hook) {
    const former = session.claim(hook.bundle)
    if (former) this.end(former)
    await former?.idle() // it may come back under the same token: let the last write end before we load
    const claim = /** @type {Claim<State>} */ (new Claim(hook, session.broker))
    return this.#declining(async () => {
      claim.state = await this.#host.acquire(claim, hook.hand_off ? Buffer.from(hook.hand_off, 'base64') : null)
      if (session.open(claim, hook)) return
      this.end(claim)
      throw new Error('overtaken while loading')
    })
  }

  /**
   * @param {Session<State>} session
   * @param {Hook} hook
   * @returns {Promise<Answer>}
   */
  async #release(session, hook) {
    const claim = session.claim(hook.bundle)
    if (!claim || claim.ended) return { status: 200, body: { hand_off: null } }
    claim.open = false
    await claim.idle()
    if (claim.ended) return OVERTAKEN
    const handOff = await this.#host.release(claim, hook.to ?? null)
    claim.ended = true
    const small = handOff && handOff.length <= MOST_HAND_OFF_BYTES
    return { status: 200, body: { hand_off: small ? handOff.toString('base64') : null } }
  }

  /**
   * @param {Session<State>} session
   * @param {{bundle: string}} hook
   * @returns {Promise<Answer>}
   */
  async abandon(session, { bundle }) {
    const claim = session.claim(bundle)
    if (claim) this.end(claim)
    return { status: 204 }
  }

  /** @param {Claim<State>} claim */
  end(claim) {
    if (claim.ended) return
    claim.open = false
    claim.ended = true
    this.#host.abandon(claim)
  }

  /**
   * @param {() => Promise<void>} act
   * @returns {Promise<Answer>}
   */
  async #declining(act) {
    try {
      await act()
      return { status: 204 }
    } catch (error) {
      this.#log(`declined: ${error}`)
      return { status: 409, body: { title: String(error) } }
    }
  }
}
