// Policy documents: read, try a change (what would move), write it, delete it; their history.
import { html, useEffect, useState } from "../html.mjs";
import { ask, inPath, withQuery } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { to, usePoll } from "../live.mjs";
import { whyNot } from "../may.mjs";
import { Action, Answer, Empty, Json, Missing, Name, Panel, Table, Time } from "../parts.mjs";
import { count, namespaceOf } from "../words.mjs";

const KINDS = ["namespace", "bundle", "broker", "isolation", "failure-domain", "cluster", "access"];

export function Policies({ me, params }) {
  const policies = usePoll("/v1/policies", 5);
  const add = () => confirm({
    title: "Which policy?",
    text: "Nothing is written before you try and save it.",
    fields: [{ name: "kind", label: "Kind", options: KINDS.map((kind) => [kind]), required: true, value: "namespace" }, { name: "name", label: "Name: a namespace, bundle, broker …", required: true }],
    verb: "Open",
    does: async ({ kind, name }) => (location.hash = to("policies", { kind, name })),
  });
  return html`<div class=${params.name ? "split opened even" : ""}>
    <${Panel} title="Policies" api="GET /v1/policies" controls=${html`<${Action} label="Another" does=${add} missing=${me.roles.some((held) => held.role === "admin") ? "" : whyNot(me, "admin")} />`}><${Answer} of=${policies}>${(found) => html`<${Table}
      label="Policies" rows=${found.policies} none=${html`<${Empty} what="There is no policy: the settings of the brokers alone count." how=${`loadmanager policies set namespace shop/orders '{"weight": 2}'`} />`} keyOf=${(each) => `${each.kind}/${each.name}`} picked=${`${params.kind}/${params.name}`}
      pick=${({ kind, name }) => (location.hash = to("policies", { kind, name }))} columns=${[
        ["Kind", (each) => each.kind],
        ["Name", (each) => html`<${Name} of=${each.name} href=${to("policies", { kind: each.kind, name: each.name })} />`, "name"],
        ["Version", (each) => each.version, "number"],
        ["Says", (each) => html`<code>${JSON.stringify(each.policy)}</code>`, "text"],
        ["By", (each) => html`${each.author}, <${Time} ms=${each.at_ms} />`],
      ]} />`}<//><//>
    ${params.name && html`<${Document} key=${`${params.kind}/${params.name}`} me=${me} kind=${params.kind} name=${params.name} changed=${policies.reload} />`}
  </div>`;
}

function Document({ me, kind, name, changed }) {
  const path = `/v1/policies/${kind}/${inPath(name)}`;
  const history = usePoll(`${path}/history`, 5); // 404 for one that was never written
  const [{ text, seen }, setDraft] = useState({ text: null, seen: 0 });
  const [tried, setTried] = useState(null);
  const present = history.data?.at(-1), version = present?.version ?? 0;
  const take = () => setDraft({ text: JSON.stringify(present?.policy ?? {}, null, 2), seen: version });
  useEffect(() => {
    if (text === null && (history.data || history.error)) take();
  }, [history.data, history.error, text]);
  const about = kind === "namespace" && name.split("/").length === 2 ? name : kind === "bundle" ? namespaceOf(name) : null;
  const missing = whyNot(me, "admin", about);
  const attempt = async (method) => setTried({ method, ...(await ask(method, withQuery(path, { dry_run: true }), method === "PUT" ? { body: document(text) } : {})) });
  const write = (method, verb) => () => confirm({
    title: `${verb} ${kind} ${name}?`,
    text: "Bundles that it makes misplaced move, within the limits of the rounds. Try it first to see which.",
    fields: [{ name: "reason", label: "Reason" }],
    verb, hurts: true,
    does: async ({ reason }) => {
      history.reload(); // a refusal may be by a version that is not shown yet
      const written = await ask(method, withQuery(path, { reason, seen }), method === "PUT" ? { body: document(text) } : {});
      setTried(null);
      setDraft({ text: method === "PUT" ? text : "{}", seen: written.version });
      history.reload();
      changed();
    },
  });
  return html`<${Panel} title=${`${kind} ${name}`} api=${`PUT ${path}?dry_run=true`} controls=${html`<a href=${to("policies")}>Close</a>`}>
    <label class="document">Document, as JSON<textarea rows="10" readonly=${Boolean(missing)} spellcheck=${false} value=${text ?? ""} onInput=${(event) => setDraft({ text: event.target.value, seen })}></textarea></label>
    ${text !== null && version > seen && html`<div role="alert" class="tried"><p>${present.author} wrote version ${version} meanwhile; your text began as version ${seen}, and is not saved over theirs.</p>
      <p class="hands"><${Action} label=${`Take version ${version}`} does=${take} /> <${Action} label="Keep my text" does=${() => setDraft({ text, seen: version })} /></p></div>`}
    <${Missing} role=${missing} /><p class="hands">
      <${Action} label="Dry run" does=${() => attempt("PUT")} missing=${missing} />
      <${Action} label="Save" kind="main" does=${write("PUT", "Save")} missing=${missing} />
      ${present?.policy && html`<${Action} label="Dry run of a delete" does=${() => attempt("DELETE")} missing=${missing} />
        <${Action} label="Delete" kind="hurts" does=${write("DELETE", "Delete")} missing=${missing} />`}
    </p>
    ${tried && html`<${Tried} of=${tried} />`}
    <h3>History</h3>
    <${Table} label="History" rows=${[...(history.data ?? [])].reverse()} none="It was never written." columns=${[
      ["Version", (each) => each.version, "number"], ["When", (each) => html`<${Time} ms=${each.at_ms} />`], ["By", (each) => each.author],
      ["Reason", (each) => each.reason, "text"], ["Said", (each) => html`<code>${each.policy ? JSON.stringify(each.policy) : "deleted"}</code>`, "text"],
    ]} /><//>`;
}

function document(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}

function Tried({ of }) {
  const { preview } = of;
  return html`<div role="status" class="tried"><h3>Dry run${of.method === "DELETE" ? " of a delete" : ""}: nothing was written</h3>
    <p>${count(preview.misplaced_total)} bundles would have to move; the next round would begin ${preview.moves.length} of these moves. ${preview.reason}</p>
    ${[...of.notes, ...of.forced].map((note) => html`<p>${note}</p>`)}
    <${Table} label="Moves of the next round" rows=${preview.moves} none="no move by a rule" columns=${[
      ["Bundle", (move) => move.bundle, "name"], ["From → to", (move) => `${move.source} → ${move.destination ?? "none"}`, "name"], ["Reason", (move) => move.reason, "text"],
    ]} />
    ${preview.misplaced.length > 0 && html`<details><summary>Misplaced bundles</summary><${Json} of=${preview.misplaced} /></details>`}</div>`;
}
