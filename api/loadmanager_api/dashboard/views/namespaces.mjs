// Namespaces: how many bundles each has, how many of them lack an owner or move, its load and its policy.
import { html, useMemo } from "../html.mjs";
import { to, useBundles, useLoads, usePoll } from "../live.mjs";
import { may } from "../may.mjs";
import { Empty, Panel } from "../parts.mjs";
import { Rows } from "../rows.mjs";
import { amount, count, namespaceOf, unaskedToo } from "../words.mjs";
import { SETTLED, isUnasked } from "../bundles.mjs";

export function Namespaces({ me, bundles, namespace }) {
  const version = useBundles(bundles, bundles.loading ? 100 : 1000);
  const loads = useLoads(namespace);
  const policies = usePoll(may(me, "viewer") ? "/v1/policies?kind=namespace&limit=1000" : null, 10);
  const rows = useMemo(() => counted(bundles, loads), [version, loads, bundles.loading]);
  const policyOf = new Map(policies.data?.policies.map((each) => [each.name, each.policy]));
  const columns = [
    { title: "Namespace", cell: (row) => row.name, width: "minmax(0, 1.4fr)", kind: "name" },
    { title: "Bundles", cell: (row) => count(row.bundles), width: "4.5rem", kind: "number" },
    { title: "No owner", cell: (row) => unowned(row, policyOf.get(row.name)), width: "5rem", kind: "number" },
    { title: "Moving", cell: (row) => count(row.moving), width: "4.5rem", kind: "number", least_px: 480 },
    { title: "Msg/s", cell: (row) => amount(row.msg_s), width: "5rem", kind: "number" },
    { title: "Bytes/s", cell: (row) => amount(row.bytes_s), width: "5.5rem", kind: "number", least_px: 560 },
    { title: "Policy", cell: (row) => inWords(policyOf.get(row.name)), width: "minmax(0, 1fr)", least_px: 700 },
  ];
  const names = [...rows.keys()].sort();
  return html`<${Panel} title="Namespaces" api="GET /v1/watch, GET /v1/bundles?order=load, GET /v1/policies?kind=namespace">
    <p class="quiet">${count(names.length)} namespaces. Load is the sum of the bundles whose load is known: those that are among their owner's hottest.</p>
    ${names.length
      ? html`<${Rows} most_px=${640} label="Namespaces" columns=${columns} items=${names} of=${(name) => rows.get(name)} pick=${(name) => (location.hash = to("bundles", { q: `${name}/` }))} />`
      : html`<${Empty} what=${bundles.loading ? "reading …" : "There is no namespace yet."} how=${bundles.loading ? "" : "loadmanager namespaces create shop/orders --bundles 16"} />`}<//>`;
}

/** Bundles that should have an owner: those that had one, and of an eager namespace all. */
function unowned(row, policy) {
  const missing = row.unowned + (policy?.eager ? row.unasked : 0);
  return html`<span class=${missing ? "tag bad" : "quiet"} title=${policy?.eager ? undefined : unaskedToo(row.unasked)}>${count(missing)}</span>`;
}

function counted(bundles, loads) {
  const rows = new Map();
  for (const row of bundles.rows.values()) {
    const name = namespaceOf(row.bundle);
    let of = rows.get(name);
    if (!of) rows.set(name, (of = { name, bundles: 0, unowned: 0, unasked: 0, moving: 0, msg_s: null, bytes_s: null }));
    of.bundles++;
    if (isUnasked(row)) of.unasked++;
    else if (row.state === "unassigned") of.unowned++;
    else if (!SETTLED.has(row.state)) of.moving++;
    const load = loads.get(row.bundle);
    if (load) {
      of.msg_s += load.rate_msg_s;
      of.bytes_s += load.rate_bytes_s;
    }
  }
  return rows;
}

const inWords = (policy) => (policy ? Object.entries(policy).map(([field, value]) => (value === true ? field : `${field}: ${typeof value === "object" ? JSON.stringify(value) : value}`)).join(", ") : "–");
