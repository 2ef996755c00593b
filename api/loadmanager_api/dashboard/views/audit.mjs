// The audit log: who asked for which change, from where, before and after, and its result.
import { html, useState } from "../html.mjs";
import { ask, withQuery } from "../api.mjs";
import { usePoll } from "../live.mjs";
import { whyNot } from "../may.mjs";
import { Action, Answer, Facts, Json, Panel, Table, Time } from "../parts.mjs";

export function Audit({ me }) {
  const [wanted, setWanted] = useState({ by: "", namespace: "", action: "", result: "" });
  const [typed, setTyped] = useState(wanted);
  const forbidden = whyNot(me, "admin", wanted.namespace || null);
  const path = withQuery("/v1/audit", { ...wanted, limit: 100 });
  const page = usePoll(forbidden ? null : path, 5);
  const [open, setOpen] = useState(null);
  const [older, setOlder] = useState({ path: "", entries: [] });
  const read = async (cursor) => {
    const next = await ask("GET", withQuery("/v1/audit", { ...wanted, limit: 100, cursor }));
    setOlder({ path, entries: [...(older.path === path ? older.entries : []), ...next.entries], next: next.next });
  };
  const field = (name) => html`<label class="inline">${name} <input value=${typed[name]} onInput=${(event) => setTyped({ ...typed, [name]: event.target.value })} /></label>`;
  const submit = (event) => {
    event.preventDefault();
    setWanted(typed);
  };
  return html`<div class=${open ? "split opened" : ""}><${Panel} title="Audit log" api="GET /v1/audit">
    <form class="filters" role="search" onSubmit=${submit}>${field("by")}${field("namespace")}${field("action")}
      <label class="inline">result <select value=${typed.result} onChange=${(event) => setTyped({ ...typed, result: event.target.value })}>
        ${["", "done", "refused", "failed"].map((result) => html`<option value=${result} key=${result}>${result || "all"}</option>`)}</select></label>
      <button type="submit">Show</button></form>
    ${forbidden
      ? html`<p class="error">${forbidden}. Name a namespace in which you are.</p>`
      : html`<${Answer} of=${page}>${(found) => {
          const more = older.path === path ? older : { entries: [], next: found.next };
          const known = new Set(more.entries.map((each) => each.offset));
          return html`<${Table} label="Audit log" rows=${[...found.entries.filter((each) => !known.has(each.offset)), ...more.entries]} keyOf=${(each) => each.id} picked=${open?.id} pick=${setOpen} none="No entry fits. Each change by REST, the command line or this page makes one." columns=${[
            ["When", (each) => html`<${Time} ms=${each.at_ms} />`],
            ["Who", (each) => html`<button type="button" class="link" onClick=${() => setOpen(each)}>${each.principal}${each.how === "unverified" ? " ?" : ""}</button>`],
            ["From", (each) => each.address, "name"], ["Action", (each) => each.action], ["About", (each) => each.about, "name"],
            ["Result", (each) => html`<span class=${`tag ${each.result === "done" ? "good" : "bad"}`}>${each.result}</span> ${each.detail}`, "text"],
          ]} />${more.next !== null && more.next !== undefined && html`<p><${Action} label="Older" does=${() => read(more.next)} /></p>`}`;
        }}<//>`}<//>
    ${open && html`<${Panel} title=${`${open.action} by ${open.principal}`} controls=${html`<${Action} label="Close" does=${() => setOpen(null)} />`}>
      <${Facts} of=${[["When", html`<${Time} ms=${open.at_ms} />`], ["Proven by", open.how], ["Address", open.address], ["Asked broker", open.broker], ["About", open.about], ["Status", open.status], ["Detail", open.detail]]} />
      <h3>Asked</h3><${Json} of=${open.asked} /><h3>Before</h3><${Json} of=${open.before} /><h3>After</h3><${Json} of=${open.after} /><//>`}
  </div>`;
}
