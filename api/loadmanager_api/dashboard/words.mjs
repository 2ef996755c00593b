// Figures and times as text.

export const percent = (fraction) => (fraction === null || fraction === undefined ? "–" : `${(100 * fraction).toFixed(1)} %`);

/** A count, or a rate: at most four digits and a unit. */
export function amount(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const [scale, prefix] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : value >= 1e4 ? [1e3, "k"] : [1, ""];
  const scaled = value / scale;
  const text = scaled >= 100 || Number.isInteger(scaled) ? Math.round(scaled).toLocaleString("en") : scaled.toPrecision(3);
  return `${text} ${prefix}${unit}`.trim();
}

export const count = (value) => (value ?? 0).toLocaleString("en");

/** Beside a count of bundles without an owner: how many more no lookup has asked for yet; they need none. */
export const unaskedToo = (unasked) => (unasked ? `${count(unasked)} more: no lookup has asked for them yet` : undefined);

export function clock(at_ms) {
  return new Date(at_ms).toLocaleTimeString("en-GB");
}

export function moment(at_ms) {
  const at = new Date(at_ms);
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock(at_ms) : `${at.toLocaleDateString("en-CA")} ${clock(at_ms)}`;
}

export function lasting(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(ms < 20_000 ? 1 : 0)} s`;
  return ms < 7_200_000 ? `${Math.round(ms / 60_000)} min` : `${Math.round(ms / 3_600_000)} h`;
}

export const namespaceOf = (bundle) => bundle.slice(0, bundle.lastIndexOf("/"));
export const rangeOf = (bundle) => bundle.slice(bundle.lastIndexOf("/") + 1);
