// All bundles with owner and state, found by name, state and owner; one of them in detail, with what may be done to it.
import { html, useMemo, useState } from "../html.mjs";
import { to, useBundles, useLoads, usePoll } from "../live.mjs";
import { Empty, Panel, State } from "../parts.mjs";
import { Rows } from "../rows.mjs";
import { amount, count, namespaceOf } from "../words.mjs";
import { STATES, isUnasked } from "../bundles.mjs";
import { Bundle } from "./bundle.mjs";

const columnsWith = (loads) => [
  { title: "Bundle", cell: (row) => row.bundle, width: "minmax(0, 1.2fr)", kind: "name" },
  { title: "Namespace", cell: (row) => namespaceOf(row.bundle), width: "minmax(0, 0.8fr)", kind: "name", least_px: 1100 },
  { title: "State", cell: (row) => html`<${State} of=${row.state} unasked=${isUnasked(row)} />`, width: "6.5rem" },
  { title: "Owner → target", cell: (row) => `${row.owner ?? "–"}${row.target ? ` → ${row.target}` : ""}`, width: "minmax(0, 1fr)", kind: "name" },
  { title: "Msg/s", cell: (row) => amount(loads.get(row.bundle)?.rate_msg_s), width: "4.5rem", kind: "number", least_px: 560 },
  { title: "Bytes/s", cell: (row) => amount(loads.get(row.bundle)?.rate_bytes_s), width: "5rem", kind: "number", least_px: 760 },
  { title: "Revision", cell: (row) => row.revision, width: "4.5rem", kind: "number", least_px: 640 },
];

export function BundleView({ me, bundles, namespace, params }) {
  const version = useBundles(bundles, bundles.loading ? 500 : 100);
  const [wanted, setWanted] = useState({ text: params.q ?? "", state: params.state ?? "", owner: params.owner ?? "", order: "name" });
  const loads = useLoads(namespace);
  const filtering = wanted.state || wanted.owner;
  const items = useMemo(() => found(bundles, wanted, loads), [wanted, filtering ? version : bundles.shape, bundles.loading, wanted.order === "load" && loads]);
  const set = (name) => (event) => setWanted({ ...wanted, [name]: event.target.value });
  const pick = (bundle) => (location.hash = to("bundles", { bundle }));
  const brokers = usePoll("/v1/brokers", 30);
  const filters = html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="inline">Name <input type="search" value=${wanted.text} onInput=${set("text")} placeholder="tenant/namespace/range" /></label>
    <label class="inline">State <select value=${wanted.state} onChange=${set("state")}><option value="">all</option>
      ${STATES.map((state) => html`<option value=${state} key=${state}>${state} (${count(bundles.byState[state])})</option>`)}</select></label>
    <label class="inline">Owner <input list="owners" value=${wanted.owner} onInput=${set("owner")} /></label>
    <datalist id="owners">${brokers.data?.map((broker) => html`<option value=${broker.broker} key=${broker.broker} />`)}</datalist>
    <label class="inline">Order <select value=${wanted.order} onChange=${set("order")}><option value="name">by name</option><option value="load">hottest first</option></select></label>
    <span class="quiet" role="status">${count(items.length)} of ${count(bundles.rows.size)}${bundles.loading ? ", reading …" : ""}</span>
  </form>`;
  return html`<div class=${params.bundle ? "split opened" : ""}>
    <${Panel} title="Bundles" api="GET /v1/watch, GET /v1/bundles" className="tall">${filters}
      ${!bundles.loading && !bundles.rows.size && html`<${Empty} what="There are no bundles yet: each namespace has some." how="loadmanager namespaces create shop/orders --bundles 16" />`}
      <${Rows} label="Bundles" columns=${columnsWith(loads)} items=${items} of=${(name) => bundles.rows.get(name) ?? { bundle: name, state: "gone" }}
        picked=${params.bundle} pick=${pick} /><//>
    ${params.bundle && html`<${Bundle} key=${params.bundle} me=${me} bundles=${bundles} name=${params.bundle} brokers=${brokers.data ?? []} />`}
  </div>`;
}

function found(bundles, { text, state, owner, order }, loads) {
  const names = order === "load" ? [...loads.keys()].filter((name) => bundles.rows.has(name)) : bundles.names(), part = text.trim().toLowerCase(), whole = owner.trim();
  if (!part && !state && !whole) return names;
  return names.filter((name) => {
    if (part && !name.toLowerCase().includes(part)) return false;
    const row = bundles.rows.get(name);
    return row && (!state || row.state === state) && (!whole || row.owner === whole);
  });
}
