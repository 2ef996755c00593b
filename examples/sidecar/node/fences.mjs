/**
 * Fences in PostgreSQL: the store refuses a former owner. The same table and statements as in Python
 * (loadmanager/fencing/fences.py, postgresql.py), so that services in several languages can share a store.
 *
 * The table has ranges [lo, hi) that do not overlap, each with the token that its owner raised. Tokens are of fixed
 * width and compare as text. An owner raises the fence of its bundle, then loads; each write checks it in its own
 * transaction.
 */

const TABLE = 'loadmanager_fence'
const IDLE_TIMEOUT_MS = 5_000

const BEGIN = `BEGIN ISOLATION LEVEL READ COMMITTED;
  SET LOCAL idle_in_transaction_session_timeout = ${IDLE_TIMEOUT_MS}`
const SCHEMA = `CREATE TABLE IF NOT EXISTS ${TABLE} (namespace TEXT NOT NULL, lo BIGINT NOT NULL, hi BIGINT NOT NULL,
  token TEXT NOT NULL, PRIMARY KEY (namespace, lo))`
/** Until the transaction ends nobody else raises fences of the namespace. */
const ALONE = `SELECT pg_advisory_xact_lock(hashtextextended('${TABLE} ' || $1::text, 0))`
const STANDS = `SELECT 1 FROM ${TABLE} WHERE namespace = $1 AND lo = $2 AND hi = $3 AND token = $4 FOR SHARE`
const OVERLAPPING = `SELECT lo, hi, token FROM ${TABLE} WHERE namespace = $1 AND lo < $3 AND hi > $2 AND lo >= COALESCE(
  (SELECT MAX(lo) FROM ${TABLE} WHERE namespace = $1 AND lo <= $2), 0)`
const DELETE = `DELETE FROM ${TABLE} WHERE namespace = $1 AND lo = $2`
const INSERT = `INSERT INTO ${TABLE} (namespace, lo, hi, token) VALUES ($1, $2, $3, $4)`
const AT = `SELECT token FROM ${TABLE} WHERE namespace = $1 AND lo <= $2 AND hi > $2 ORDER BY lo DESC LIMIT 1`

/** @typedef {{bundle: string, namespace: string, lo: number, hi: number, token: string}} Fenced */

/** The store refused this claim, and nothing was written. `stored` is the token in the store, if there is one. */
export class FencedOut extends Error {
  /**
   * @param {Fenced} claim
   * @param {string | undefined} stored
   */
  constructor({ bundle, token }, stored) {
    super(`${bundle} is fenced: the store has ${stored ?? 'no token'}, and this owner ${token}`)
    this.stored = stored
  }
}

/**
 * Runs `work` in a transaction. Its isolation is READ COMMITTED, so that each statement sees what a former owner has
 * just committed; the server ends it if it is idle for five seconds, so that a process that hangs holds nobody up.
 *
 * @template T
 * @param {import('pg').Pool} pool
 * @param {(db: import('pg').PoolClient) => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function transaction(pool, work) {
  const db = await pool.connect()
  /** @type {Error | undefined} */
  let broken
  const onError = (/** @type {Error} */ error) => void (broken = error)
  db.on('error', onError) // the server may end the connection between two statements
  try {
    await db.query(BEGIN)
    const result = await work(db)
    await db.query('COMMIT')
    return result
  } catch (error) {
    await db.query('ROLLBACK').catch(onError)
    throw error
  } finally {
    db.off('error', onError)
    db.release(broken)
  }
}

/**
 * Creates the table of fences unless it exists.
 * @param {import('pg').PoolClient} db
 */
export async function createFences(db) {
  await db.query(ALONE, ['']) // two concurrent creations would fail
  await db.query(SCHEMA)
}

/**
 * Raises the fence of the claim's bundle; load in the same transaction.
 *
 * @param {import('pg').PoolClient} db
 * @param {Fenced} claim
 * @throws {FencedOut} the range has a higher token, or another range has the same one
 */
export async function raiseFence(db, claim) {
  const { namespace, lo, hi, token } = claim
  if ((await db.query(STANDS, [namespace, lo, hi, token])).rowCount) return
  await db.query(ALONE, [namespace])
  const { rows } = await db.query(OVERLAPPING, [namespace, lo, hi])
  const stored = rows.map((row) => ({ lo: Number(row.lo), hi: Number(row.hi), token: String(row.token) }))
  if (stored.length === 1 && stored.every((row) => row.lo === lo && row.hi === hi && row.token === token)) return
  const highest = stored.map((row) => row.token).sort().at(-1)
  if (highest !== undefined && highest >= token) throw new FencedOut(claim, highest)
  const pieces = [{ lo, hi, token }]
  for (const old of stored) {
    await db.query(DELETE, [namespace, old.lo])
    if (old.lo < lo) pieces.push({ ...old, hi: lo })
    if (old.hi > hi) pieces.push({ ...old, lo: hi })
  }
  for (const piece of pieces) await db.query(INSERT, [namespace, piece.lo, piece.hi, piece.token])
}

/**
 * Checks that the fence at this position has the claim's token, and keeps it until the transaction ends.
 *
 * @param {import('pg').PoolClient} db
 * @param {Fenced} claim
 * @param {number} position
 * @throws {FencedOut}
 */
export async function checkFence(db, claim, position) {
  const where = [claim.namespace, position]
  const token = async (/** @type {string} */ query) => (await db.query(query, where)).rows[0]?.token
  while ((await token(`${AT} FOR SHARE`)) !== claim.token) {
    const stored = await token(AT) // the range may have been cut while we waited for the lock
    if (stored !== claim.token) throw new FencedOut(claim, stored)
  }
}
