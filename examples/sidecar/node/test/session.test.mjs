/** Sequences, deadlines and ranges, without clocks and sockets. */

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { InvalidKey, parseKey } from '../keys.mjs'
import { Claim, OVERTAKEN, Session } from '../session.mjs'

const DONE = { status: 204 }

/** @param {Partial<import('../session.mjs').Hook>} [given] */
function acquire(given) {
  const range = { lo: 0, hi: 2 ** 32, partition: 0, namespace: 'demo/counters', bundle: 'demo/counters/all' }
  return { session: 's1', sequence: 1, token: 't1', ...range, ...given }
}

/** @param {Partial<import('../session.mjs').Hook>} [given] */
async function serving(given) {
  const session = new Session('s1', 'broker')
  const hook = acquire(given)
  const claim = new Claim(hook, 'broker')
  await session.inSequence(hook, async () => DONE)
  assert.ok(session.open(claim, hook))
  return { session, claim }
}

const lease = { state: 'joined', abandon: [], shared: [] }

test('position is the CRC-32 of the full name', () => {
  assert.equal(parseKey('demo/counters/apples').position, 0x164553d3)
  assert.deepEqual(parseKey('persistent://demo/counters/apples'), parseKey('demo/counters/apples'))
  assert.equal(parseKey('demo/counters/süß/🍎').position, 0x7133b21f)
})

for (const name of ['', 'apples', 'demo/counters', 'demo/counters/', 'demo/counters/..', 'a b/c/d', 'a/b/\ud800']) {
  test(`${JSON.stringify(name)} is no key`, () => assert.throws(() => parseKey(name), InvalidKey))
}

test('lo is in the range, hi is not', async () => {
  const { claim } = await serving({ lo: 100, hi: 200 })
  const at = (/** @type {number} */ position) =>
    claim.includes({ namespace: 'demo/counters', fullName: '', position })
  assert.deepEqual([99, 100, 199, 200].map(at), [false, true, true, false])
  assert.equal(claim.includes({ namespace: 'demo/other', fullName: '', position: 150 }), false)
})

test('a hook acts once, and its repeat gets the first answer', async () => {
  const session = new Session('s1', 'broker')
  let acted = 0
  const act = async () => ({ status: 200, body: { acted: ++acted } })
  const answers = [1, 2].map(() => session.inSequence(acquire({ sequence: 7 }), act))
  assert.deepEqual(await Promise.all(answers), [1, 1].map((acted) => ({ status: 200, body: { acted } })))
})

test('a lower sequence, and another session, change nothing', async () => {
  const session = new Session('s1', 'broker')
  await session.inSequence(acquire({ sequence: 7 }), async () => DONE)
  const never = () => assert.fail('acted')
  assert.equal(await session.inSequence(acquire({ sequence: 6 }), never), OVERTAKEN)
  assert.equal(await session.inSequence(acquire({ sequence: 8, session: 's0' }), never), OVERTAKEN)
  assert.equal(await session.inSequence(acquire({ sequence: 1, bundle: 'another' }), async () => DONE), DONE)
})

test('an acquire that was overtaken while loading does not open', async () => {
  const session = new Session('s1', 'broker')
  const hook = acquire({ sequence: 7 })
  await session.inSequence(hook, async () => DONE)
  await session.inSequence(acquire({ sequence: 8 }), async () => DONE)
  assert.equal(session.open(new Claim(hook, 'broker'), hook), false)
  assert.deepEqual(session.claims, [])
})

test('no deadline, no serving', async () => {
  const { session, claim } = await serving()
  assert.equal(session.mayServe(claim, { monotonic: 0, wall: 0 }), false)
})

test('both clocks must be before the deadline', async () => {
  const { session, claim } = await serving()
  session.renew({ monotonic: 1_000, wall: 50_000 }, { ...lease, valid_ms: { 0: 100 } })
  const may = (/** @type {number} */ monotonic, /** @type {number} */ wall) =>
    session.mayServe(claim, { monotonic, wall })
  assert.equal(may(1_099, 50_099), true)
  assert.equal(may(1_100, 50_099), false)
  assert.equal(may(1_099, 50_100), false)
})

test('a deadline holds for its partition, until the next lease', async () => {
  const { session, claim } = await serving({ partition: 3 })
  const may = (/** @type {number} */ now) => session.mayServe(claim, { monotonic: now, wall: now })
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: { 0: 500 } })
  assert.equal(may(10), false)
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: { 0: 500, 3: 100 } })
  assert.deepEqual([may(99), may(100)], [true, false])
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: { 3: 20 } })
  assert.deepEqual([may(19), may(20)], [true, false])
  session.renew({ monotonic: 1, wall: 1 }, { ...lease, valid_ms: { 0: 500 } })
  assert.equal(may(10), false)
})

test('a shared namespace needs no deadline, but a session', async () => {
  const { session, claim } = await serving()
  const now = { monotonic: 9_000, wall: 9_000 }
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: {}, shared: ['demo/counters'] })
  assert.equal(session.mayServe(claim, now), true)
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: {} })
  assert.equal(session.mayServe(claim, now), false)
})

test('a session that has ended serves nothing', async () => {
  const { session, claim } = await serving()
  session.renew({ monotonic: 0, wall: 0 }, { ...lease, valid_ms: { 0: 1_000 }, shared: ['demo/counters'] })
  assert.deepEqual(session.end(), [claim])
  assert.equal(session.mayServe(claim, { monotonic: 1, wall: 1 }), false)
  assert.equal(await session.inSequence(acquire({ sequence: 9 }), () => assert.fail('acted')), OVERTAKEN)
})
