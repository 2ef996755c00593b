// The timeline of decisions: every round, also those that did nothing; one of them with its moves and its refusals.
import { html, useState } from "../html.mjs";
import { ask, withQuery } from "../api.mjs";
import { to, usePoll } from "../live.mjs";
import { Action, Answer, Facts, Name, Panel, State, Table, Time } from "../parts.mjs";
import { percent } from "../words.mjs";

const PAGE = 100;

export function Decisions({ params }) {
  const newest = usePoll(`/v1/decisions?limit=${PAGE}`, 5);
  const [older, setOlder] = useState({ decisions: [], next: undefined });
  const read = async (cursor) => {
    const page = await ask("GET", withQuery("/v1/decisions", { limit: PAGE, cursor }));
    setOlder({ decisions: [...older.decisions, ...page.decisions], next: page.next });
  };
  const pick = (decision) => (location.hash = to("decisions", { id: decision.id }));
  return html`<div class=${params.id ? "split opened even" : ""}>
    <${Panel} title="Decisions" api="GET /v1/decisions"><${Answer} of=${newest}>${(page) => {
      const known = new Set(older.decisions.map((each) => each.offset));
      const rows = [...page.decisions.filter((each) => !known.has(each.offset)), ...older.decisions];
      const next = older.next === undefined ? page.next : older.next;
      return html`<${Table} label="Decisions" rows=${rows} pick=${pick} picked=${params.id} keyOf=${(each) => each.id} none="No round has run yet: the leader runs one every balancing_interval_s." columns=${[
        ["Round", (each) => html`<a href=${to("decisions", { id: each.id })}>${each.id}</a>`],
        ["When", (each) => html`<${Time} ms=${each.at_ms} />`],
        ["Moves", (each) => (each.moves ? `${each.begun} of ${each.moves}` : "–"), "number"],
        ["Spread", (each) => `${percent(each.spread_before)} → ${percent(each.spread_after)}`, "whole"],
        ["Reason", (each) => each.reason, "text"],
      ]} />${next !== null && next !== undefined && html`<p><${Action} label="Older" does=${() => read(next)} /></p>`}`;
    }}<//><//>
    ${params.id && html`<${Decision} id=${params.id} key=${params.id} />`}
  </div>`;
}

function Decision({ id }) {
  const path = `/v1/decisions/${encodeURIComponent(id)}`;
  const found = usePoll(path, 5);
  const [again, setAgain] = useState(null);
  const repeat = async () => setAgain(await ask("GET", `${path}/again`));
  return html`<${Panel} title=${`Decision ${id}`} api=${`GET ${path}`} controls=${html`<${Action} label="Decide again" does=${repeat} /> <a href=${to("decisions")}>Close</a>`}>
    <${Answer} of=${found}>${({ decision, ...round }) => html`
    <p class="answer">${decision.reason}</p>
    ${again && html`<p role="status">${again.same === null ? "It cannot be repeated" : again.same ? "The same input gives the same decision." : "The same input gives another decision now."}
      ${again.why ?? again.reason ?? ""}</p>`}
    <${Facts} of=${[
      ["When", html`<${Time} ms=${round.at_ms} />`], ["Leader", round.leader], ["Strategy", round.strategy],
      ["Seen", `${round.brokers} brokers, ${round.bundles} reported bundles`],
      ["Spread", `${percent(decision.spread_before)} → ${percent(decision.spread_after)}`],
      ["Certificate", decision.certificate?.text],
      ["Left out", Object.entries(decision.counts).map(([rule, bundles]) => `${rule}: ${bundles}`).join(", ")],
    ]} />
    <h3>Moves</h3>
    <${MoveTable} rows=${decision.moves} />
    <h3>Refused candidates</h3>
    <${Table} label="Refused candidates" none="none" rows=${decision.candidates} columns=${[
      ["Bundle", (each) => html`<${Name} of=${each.bundle} href=${to("bundles", { bundle: each.bundle })} />`, "name"],
      ["From", (each) => each.source ?? "", "name"],
      ["To", (each) => each.destination ?? "none", "name"],
      ["Why not", (each) => html`${each.rule}<p class="quiet">${each.detail}</p>`, "text"],
    ]} />
    <h3>Brokers and bundles that took no part</h3>
    <${Table} label="Brokers and bundles that took no part" none="none" rows=${decision.refused} columns=${[
      ["Which", (each) => html`<${Name} of=${each.subject} href=${addressOf(each.subject)} />`, "name"],
      ["Why", (each) => html`${each.rule}<p class="quiet">${each.detail}</p>`, "text"],
    ]} />`}<//><//>`;
}

const addressOf = (subject) => (subject.includes("/") ? to("bundles", { bundle: subject }) : to("overview", { broker: subject.split("#")[0] }));

/** Moves with the usage of both brokers before and after, as far as known. */
export function MoveTable({ rows }) {
  return html`<${Table} label="Moves" rows=${rows} none="none" columns=${[
    ["Bundle", (move) => html`<${Name} of=${move.bundle} href=${to("bundles", { bundle: move.bundle })} />`, "name"],
    ["From", (move) => html`<${End} broker=${move.source} before=${move.source_before} after=${move.source_after} />`, "name"],
    ["To", (move) => html`<${End} broker=${move.destination ?? "none"} before=${move.destination_before} after=${move.destination_after} />`, "name"],
    ["Outcome", (move) => html`<${State} of=${move.outcome} /> ${move.detail}<p class="quiet">${move.reason}</p>`, "text"],
  ]} />`;
}

function End({ broker, before, after }) {
  return html`<${Name} of=${broker} />${before !== undefined && before !== null && html`<br />${percent(before)} → ${percent(after)}`}`;
}
