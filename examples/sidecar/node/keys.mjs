/**
 * Names of keys, and their positions: `demo/counters/apples` is short for `persistent://demo/counters/apples`, and the
 * position of a key is the CRC-32 of its full name.
 */

import { crc32 } from 'node:zlib'

const KEY = /^(?:(?:non-)?persistent:\/\/)?([\w.=:-]+\/[\w.=:-]+)\/(.+)$/s

/** A name that is no key; clients get 400. */
export class InvalidKey extends Error {}

/** @typedef {{namespace: string, fullName: string, position: number}} Key */

/**
 * The key of this name, short or full.
 *
 * @param {string} name
 * @returns {Key}
 * @throws {InvalidKey}
 */
export function parseKey(name) {
  const [, namespace, local] = KEY.exec(name) ?? []
  if (!namespace || !local || !name.isWellFormed() || local.split('/').some((part) => part === '.' || part === '..')) {
    throw new InvalidKey(`${JSON.stringify(name)} is no key; write tenant/namespace/name`)
  }
  const fullName = /^(non-)?persistent:\/\//.test(name) ? name : `persistent://${name}`
  return { namespace, fullName, position: crc32(fullName) }
}
