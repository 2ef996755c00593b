/**
 * The counters' storage in PostgreSQL, and a bundle's counters in memory.
 *
 * Exactly once: an increment and its request id are one row, so a repeated request finds the first answer.
 *
 * Fenced: an owner that was replaced may not know it yet, and its writes must not count. A new owner raises the fence
 * of its range before it reads a single counter, and each increment is checked in the transaction that stores it.
 */

import pg from 'pg'

import { FencedOut, checkFence, createFences, raiseFence, transaction } from './fences.mjs'

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS counter (
    namespace TEXT, position BIGINT, topic TEXT, value BIGINT NOT NULL, PRIMARY KEY (namespace, position, topic));
  CREATE TABLE IF NOT EXISTS increment (
    topic TEXT, request_id TEXT, value BIGINT NOT NULL, token TEXT NOT NULL, broker TEXT NOT NULL,
    PRIMARY KEY (topic, request_id))`
/** Waits for writes that hold the fence: of a request that was cut off, or of a connection that broke. */
const AWAIT_WRITES = 'SELECT 1 FROM loadmanager_fence WHERE namespace = $1 AND lo < $3 AND hi > $2 FOR UPDATE'
const LOAD = 'SELECT topic, value FROM counter WHERE namespace = $1 AND position >= $2 AND position < $3'
const INSERT = 'INSERT INTO increment VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING'
const FIRST_ANSWER = 'SELECT value, broker, token FROM increment WHERE topic = $1 AND request_id = $2'
const COUNT = `INSERT INTO counter VALUES ($1, $2, $3, $4)
  ON CONFLICT (namespace, position, topic) DO UPDATE SET value = excluded.value`

const BATCH = 256
const QUERY_TIMEOUT_MS = 10_000

/** @typedef {import('./session.mjs').Claim<Counters>} Claim */
/** @typedef {import('./keys.mjs').Key} Key */
/** @typedef {{value: number, broker: string, token: string}} Stored */
/**
 * @typedef {object} Increment
 * @property {Key} key
 * @property {string} id
 * @property {(stored: Stored) => void} resolve
 * @property {(error: unknown) => void} reject
 */

/** Nothing was stored, as far as we know: the client may repeat the request, with the same id. */
export class NotStored extends Error {}

/**
 * A pool of connections, with the tables.
 * @param {string} url  `postgresql://…`
 */
export async function openStore(url) {
  const pool = new pg.Pool({
    connectionString: url,
    connectionTimeoutMillis: QUERY_TIMEOUT_MS,
    query_timeout: QUERY_TIMEOUT_MS,
  })
  pool.on('error', (error) => console.error(`PostgreSQL: ${error.message}`))
  await transaction(pool, async (db) => {
    await createFences(db)
    await db.query(SCHEMA)
  })
  return pool
}

/** The counters of one bundle, under one claim. Increments that come together are stored in one transaction. */
export class Counters {
  /** @type {Map<string, number>} By full name, as stored. */
  #values = new Map()
  /** Whether the store may know more than we do: a transaction failed, and perhaps took effect. */
  #outdated = false
  #abandoned = false
  /** @type {Increment[]} */
  #waiting = []
  /** @type {Promise<void> | undefined} */
  #writing

  /**
   * Raises the fence, then loads the counters, unless the former owner has handed them over.
   *
   * @param {pg.Pool} pool
   * @param {Claim} claim
   * @param {Buffer | null} handOff
   * @throws {FencedOut}
   */
  static async load(pool, claim, handOff) {
    const counters = new Counters(pool, claim)
    const handed = handOff && decoded(handOff)
    counters.#values = await transaction(pool, async (db) => {
      if (!handed) return counters.#loaded(db)
      await raiseFence(db, claim)
      return handed
    })
    return counters
  }

  /**
   * @param {pg.Pool} pool
   * @param {Claim} claim
   */
  constructor(pool, claim) {
    this.pool = pool
    this.claim = claim
  }

  get names() {
    return [...this.#values.keys()]
  }

  /**
   * The counter at this moment.
   * @param {Key} key
   */
  value(key) {
    return this.#values.get(key.fullName) ?? 0
  }

  /**
   * Adds one, and resolves when that is stored; a repeated id gets its first answer.
   *
   * @param {Key} key
   * @param {string} id
   * @returns {Promise<Stored>}
   * @throws {FencedOut | NotStored}
   */
  increment(key, id) {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ key, id, resolve, reject })
      this.#writing ??= this.#write()
    })
  }

  /** The counters, for the next owner; null if it has to load them. No increment is in progress. */
  handOff() {
    return this.#outdated ? null : Buffer.from(JSON.stringify(Object.fromEntries(this.#values)))
  }

  /** Store nothing more; what is under way is rolled back, or refused. */
  abandon() {
    this.#abandoned = true
  }

  async #write() {
    while (this.#waiting.length > 0) await this.#commit(this.#waiting.splice(0, BATCH))
    this.#writing = undefined
  }

  /** @param {Increment[]} batch */
  async #commit(batch) {
    try {
      const { values, answers } = await transaction(this.pool, (db) => this.#store(db, batch))
      this.#values = values
      this.#outdated = false
      for (const answer of answers) answer()
    } catch (error) {
      this.#outdated = true
      for (const { reject } of batch) reject(new NotStored(`nothing was stored: ${error}`))
    }
  }

  /**
   * @param {pg.PoolClient} db
   * @param {Increment[]} batch
   */
  async #store(db, batch) {
    const values = this.#outdated ? await this.#loaded(db) : new Map(this.#values)
    const answers = []
    for (const { key, id, resolve, reject } of batch) {
      try {
        const stored = await this.#add(db, values, key, id)
        answers.push(() => resolve(stored))
      } catch (error) {
        if (!(error instanceof FencedOut)) throw error
        answers.push(() => reject(error))
      }
    }
    if (this.#abandoned) throw new Error(`${this.claim.bundle} is not ours any more`)
    return { values, answers }
  }

  /**
   * @param {pg.PoolClient} db
   * @param {Map<string, number>} values  changed
   * @param {Key} key
   * @param {string} id
   * @returns {Promise<Stored>}
   */
  async #add(db, values, { namespace, fullName, position }, id) {
    const { broker, token } = this.claim
    await checkFence(db, this.claim, position)
    const value = (values.get(fullName) ?? 0) + 1
    if ((await db.query(INSERT, [fullName, id, value, token, broker])).rowCount === 0) {
      const [first] = (await db.query(FIRST_ANSWER, [fullName, id])).rows
      return { ...first, value: Number(first.value) }
    }
    await db.query(COUNT, [namespace, position, fullName, value])
    values.set(fullName, value)
    return { value, broker, token }
  }

  /**
   * The stored counters, under a raised fence.
   * @param {pg.PoolClient} db
   * @returns {Promise<Map<string, number>>}
   */
  async #loaded(db) {
    const { namespace, lo, hi } = this.claim
    await raiseFence(db, this.claim)
    await db.query(AWAIT_WRITES, [namespace, lo, hi])
    const { rows } = await db.query(LOAD, [namespace, lo, hi])
    return new Map(rows.map(({ topic, value }) => [topic, Number(value)]))
  }
}

/**
 * The counters of a hand-off; null if it was written by a service in another language.
 * @param {Buffer} handOff
 * @returns {Map<string, number> | null}
 */
function decoded(handOff) {
  try {
    return new Map(Object.entries(JSON.parse(handOff.toString())))
  } catch {
    return null
  }
}
