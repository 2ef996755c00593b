/** The client of the sidecar, over HTTP, against a sidecar that answers late, sends twice, and dies. */

import assert from 'node:assert/strict'
import { beforeEach, afterEach, test } from 'node:test'

import { Bundles, NotHere } from '../bundles.mjs'
import { parseKey } from '../keys.mjs'
import { OTHER_SECRET, Sidecar, until } from './sidecar.mjs'

const KEY = parseKey('demo/counters/apples')
const BUNDLE = {
  bundle: 'demo/counters/0x00000000_0xffffffff', namespace: 'demo/counters', lo: 0, hi: 2 ** 32,
}
const ACQUIRE = { ...BUNDLE, partition: 0, token: 't1', hand_off: null }

/** @type {Sidecar} */
let sidecar
/** @type {Bundles<string>} */
let bundles
/** Both clocks of the service. @type {{monotonic: number, wall: number}} */
let clock
/** What the hooks of the service were called for. @type {string[]} */
let called
/** @type {{acquire: () => Promise<string>, release: () => Promise<Buffer | null>}} */
let host

beforeEach(async () => {
  clock = { monotonic: 10_000, wall: 70_000 }
  called = []
  host = { acquire: async () => 'state', release: async () => Buffer.from('handed') }
  sidecar = await Sidecar.start()
  bundles = new Bundles({
    sidecar: sidecar.address,
    secretFile: sidecar.secretFile,
    urls: { http: 'http://127.0.0.1:1' },
    now: () => ({ ...clock }),
    log: () => {},
    host: {
      acquire: ({ token }, handOff) => (called.push(`acquire ${token} ${handOff}`), host.acquire()),
      release: ({ token }, to) => (called.push(`release ${token} ${to?.broker}`), host.release()),
      abandon: ({ token }) => void called.push(`abandon ${token}`),
      load: (claims) => claims.map(({ bundle }) => ({ bundle, keys: 1 })),
    },
  })
})

afterEach(async () => {
  await bundles.stop()
  await sidecar.stop()
})

async function attach() {
  await bundles.start()
  await polled()
}

/** Waits for an answer to a question that was asked after this call. */
async function polled() {
  const before = sidecar.polls
  await until(() => sidecar.polls >= before + 2)
}

async function isServed() {
  try {
    return (await bundles.admit(KEY, ({ token }) => token)) === 't1'
  } catch (error) {
    assert.ok(error instanceof NotHere, String(error))
    return false
  }
}

/** A promise, and what resolves it. */
function gate() {
  let open = () => {}
  const passed = /** @type {Promise<void>} */ (new Promise((resolve) => (open = resolve)))
  return { open, passed }
}

test('a bundle is served after acquire, until its release', async () => {
  await attach()
  assert.equal(await isServed(), false)
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1, hand_off: 'YWJj' })).status, 204)
  assert.equal(await isServed(), true)
  const answer = await sidecar.hook('release', { ...BUNDLE, sequence: 2, to: { broker: 'b2', urls: {} } })
  assert.deepEqual(answer, { status: 200, body: { hand_off: Buffer.from('handed').toString('base64') } })
  assert.equal(await isServed(), false)
  assert.deepEqual(called, ['acquire t1 abc', 'release t1 b2'])
})

test('the lease counts from before the question', async () => {
  sidecar.onLease = () => {
    clock.monotonic += 1_000 // the answer is as late as the time that it gives
    clock.wall += 1_000
    return sidecar.lease({ valid_ms: { 0: 1_000 } })
  }
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  await polled()
  sidecar.onLease = () => ({ status: 500 })
  await polled()
  assert.equal(await isServed(), false)
})

for (const stopped of /** @type {const} */ (['monotonic', 'wall'])) {
  test(`the lease ends though the ${stopped} clock stands still`, async () => {
    await attach()
    await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
    assert.equal(await isServed(), true)
    sidecar.onLease = () => ({ status: 500 })
    await polled()
    clock[stopped === 'wall' ? 'monotonic' : 'wall'] += 1_000
    assert.equal(await isServed(), false)
  })
}

test('a hook under another secret, or of another time, changes nothing', async () => {
  await attach()
  const acquire = { ...ACQUIRE, sequence: 1 }
  assert.equal((await sidecar.hook('acquire', acquire, { secret: OTHER_SECRET })).status, 401)
  assert.equal((await sidecar.hook('acquire', acquire, { at: new Date(Date.now() - 310_000) })).status, 401)
  assert.equal((await sidecar.hook('acquire', { ...acquire, session: 's0' })).status, 409)
  assert.deepEqual(called, [])
  assert.equal((await sidecar.hook('acquire', acquire)).status, 204)
})

test('an acquire that is overtaken while loading is not served', async () => {
  const loading = gate()
  host.acquire = () => loading.passed.then(() => 'late')
  await attach()
  const acquired = sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  await until(() => called.length)
  assert.equal((await sidecar.hook('abandon', { ...BUNDLE, sequence: 2 })).status, 204)
  loading.open()
  assert.equal((await acquired).status, 409)
  assert.equal(await isServed(), false)
  assert.deepEqual(called, ['acquire t1 null', 'abandon t1'])
})

test('a late acquire is refused', async () => {
  await attach()
  await sidecar.hook('abandon', { ...BUNDLE, sequence: 2 })
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })).status, 409)
  assert.equal(await isServed(), false)
})

test('a release waits for requests in progress, and its repeat gets the same hand-off', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  const working = gate()
  const request = bundles.admit(KEY, () => working.passed)
  const releases = [1, 2].map(() => sidecar.hook('release', { ...BUNDLE, sequence: 2 }))
  await until(async () => !(await isServed()))
  assert.deepEqual(called, ['acquire t1 null'])
  working.open()
  await request
  const [first, second] = await Promise.all(releases)
  assert.deepEqual(first, second)
  assert.deepEqual(await sidecar.hook('release', { ...BUNDLE, sequence: 2 }), first)
  assert.deepEqual(called, ['acquire t1 null', 'release t1 undefined'])
})

test('a bundle that comes back is loaded after the last request of before', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  const writing = gate()
  const request = bundles.admit(KEY, async () => {
    await writing.passed
    called.push('written')
  })
  await sidecar.hook('abandon', { ...BUNDLE, sequence: 2 })
  const acquired = sidecar.hook('acquire', { ...ACQUIRE, sequence: 3 })
  await polled()
  writing.open()
  await Promise.all([request, acquired])
  assert.deepEqual(called, ['acquire t1 null', 'abandon t1', 'written', 'acquire t1 null'])
})

test('the lease brings an abandon whose hook was lost', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 2 })
  sidecar.onLease = () => sidecar.lease({ abandon: [{ bundle: BUNDLE.bundle, sequence: 1 }] })
  await polled()
  assert.equal(await isServed(), true)
  sidecar.onLease = () => sidecar.lease({ abandon: [{ bundle: BUNDLE.bundle, sequence: 3 }] })
  await polled()
  assert.equal(await isServed(), false)
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 2 })).status, 409)
})

test('a service whose session has ended forgets its bundles, and attaches again', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 5 })
  sidecar.session = 's2'
  await until(() => sidecar.attached === 2)
  await polled()
  assert.equal(await isServed(), false)
  assert.deepEqual(called, ['acquire t1 null', 'abandon t1'])
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 6, session: 's1' })).status, 409)
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })).status, 204)
  assert.equal(await isServed(), true)
})

test('a service reads another secret', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  await sidecar.writeSecret(OTHER_SECRET)
  await until(() => sidecar.attached === 2)
  await polled()
  assert.equal(await isServed(), false)
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })).status, 204)
  assert.equal(await isServed(), true)
})

test('a hook that is faster than the answer to its session counts', async () => {
  const answering = gate()
  sidecar.onAttach = async () => {
    await answering.passed
    return { status: 201, body: { session: sidecar.session, broker: 'b' } }
  }
  await bundles.start()
  await until(() => sidecar.hooks)
  const acquired = sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  answering.open()
  assert.equal((await acquired).status, 204)
  await polled()
  assert.equal(await isServed(), true)
})

test('what the sidecar says of a key that is elsewhere goes to the client', async () => {
  await attach()
  const moved = { type: 'urn:loadmanager:moved', status: 421, broker: 'b2', urls: { http: 'http://b2' } }
  const keys = /** @type {string[]} */ ([])
  sidecar.onClaim = (key) => (keys.push(key), { status: 421, body: moved })
  await assert.rejects(bundles.admit(KEY, () => {}), (/** @type {NotHere} */ error) => {
    assert.equal(error.status, 421)
    assert.deepEqual(JSON.parse(error.body), moved)
    return true
  })
  assert.deepEqual(new Set(keys), new Set([KEY.fullName])) // twice: so the standard of fetch wants it after a 421
})

test('a request waits while its bundle is on its way here', async () => {
  await attach()
  sidecar.onClaim = async () => {
    await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
    return { status: 200, body: { bundle: BUNDLE.bundle, token: 't1', partition: 0 } }
  }
  assert.equal(await isServed(), true)
})

test('a failed acquire declines, and load tells of open bundles', async () => {
  host.acquire = async () => assert.fail('no storage')
  await attach()
  assert.equal((await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })).status, 409)
  assert.deepEqual((await sidecar.hook('load', { sequence: 2 })).body, { loads: [] })
  host.acquire = async () => 'state'
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 3 })
  assert.deepEqual((await sidecar.hook('load', { sequence: 4 })).body, { loads: [{ bundle: BUNDLE.bundle, keys: 1 }] })
})

test('a service that stops serves and polls until its session has ended', async () => {
  await attach()
  await sidecar.hook('acquire', { ...ACQUIRE, sequence: 1 })
  const leaving = gate()
  let asked = false
  sidecar.onLeave = async () => {
    asked = true
    await leaving.passed
    return { status: 200 }
  }
  const stopped = bundles.stop()
  await until(() => asked)
  await polled()
  assert.equal(await isServed(), true)
  assert.equal((await sidecar.hook('release', { ...BUNDLE, sequence: 2 })).status, 200)
  leaving.open()
  await stopped
  assert.equal(sidecar.attached, 1)
  sidecar.onClaim = () => ({ status: 421 })
  await assert.rejects(bundles.admit(KEY, () => {}), { status: 421 }) // so clients still learn where the key is
})
