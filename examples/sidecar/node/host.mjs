/** The hooks that the load manager calls: bundles of counters come and go, and their load is measured. */

import { parseKey } from './keys.mjs'
import { Counters } from './ledger.mjs'

/** @typedef {import('./ledger.mjs').Claim} Claim */

/** @implements {Required<Omit<import('./hooks.mjs').Host<Counters>, 'rates'>>} */
export class CounterHost {
  /** @type {Map<string, Map<string, number>>} Requests in this window, by bundle and key. */
  #served = new Map()
  #since = performance.now()
  #cpu = process.cpuUsage()

  /** @param {import('pg').Pool} pool */
  constructor(pool) {
    this.pool = pool
  }

  async prepare() {} // nothing to warm up: the counters come with the hand-off

  /**
   * @param {Claim} claim
   * @param {Buffer | null} handOff
   */
  acquire(claim, handOff) {
    return Counters.load(this.pool, claim, handOff)
  }

  /** @param {Claim} claim */
  async release({ bundle, state }) {
    this.#served.delete(bundle)
    return state?.handOff() ?? null
  }

  /** @param {Claim} claim */
  abandon({ bundle, state }) {
    this.#served.delete(bundle)
    state?.abandon()
  }

  /** @param {Claim} claim */
  positions({ state }) {
    return state?.names.map((name) => parseKey(name).position) ?? []
  }

  /**
   * Counts a request, for `load`.
   * @param {Claim} claim
   * @param {import('./keys.mjs').Key} key
   */
  count({ bundle }, { fullName }) {
    const counts = this.#served.get(bundle) ?? new Map()
    this.#served.set(bundle, counts.set(fullName, (counts.get(fullName) ?? 0) + 1))
  }

  /**
   * Rates since the last call; the process's CPU is shared out by requests.
   * @param {Claim[]} claims
   */
  load(claims) {
    const window_s = (performance.now() - this.#since) / 1000
    const { user, system } = process.cpuUsage(this.#cpu)
    const served = this.#served
    this.#served = new Map()
    this.#since = performance.now()
    this.#cpu = process.cpuUsage()
    const total = sum([...served.values()].map((counts) => sum(counts.values()))) || 1
    return claims.map(({ bundle, state }) => {
      const counts = served.get(bundle) ?? new Map()
      const rate = sum(counts.values()) / window_s
      const hottest = [...counts].sort(([, one], [, other]) => other - one).slice(0, 3)
      return {
        bundle,
        keys: state?.names.length ?? 0,
        in_rate_msg_s: rate,
        out_rate_msg_s: rate,
        in_rate_bytes_s: 100 * rate,
        out_rate_bytes_s: 100 * rate,
        cpu_percent: ((user + system) / 10_000 / window_s) * (sum(counts.values()) / total),
        hottest_keys: hottest.map(([key, n]) => [key, (2 * n) / window_s]),
      }
    })
  }
}

/** @param {Iterable<number>} numbers */
function sum(numbers) {
  let total = 0
  for (const number of numbers) total += number
  return total
}
