/** Applies steps to the fences of the example, and prints what became of each: `node fences.mjs FOLDER URL STEPS`. */

import { pathToFileURL } from 'node:url'

const [folder, url, steps] = process.argv.slice(2)
const { raiseFence, checkFence, transaction, FencedOut } = await import(pathToFileURL(`${folder}/fences.mjs`))
const { openStore } = await import(pathToFileURL(`${folder}/ledger.mjs`))

const pool = await openStore(url)
const outcomes = []
for (const { claim, position } of JSON.parse(steps)) {
  try {
    await transaction(pool, (db) => (position === null ? raiseFence(db, claim) : checkFence(db, claim, position)))
    outcomes.push('done')
  } catch (error) {
    if (!(error instanceof FencedOut)) throw error
    outcomes.push(error.stored ?? 'none')
  }
}
await pool.end()
console.log(JSON.stringify(outcomes))
