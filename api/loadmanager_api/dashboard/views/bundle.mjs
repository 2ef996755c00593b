// One bundle: its place, transfer, unload, split and cancel by hand, why it is there, and its records.
import { html } from "../html.mjs";
import { ask, inPath, withQuery } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { to, usePoll } from "../live.mjs";
import { whyNot } from "../may.mjs";
import { Action, Answer, Facts, Missing, Panel, State, Table, Time } from "../parts.mjs";
import { amount, namespaceOf, rangeOf } from "../words.mjs";
import { SETTLED, isUnasked } from "../bundles.mjs";
import { WhyBundle } from "./why.mjs";

export function Bundle({ me, bundles, name, brokers }) {
  const row = bundles.rows.get(name);
  const path = `/v1/bundles/${inPath(name)}`;
  const close = html`<a href=${to("bundles")}>Close</a>`;
  if (!row) return html`<${Panel} title=${name} controls=${close}><p>${bundles.loading ? "reading …" : "This bundle does not exist now."}</p><//>`;
  return html`<div>
    <${Panel} title=${name} api=${`GET ${path}`} controls=${close}>
      <${Facts} of=${[
        ["State", html`<${State} of=${row.state} unasked=${isUnasked(row)} />`], ["Owner", row.owner && `${row.owner}#${row.incarnation}`], ["Target", row.target],
        ["Partition", row.partition], ["Revision", row.revision], ["Fencing token", row.token],
      ]} />
      <${Hands} me=${me} row=${row} brokers=${brokers} />
    <//>
    <${WhyBundle} bundle=${name} version=${row.revision} />
    <${Load} path=${path} revision=${row.revision} />
    <${Records} path=${`${path}/history`} revision=${row.revision} />
  </div>`;
}

function Hands({ me, row, brokers }) {
  const namespace = namespaceOf(row.bundle), range = rangeOf(row.bundle);
  const missing = whyNot(me, "operator", namespace);
  const unload = `/admin/v2/namespaces/${inPath(namespace)}/${range}/unload`, own = `/v1/bundles/${inPath(row.bundle)}`;
  const others = brokers.filter((broker) => broker.live && !broker.draining && broker.broker !== row.owner).map((broker) => [broker.broker]);
  const transfer = () => confirm({
    title: `Transfer ${row.bundle}?`,
    text: `It leaves ${row.owner ?? "no broker"}; requests wait until the new owner has it.`,
    fields: [{ name: "to", label: "New owner", options: others, required: true, value: others[0]?.[0] }],
    verb: "Transfer",
    does: ({ to: destinationBroker }) => ask("PUT", withQuery(unload, { destinationBroker })),
  });
  const other = (title, text, verb, method, path, body) => () => confirm({ title, text, verb, hurts: true, does: () => ask(method, path, { body }) });
  const moving = !SETTLED.has(row.state);
  if (missing) return html`<${Missing} role=${missing} />`;
  return html`<p class="hands">
    <${Action} label="Transfer" does=${transfer} forbidden=${moving ? "it is on its way" : ""} />
    <${Action} label="Unload" forbidden=${row.state === "assigned" ? "" : "no broker serves it"}
      does=${other(`Unload ${row.bundle}?`, "It has no owner until the next lookup chooses one.", "Unload", "PUT", unload)} />
    <${Action} label="Split" forbidden=${row.state === "assigned" ? "" : "no broker serves it"}
      does=${other(`Split ${row.bundle}?`, "It becomes two bundles of equal ranges.", "Split", "POST", `${own}/split`, {})} />
    ${moving && html`<${Action} label="Cancel"
      does=${other(`Cancel what ${row.bundle} does?`, "Its transfer or split is called off, if it is not too late.", "Call off", "POST", `${own}/cancel`)} />`}
  </p>`;
}

function Load({ path, revision }) {
  const detail = usePoll(path, 0, revision);
  return html`<${Panel} title="Load" api=${`GET ${path}`}><${Answer} of=${detail}>${({ load, waits }) => (waits
    ? html`<p><span class="tag bad">waits</span> ${waits}</p>`
    : load
    ? html`<${Facts} of=${[
        ["Messages in", amount(load.in_rate_msg_s, "/s")], ["Messages out", amount(load.out_rate_msg_s, "/s")],
        ["Bytes in", amount(load.in_rate_bytes_s, "B/s")], ["Bytes out", amount(load.out_rate_bytes_s, "B/s")],
        ["Keys", amount(load.keys)], ["Sessions", amount(load.sessions)], ["As of", html`<${Time} ms=${load.sampled_ms} />`],
      ]} />`
    : html`<p class="quiet">It is not among the hottest bundles that its owner reports.</p>`)}<//><//>`;
}

function Records({ path, revision }) {
  const records = usePoll(`${path}?limit=50`, 0, revision);
  return html`<${Panel} title="Records" api=${`GET ${path}`}><${Answer} of=${records}>${(found) => html`<${Table}
    label="Records" rows=${found.entries} keyOf=${(entry) => entry.offset} columns=${[
      ["When", (entry) => html`<${Time} ms=${entry.written_ms ?? entry.appended_ms} />`],
      ["Action", (entry) => entry.action],
      ["By", (entry) => `${entry.actor} (${entry.role})`, "name"],
      ["Became", (entry) => (entry.accepted ? `${entry.after ?? "gone"}${entry.owner ? `, ${entry.owner}` : ""}` : `refused: ${entry.refused} ${entry.detail}`), "text"],
      ["Reason", (entry) => entry.reason, "text"],
    ]} />`}<//><//>`;
}
