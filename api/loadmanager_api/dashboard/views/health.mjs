// What is wrong, worst first, each with its reason and its remedy: as the asked broker's `/v1/health` says it.
import { html } from "../html.mjs";
import { to, useNow } from "../live.mjs";
import { Answer, Name, Panel, Time } from "../parts.mjs";
import { lasting } from "../words.mjs";

/** The findings that are errors and those that are not, of an answer that may not be there yet. */
export const errorsOf = (health) => (health.data ?? []).filter((each) => each.severity === "error");

export function Health({ me, health }) {
  const found = health.data ?? [];
  return html`<${Panel} title="What is wrong" api="GET /v1/health" className=${errorsOf(health).length ? "wrong" : ""}><${Answer} of=${health}>${() => (found.length
    ? html`<ul class="findings">${found.map((each) => html`<${Finding} key=${`${each.subject} ${each.found}`} of=${each} />`)}</ul>`
    : html`<p><span class="tag good">nothing</span> <span class="quiet">as ${me.broker} sees the cluster</span></p>`)}<//><//>`;
}

function Finding({ of }) {
  const now_ms = useNow(5), others = of.names.filter((name) => !of.found.includes(name));
  return html`<li class=${of.severity}>
    <p class="answer">${withLinks(of.found, of.names)}${of.since_ms && html` <span class="quiet">since <${Time} ms=${of.since_ms} />, ${lasting(Math.max(0, now_ms - of.since_ms))}</span>`}</p>
    ${of.why && html`<p>${of.why}</p>`}
    ${of.advice && html`<p class="advice">→ ${withCommands(of.advice)}</p>`}
    ${others.length > 0 && html`<p class="names">${others.map((name) => html`<${Name} key=${name} of=${name} href=${addressOf(name)} />`)}</p>`}
  </li>`;
}

/** Text in which commands are marked as such: each goes to the next comma or semicolon. */
const withCommands = (text) => text.split(/(\bloadmanager [^;,]+)/).map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** Text in which the names are links. */
function withLinks(text, names) {
  const name = names.find((each) => text.includes(each));
  if (!name) return text;
  const at = text.indexOf(name);
  return html`${withLinks(text.slice(0, at), names)}<${Name} of=${name} href=${addressOf(name)} />${withLinks(text.slice(at + name.length), names)}`;
}

/** A bundle, a namespace or a broker, by the number of its parts. */
function addressOf(name) {
  const parts = name.split("/").length;
  return parts > 2 ? to("bundles", { bundle: name }) : parts === 2 ? to("bundles", { q: name }) : to("overview", { broker: name });
}
