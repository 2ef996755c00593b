/**
 * Counters over HTTP, kept in memory by the owner of each key, and stored in PostgreSQL before they are answered.
 *
 *     POST /v1/counters {"topic": "demo/counters/apples", "id": "a-unique-request-id"} -> {"value", "broker", "token"}
 *     GET  /v1/counters?topic=demo/counters/apples                                     -> {"value", "broker", "token"}
 *
 * Other answers: 421 and 503 as in docs/wire-contract.md, 404 without such a namespace, 400.
 */

import { once } from 'node:events'
import { createServer } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

import { Bundles, NotHere, notServing } from './bundles.mjs'
import { FencedOut } from './fences.mjs'
import { CounterHost } from './host.mjs'
import { InvalidKey, parseKey } from './keys.mjs'
import { Counters, NotStored, openStore } from './ledger.mjs'

const LINGER_MS = 500
const MOST_BODY_BYTES = 65_536
const MOST_NAME_BYTES = 2_000

/** A request that makes no sense; clients get 400. */
class BadRequest extends Error {}

/** @param {import('node:http').IncomingMessage} request */
async function readIncrement(request) {
  let text = ''
  for await (const chunk of request.setEncoding('utf8').iterator({ destroyOnReturn: false })) {
    text += chunk
    if (text.length > MOST_BODY_BYTES) throw new BadRequest('the body is too long')
  }
  /** @type {{topic?: unknown, id?: unknown}} */
  let asked
  try {
    asked = Object(JSON.parse(text))
  } catch {
    throw new BadRequest('send {"topic": …, "id": …}')
  }
  const { topic, id } = asked
  if (typeof topic !== 'string' || typeof id !== 'string') throw new BadRequest('send {"topic": …, "id": …}')
  const both = topic + id
  if (both.includes('\0') || !id.isWellFormed() || Buffer.byteLength(both) > MOST_NAME_BYTES) {
    throw new BadRequest(`topic and id must be text without NUL, of at most ${MOST_NAME_BYTES} bytes`)
  }
  return { key: parseKey(topic), id }
}

/**
 * @param {Bundles<Counters>} bundles
 * @param {CounterHost} host
 * @param {import('node:http').IncomingMessage} request
 */
async function answer(bundles, host, request) {
  const cluster = String(request.headers['loadmanager-cluster'] ?? '')
  const [path, query] = (request.url ?? '').split('?', 2)
  if (path !== '/v1/counters') return { status: 404, body: 'there is only /v1/counters' }
  if (request.method === 'GET') {
    const key = parseKey(new URLSearchParams(query).get('topic') ?? '')
    return bundles.admit(key, (claim) => {
      host.count(claim, key)
      const { broker, token } = claim
      return found({ value: counters(claim).value(key), broker, token }, token)
    }, cluster)
  }
  if (request.method !== 'POST') return { status: 405, body: 'GET or POST', headers: { Allow: 'GET, POST' } }
  const { key, id } = await readIncrement(request)
  return bundles.admit(key, async (claim) => {
    host.count(claim, key)
    return found(await counters(claim).increment(key, id), claim.token)
  }, cluster)
}

/** @param {import('./ledger.mjs').Claim} claim */
function counters({ state }) {
  if (!state) throw new Error('an open claim has been acquired')
  return state
}

/**
 * @param {import('./ledger.mjs').Stored} stored
 * @param {string} token
 */
function found(stored, token) {
  return {
    status: 200,
    body: JSON.stringify(stored),
    headers: { 'Content-Type': 'application/json', 'Fencing-Token': token },
  }
}

/**
 * @param {unknown} error
 * @returns {{status: number, body: string, headers?: Record<string, string>}}
 */
function problem(error) {
  if (error instanceof NotHere) return error
  if (error instanceof FencedOut || error instanceof NotStored) return notServing(error.message)
  if (error instanceof InvalidKey || error instanceof BadRequest) return { status: 400, body: error.message }
  console.error(error)
  return { status: 500, body: 'a bug; see the log' }
}

/**
 * @param {Bundles<Counters>} bundles
 * @param {CounterHost} host
 * @returns {import('node:http').RequestListener}
 */
function application(bundles, host) {
  return async (request, response) => {
    /** @type {{status: number, body: string, headers?: Record<string, string>}} */
    const { status, body, headers } = await answer(bundles, host, request).catch(problem)
    const length = Buffer.byteLength(body)
    response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', 'Content-Length': length, ...headers })
    response.end(body)
  }
}

/** @param {string} name */
function setting(name) {
  const value = process.env[name]
  if (!value) throw new Error(`set ${name}; README.md says how to run this`)
  return value
}

async function main() {
  const store = await openStore(setting('COUNTERS_STORE'))
  const { hostname, port } = new URL(`tcp://${process.env.LISTEN ?? '127.0.0.1:0'}`)
  const server = createServer()
  await once(server.listen(Number(port), hostname.replace(/^\[|]$/g, '')), 'listening')
  const { port: listening } = /** @type {import('node:net').AddressInfo} */ (server.address())
  const url = `http://${hostname}:${listening}`

  const host = new CounterHost(store)
  const bundles = new Bundles({
    sidecar: setting('LOADMANAGER_SIDECAR'),
    secretFile: setting('LOADMANAGER_SIDECAR_SECRET_FILE'),
    urls: { http: process.env.ADVERTISED_URL ?? url },
    host,
  })
  server.on('request', application(bundles, host))
  await bundles.start()
  bundles.running?.catch(fail)
  console.log(url)

  await Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])
  await bundles.stop() // serves on until all bundles have moved
  await sleep(LINGER_MS) // and tells clients that still come where their counters are
  process.exit(0)
}

/** @param {unknown} error */
function fail(error) {
  console.error(error instanceof Error ? error.message : error)
  process.exit(1)
}

main().catch(fail)
