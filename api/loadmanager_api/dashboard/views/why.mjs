// The why-panel: why a bundle is where it is, what kept it there, what would move it; and the same for a broker.
import { html } from "../html.mjs";
import { to, usePoll } from "../live.mjs";
import { inPath } from "../api.mjs";
import { Answer, Facts, Name, Panel, Table, Time, Usage } from "../parts.mjs";
import { amount, percent } from "../words.mjs";

export function WhyBundle({ bundle, version }) {
  const path = `/v1/explain/bundles/${inPath(bundle)}`;
  const why = usePoll(path, 0, version);
  return html`<${Panel} title="Why is it there?" api=${`GET ${path}`}><${Answer} of=${why}>${(found) => html`
    <p class="answer">${found.answer}</p>
    <${Round} of=${found.round} />
    <h3>How it came there</h3>
    <ol class="story">${found.because.map((step) => html`<li><${Time} ms=${step.at_ms} /> ${step.text}${step.reason && `: ${step.reason}`}</li>`)}</ol>
    <${Reasons} title="Why it stays" of=${found.obstacles} />
    <h3>It would move if</h3>
    ${found.changes.length
      ? html`<ul>${found.changes.map((change) => html`<li>${change.change} → ${change.goes_to || "that alone would not move it"}</li>`)}</ul>`
      : html`<p class="quiet">no single change that was tried would move it</p>`}
    <h3>Where it might go</h3>
    <${Table} label="Where it might go" rows=${found.targets} none="no broker may take it" columns=${[
      ["Broker", (target) => target.broker, "name"],
      ["Before", (target) => html`<${Usage} value=${target.usage} />`],
      ["After", (target) => html`<${Usage} value=${target.after} />`],
      ["", (target) => target.rule || "may take it", "text"],
    ]} />
    <${Loads} of=${found.loads} />
    ${found.policies.length > 0 && html`<h3>Policies</h3><ul>${found.policies.map((policy) => html`<li>${text(policy)}</li>`)}</ul>`}
    ${found.notes.map((note) => html`<p class="quiet">${text(note)}</p>`)}`}<//><//>`;
}

export function WhyBroker({ broker }) {
  const path = `/v1/explain/brokers/${encodeURIComponent(broker)}`;
  const why = usePoll(path, 10);
  return html`<${Panel} title=${`Why does ${broker} have what it has?`} api=${`GET ${path}`}
      controls=${html`<a href=${to("overview")}>Close</a>`}><${Answer} of=${why}>${(found) => html`
    <p class="answer">${found.answer}</p>
    <${Round} of=${found.round} />
    <${Reasons} title="Why nothing more was taken from it" of=${found.not_taken ?? []} />
    <${Reasons} title="Why nothing more was given to it" of=${found.not_given ?? []} />
    <${Loads} of=${found.loads} />
    <h3>Its hottest bundles</h3>
    <${Table} label="Its hottest bundles" rows=${found.held} columns=${[
      ["Bundle", (held) => html`<${Name} of=${held.bundle} href=${to("bundles", { bundle: held.bundle })} />`, "name"],
      ["Share", (held) => percent(held.usage), "number"],
      ["Why it stays", (held) => held.sentence, "text"],
    ]} />`}<//><//>`;
}

function Round({ of }) {
  if (!of) return html`<p class="quiet">No round has decided yet.</p>`;
  return html`<p>Round <a href=${to("decisions", { id: of.id })}>${of.id}</a> of ${of.leader}, <${Time} ms=${of.at_ms} />, ${of.strategy}: ${of.reason}</p>`;
}

function Reasons({ title, of }) {
  if (!of.length) return null;
  return html`<h3>${title}</h3><ul>${of.map((reason) => html`<li>${reason.sentence}
    ${reason.lifted_by?.length > 0 && html`<ul class="quiet">${reason.lifted_by.map((each) => html`<li>${each}</li>`)}</ul>`}</li>`)}</ul>`;
}

function Loads({ of }) {
  if (!of?.length) return null;
  return html`<h3>Its load</h3><${Facts} of=${of.map((load) => [load.resource,
    `${amount(load.load)} ${load.unit}${load.usage === null ? "" : `, ${percent(load.usage)}`}`])} />`;
}

const text = (of) => (typeof of === "string" ? of : (of.text ?? of.sentence ?? JSON.stringify(of)));
