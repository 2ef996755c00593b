/** A sidecar for tests: it answers as the test says, and sends the hooks that the test gives it. */

import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Webhook } from 'standardwebhooks'

const FIRST_SECRET = `whsec_${Buffer.alloc(24, 'first').toString('base64')}`
export const OTHER_SECRET = `whsec_${Buffer.alloc(24, 'other').toString('base64')}`

/** @typedef {{status: number, body?: object, headers?: Record<string, string>}} Answer */

export class Sidecar {
  secret = FIRST_SECRET
  session = 's1'
  hooks = ''
  /** Lease requests that were answered. */
  polls = 0
  attached = 0
  /** @type {() => Promise<Answer> | Answer} */
  onAttach = () => ({ status: 201, body: { session: this.session, broker: '10.0.0.7:8080' } })
  /** @type {() => Promise<Answer> | Answer} */
  onLease = () => this.lease()
  /** @type {(key: string) => Promise<Answer> | Answer} */
  onClaim = () => ({ status: 503, body: { type: 'urn:loadmanager:not-serving' }, headers: { 'Retry-After': '1' } })
  /** @type {() => Promise<Answer> | Answer} */
  onLeave = () => ({ status: 200 })

  static async start() {
    const sidecar = new Sidecar()
    await once(sidecar.server.listen(0, '127.0.0.1'), 'listening')
    sidecar.folder = await mkdtemp(join(tmpdir(), 'sidecar-'))
    await sidecar.writeSecret(FIRST_SECRET)
    return sidecar
  }

  server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request.setEncoding('utf8')) text += chunk
    const { status, body, headers } = await this.#answer(request, text)
    response.writeHead(status, { 'Content-Type': 'application/json', ...headers })
    response.end(body && JSON.stringify(body))
  })
  folder = ''

  get address() {
    const { port } = /** @type {import('node:net').AddressInfo} */ (this.server.address())
    return `http://127.0.0.1:${port}`
  }

  get secretFile() {
    return join(this.folder, 'secret')
  }

  /** @param {string} secret */
  async writeSecret(secret) {
    this.secret = secret
    await writeFile(this.secretFile, `${secret}\n`)
  }

  /** @param {Partial<import('../session.mjs').Lease>} [given] */
  lease(given) {
    return { status: 200, body: { state: 'joined', valid_ms: { 0: 1_000 }, abandon: [], shared: [], ...given } }
  }

  /**
   * Sends a hook; returns status and body of the answer.
   *
   * @param {string} type
   * @param {object} data
   * @param {{secret?: string, at?: Date}} [options]
   */
  async hook(type, data, { secret = this.secret, at = new Date() } = {}) {
    const body = JSON.stringify({ type, timestamp: at.toISOString(), data: { session: this.session, ...data } })
    const headers = {
      'webhook-id': 'msg_1',
      'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
      'webhook-signature': new Webhook(secret).sign('msg_1', at, body),
    }
    const answer = await fetch(this.hooks, { method: 'POST', headers, body })
    const text = await answer.text()
    return { status: answer.status, body: text && JSON.parse(text) }
  }

  async stop() {
    this.server.close()
    this.server.closeAllConnections()
    await rm(this.folder, { recursive: true })
  }

  /**
   * @param {import('node:http').IncomingMessage} request
   * @param {string} text
   * @returns {Promise<Answer>}
   */
  async #answer({ method, url = '', headers }, text) {
    if (headers.authorization !== `Bearer ${this.secret}`) return { status: 401 }
    if (method === 'POST') {
      this.hooks = JSON.parse(text).hooks
      const answer = await this.onAttach()
      this.attached += 1
      return answer
    }
    const claim = /^\/v1\/claims\/([^?]+)/.exec(url)
    if (claim) return this.onClaim(decodeURIComponent(claim[1] ?? ''))
    if (!url.startsWith(`/v1/session/${this.session}`)) return { status: 410 }
    if (method === 'DELETE') return this.onLeave()
    const answer = await this.onLease()
    this.polls += 1
    return answer
  }
}

/**
 * Resolves when the condition holds; fails after ten seconds.
 * @param {() => unknown | Promise<unknown>} condition
 */
export async function until(condition) {
  const deadline = performance.now() + 10_000
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`never: ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
