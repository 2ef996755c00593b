// Plans: propose, review, approve, run, cancel, undo; what a plan changes and what became of it.
import { html } from "../html.mjs";
import { ask } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { to, usePoll } from "../live.mjs";
import { whyNot } from "../may.mjs";
import { Action, Answer, Empty, Facts, Json, Missing, Panel, State, Table, Time, Usage } from "../parts.mjs";
import { percent } from "../words.mjs";
import { MoveTable } from "./decisions.mjs";

const EFFECTS = {
  approve: "The plan may run.",
  reject: "The plan does not run.",
  run: "The leader begins its moves, within the limits.",
  cancel: "No more of its moves begin; those under way are completed.",
  verify: "Compares the plan with the present; changes nothing.",
  undo: "Proposes a plan that moves its bundles back.",
  withdraw: "The leader undoes the plan at once.",
};

export function Plans({ me, params }) {
  const plans = usePoll("/v1/plans", 2);
  const pick = (plan) => (location.hash = to("plans", { id: plan.id }));
  const missing = whyNot(me, "operator");
  const propose = () => confirm({
    title: "Propose what the strategy would do now?",
    text: "The plan waits for approval; nothing moves before.",
    fields: [{ name: "reason", label: "Reason" }],
    verb: "Propose",
    does: async ({ reason }) => pick(await ask("POST", "/v1/plans", { body: { reason } })),
  });
  const unload = () => confirm({
    title: "Plan to move everything from a broker or out of a namespace?",
    text: "Give one of both. The plan waits for approval, then moves bundles in waves.",
    fields: [{ name: "broker", label: "Broker" }, { name: "namespace", label: "Namespace" }, { name: "to", label: "To (else lookups place them)" }, { name: "reason", label: "Reason" }],
    verb: "Propose",
    does: async (values) => {
      const given = Object.fromEntries(Object.entries(values).filter(([, value]) => value));
      pick(await ask("POST", "/v1/plans/unload", { body: { ...given, review: true } }));
    },
  });
  const controls = html`<${Action} label="Propose" does=${propose} missing=${missing} /> <${Action} label="Unload in waves" does=${unload} missing=${missing} />`;
  return html`<div class=${params.id ? "split opened even" : ""}>
    <${Panel} title="Plans" api="GET /v1/plans" controls=${controls}><${Answer} of=${plans}>${(rows) => html`<${Table} label="Plans"
      rows=${rows} none=${html`<${Empty} what="No plan was proposed." how="loadmanager plans propose" />`} pick=${pick} picked=${params.id} keyOf=${(plan) => plan.id} columns=${[
        ["Plan", (plan) => html`<a href=${to("plans", { id: plan.id })}>${plan.id}</a>`],
        ["State", (plan) => html`<${State} of=${plan.state} />`],
        ["Proposed", (plan) => html`<${Time} ms=${plan.proposed_ms} />`],
        ["By", (plan) => plan.author],
        ["What", (plan) => plan.what, "text"],
        ["Progress", (plan) => counted(plan.counts)],
      ]} />`}<//><//>
    ${params.id && html`<${Plan} key=${params.id} id=${params.id} me=${me} changed=${plans.reload} />`}
  </div>`;
}

const counted = (counts) => Object.entries(counts).map(([status, moves]) => `${moves} ${status}`).join(", ");

function Plan({ id, me, changed }) {
  const path = `/v1/plans/${encodeURIComponent(id)}`;
  const plan = usePoll(path, 1);
  const missing = whyNot(me, "operator");
  const act = (action) => () => confirm({
    title: `${action[0].toUpperCase()}${action.slice(1)} plan ${id}?`,
    text: EFFECTS[action] ?? "",
    fields: [{ name: "reason", label: "Reason" }],
    verb: action[0].toUpperCase() + action.slice(1),
    hurts: ["run", "withdraw"].includes(action),
    does: async ({ reason }) => {
      const answer = await ask("POST", `${path}/${action}`, { body: { reason } });
      if (answer.id !== id) location.hash = to("plans", { id: answer.id });
      plan.reload();
      changed();
    },
  });
  return html`<${Panel} title=${`Plan ${id}`} api=${`GET ${path}`} controls=${html`<a href=${to("plans")}>Close</a>`}><${Answer} of=${plan}>${(found) => html`
    <p class="answer">${found.what || found.reason}</p>
    <${Missing} role=${found.may.length ? missing : ""} /><p class="hands">${found.may.map((action) => html`<${Action} key=${action} label=${action[0].toUpperCase() + action.slice(1)} does=${act(action)} missing=${missing} />`)}</p>
    <${Facts} of=${[
      ["State", html`<${State} of=${found.state} />`], ["Kind", found.kind], ["Proposed", html`<${Time} ms=${found.proposed_ms} /> by ${found.author}`],
      ["Reason", found.reason], ["Waits for", found.waiting], ["Progress", counted(found.counts)],
      ["Spread", Object.keys(found.before.usages).length ? `${percent(found.before.spread)} → ${percent(found.predicted.spread)}` : ""],
      ["Certificate", found.certificate?.text], ["Undoes", found.undoes && html`<a href=${to("plans", { id: found.undoes })}>${found.undoes}</a>`],
    ]} />
    <${Brokers} plan=${found} />
    <h3>Moves</h3><${MoveTable} rows=${found.planned} />
    ${Object.keys(found.left_out).length > 0 && html`<h3>Left out</h3><${Facts} of=${Object.entries(found.left_out)} />`}
    ${found.steps.length > 0 && html`<h3>What was done to it</h3><ol class="story">${found.steps.map((step) => html`<li><${Time} ms=${step.at_ms} /> ${step.action} by ${step.author}${step.reason && `: ${step.reason}`}</li>`)}</ol>`}
    ${found.advice && html`<h3>Advice</h3><${Json} of=${found.advice} />`}`}<//><//>`;
}

function Brokers({ plan }) {
  const names = Object.keys(plan.before.usages);
  if (!names.length) return null;
  const actual = plan.verification?.actual?.usages;
  return html`<h3>Brokers</h3><${Table} label="Brokers before and after" rows=${names} columns=${[
    ["Broker", (name) => name, "name"],
    ["Before", (name) => html`<${Usage} value=${plan.before.usages[name]} />`],
    ["Predicted", (name) => html`<${Usage} value=${plan.predicted.usages[name]} />`],
    ...(actual ? [["Actual", (name) => html`<${Usage} value=${actual[name]} />`]] : []),
  ]} />`;
}
