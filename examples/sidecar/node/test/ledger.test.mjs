/** Counters in a real PostgreSQL: COUNTERS_STORE names one that these tests may write to. */

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import pg from 'pg'

import { FencedOut, checkFence, raiseFence, transaction } from '../fences.mjs'
import { parseKey } from '../keys.mjs'
import { Counters, NotStored, openStore } from '../ledger.mjs'
import { Claim } from '../session.mjs'
import { until } from './sidecar.mjs'

const store = process.env.COUNTERS_STORE
const TOKENS = [0, 1, 2, 3].map((offset) => `0000-00000-${String(offset).padStart(15, '0')}`)
/** @type {pg.Pool} */
let pool
let namespaces = 0

before(async () => {
  if (store) pool = await openStore(store)
})
after(() => pool?.end())

/**
 * @param {string} name
 * @param {(namespace: string) => Promise<void>} run
 */
function onPostgres(name, run) {
  const skip = store ? false : 'set COUNTERS_STORE'
  test(name, { skip }, () => run(`test/n${process.pid}-${(namespaces += 1)}`))
}

/**
 * @param {string} namespace
 * @param {number} token  its number
 */
function claimed(namespace, token, { lo = 0, hi = 2 ** 32 } = {}) {
  const bundle = `${namespace}/${lo}-${hi}`
  const given = { session: 's1', sequence: 1, bundle, namespace, lo, hi, partition: 0, token: TOKENS[token] ?? '' }
  return /** @type {import('../ledger.mjs').Claim} */ (new Claim(given, `broker-${token}`))
}

onPostgres('each increment makes a value of its own, and a repeated id gets its first answer', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const counters = await Counters.load(pool, claimed(namespace, 1), null)
  const ids = [...Array(300).keys(), 7, 7].map(String)
  const stored = await Promise.all(ids.map((id) => counters.increment(key, id)))
  assert.deepEqual(new Set(stored.map(({ value }) => value)), new Set([...Array(300).keys()].map((n) => n + 1)))
  assert.deepEqual(stored[300], stored[7])
  assert.equal(counters.value(key), 300)

  const next = await Counters.load(pool, claimed(namespace, 2), null)
  assert.equal(next.value(key), 300)
  assert.deepEqual(await next.increment(key, '7'), stored[7])
  assert.deepEqual(await next.increment(key, 'new'), { value: 301, broker: 'broker-2', token: TOKENS[2] })
})

onPostgres('a former owner writes nothing, and raises nothing', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const former = await Counters.load(pool, claimed(namespace, 1), null)
  await former.increment(key, 'a')
  const next = await Counters.load(pool, claimed(namespace, 2), null)
  await assert.rejects(former.increment(key, 'b'), FencedOut)
  await assert.rejects(Counters.load(pool, claimed(namespace, 1), null), FencedOut)
  assert.equal((await next.increment(key, 'b')).value, 2)
})

onPostgres('a new owner of a part fences that part only', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const other = parseKey(`${namespace}/${['a', 'b', 'c', 'd'].find((name) =>
    parseKey(`${namespace}/${name}`).position > key.position) ?? 'none'}`)
  const whole = await Counters.load(pool, claimed(namespace, 1), null)
  await Counters.load(pool, claimed(namespace, 2, { lo: 0, hi: key.position + 1 }), null)
  await assert.rejects(whole.increment(key, 'a'), FencedOut)
  if (other.position > key.position) assert.equal((await whole.increment(other, 'a')).value, 1)
})

onPostgres('a hand-off spares the reading; one that cannot be read does not count', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const first = await Counters.load(pool, claimed(namespace, 1), null)
  await first.increment(key, 'a')
  assert.equal((await Counters.load(pool, claimed(namespace, 2), first.handOff())).value(key), 1)
  await assert.rejects(first.increment(key, 'b'), FencedOut)
  assert.equal((await Counters.load(pool, claimed(namespace, 3), Buffer.from([0x81, 0xa1]))).value(key), 1)
})

onPostgres('a new owner waits for the write that holds the fence, and loads it', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const former = claimed(namespace, 1)
  await Counters.load(pool, former, null)
  /** @type {Promise<Counters> | undefined} */
  let loading
  await transaction(pool, async (db) => {
    await checkFence(db, former, key.position)
    loading = Counters.load(pool, claimed(namespace, 2), null)
    await db.query('INSERT INTO counter VALUES ($1, $2, $3, 5)', [namespace, key.position, key.fullName])
  })
  assert.equal((await loading)?.value(key), 5)
})

onPostgres('a broken connection loses nothing: the counters are read again', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const counters = await Counters.load(pool, claimed(namespace, 1), null)
  await counters.increment(key, 'a')
  const lock = await pool.connect() // holds the second write up, so that its connection can be ended
  await lock.query('BEGIN')
  await lock.query('SELECT 1 FROM counter WHERE topic = $1 FOR UPDATE', [key.fullName])
  const refused = assert.rejects(counters.increment(key, 'b'), NotStored)
  const blocked = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN (
    SELECT pid FROM pg_locks WHERE NOT granted) AND query LIKE 'INSERT INTO counter%'`
  await until(async () => (await pool.query(blocked)).rowCount)
  await refused
  assert.equal(counters.handOff(), null)
  await lock.query('UPDATE counter SET value = 9 WHERE topic = $1', [key.fullName])
  await lock.query('COMMIT')
  lock.release()
  assert.equal((await counters.increment(key, 'c')).value, 10)
})

onPostgres('what is under way when a bundle is abandoned is not stored', async (namespace) => {
  const key = parseKey(`${namespace}/apples`)
  const counters = await Counters.load(pool, claimed(namespace, 1), null)
  const refused = assert.rejects(counters.increment(key, 'a'), NotStored)
  counters.abandon()
  await refused
  assert.equal((await Counters.load(pool, claimed(namespace, 1), null)).value(key), 0)
})

onPostgres('the server ends a transaction in which a process hangs, and the process lives on', async (namespace) => {
  const claim = claimed(namespace, 1)
  await transaction(pool, (db) => raiseFence(db, claim))
  const hanging = assert.rejects(
    transaction(pool, async (db) => {
      await checkFence(db, claim, 0)
      await new Promise((resolve) => db.once('end', resolve)) // only the server ends it
    }),
  )
  await transaction(pool, (db) => raiseFence(db, claimed(namespace, 2)))
  await hanging
  assert.equal((await pool.query('SELECT 1 AS one')).rows[0].one, 1)
})
