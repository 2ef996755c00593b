// The bundles as the watched broker has them, with the moves under way and those that ended. No request, no drawing.

const RECENT = 200;
const OFFSET_AT = -15; // a token ends with the offset at which its ownership began
export const SETTLED = new Set(["assigned", "unassigned"]);
export const STATES = ["unassigned", "assigning", "assigned", "transferring", "releasing", "splitting", "revoking"];

/** Whether no lookup has asked for a bundle yet: its last record is the one that created its namespace. */
export const isUnasked = (row) => row.state === "unassigned" && Number(row.token.slice(OFFSET_AT)) === row.revision;

export class Bundles {
  rows = new Map();
  moves = new Map(); // by bundle: from, to, since_ms, state, cause, reason
  recent = []; // ended moves, newest first
  byState = Object.fromEntries(STATES.map((state) => [state, 0]));
  unasked = 0; // those of "unassigned" that no lookup has asked for
  loading = true;
  version = 0; // grows with each change
  shape = 0; // grows when bundles come or go
  #listeners = new Set();
  #names = null;

  /** Calls `listener` after changes; returns a function that ends that. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The names of all bundles; sorted, once all are there. */
  names() {
    if (this.loading) return [...this.rows.keys()];
    return (this.#names ??= [...this.rows.keys()].sort());
  }

  reset() {
    this.rows.clear();
    this.moves.clear();
    for (const state of STATES) this.byState[state] = 0;
    this.unasked = 0;
    this.loading = true;
    this.#changed(true);
  }

  /** Takes an event of the watch. */
  take(kind, data) {
    if (kind === "snapshot") for (const bundle of data.bundles) this.#put(bundle);
    else if (kind === "snapshot-end") this.loading = false;
    else if (kind === "reload") this.#forget(data.partition);
    else if (kind === "change") for (const step of data.bundles) this.#step(step, data);
    else return;
    this.#changed(kind !== "change" || data.bundles.some((step) => !step.before || !step.after));
  }

  #put(bundle) {
    this.#count(this.rows.get(bundle.bundle), -1);
    this.#count(bundle, 1);
    this.rows.set(bundle.bundle, bundle);
    if (!SETTLED.has(bundle.state) && !this.moves.has(bundle.bundle)) {
      this.moves.set(bundle.bundle, { bundle: bundle.bundle, from: bundle.owner, to: bundle.target, state: bundle.state });
    }
  }

  #count(row, by) {
    if (!row) return;
    this.byState[row.state] += by;
    if (isUnasked(row)) this.unasked += by;
  }

  #drop(name) {
    this.#count(this.rows.get(name), -1);
    this.rows.delete(name);
  }

  #forget(partition) {
    for (const [name, bundle] of this.rows) if (bundle.partition === partition) this.#drop(name);
    this.loading = true;
  }

  #step({ before, after }, record) {
    const name = (after ?? before).bundle;
    if (after) this.#put(after);
    else this.#drop(name);
    if (after && !SETTLED.has(after.state)) this.#under_way(before, after, record);
    else this.#ended(name, after, record);
  }

  #under_way(before, after, record) {
    const known = this.moves.get(after.bundle);
    this.moves.set(after.bundle, {
      bundle: after.bundle,
      from: known?.since_ms ? known.from : (before?.owner ?? null),
      to: after.target ?? (after.state === "assigning" ? after.owner : (known?.to ?? null)),
      since_ms: known?.since_ms ?? record.at_ms,
      state: after.state,
      action: known?.action ?? record.action,
      reason: known?.reason || record.reason,
      cause: known?.cause || record.cause,
    });
  }

  #ended(name, after, record) {
    const move = this.moves.get(name);
    if (!move) return;
    this.moves.delete(name);
    const took_ms = move.since_ms ? Math.max(0, record.at_ms - move.since_ms) : null;
    this.recent.unshift({ ...move, state: after?.state ?? "gone", to: after?.owner ?? move.to, at_ms: record.at_ms, took_ms });
    this.recent.length = Math.min(this.recent.length, RECENT);
  }

  #changed(shape) {
    this.version++;
    if (shape) {
      this.shape++;
      this.#names = null;
    }
    for (const listener of this.#listeners) listener();
  }
}
