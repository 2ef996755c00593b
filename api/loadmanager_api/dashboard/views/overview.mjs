// The cluster at a glance: figures, the heat map, brokers, moves.
import { html, useMemo } from "../html.mjs";
import { ask } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { HeatMap } from "../heat.mjs";
import { to, useBundles, usePoll } from "../live.mjs";
import { may, whyNot } from "../may.mjs";
import { Action, Answer, Panel, Time } from "../parts.mjs";
import { count, percent, unaskedToo } from "../words.mjs";
import { SETTLED } from "../bundles.mjs";
import { Brokers } from "./brokers.mjs";
import { Health } from "./health.mjs";
import { Moves } from "./moves.mjs";
import { WhyBroker } from "./why.mjs";

export function Overview({ me, bundles, health, params, theme }) {
  const usage = usePoll("/v1/usage", 5), brokers = usePoll("/v1/brokers", 5), balancing = usePoll("/v1/balancing", 5);
  const pick = (broker) => (location.hash = to("overview", { broker }));
  return html`
    ${may(me, "viewer") && html`<${Health} me=${me} health=${health} />`}
    <${Figures} me=${me} bundles=${bundles} brokers=${brokers.data} balancing=${balancing} />
    <div class=${params.broker ? "split opened" : "split"}>
      <div>
        <${Panel} title="Usage over time" api="GET /v1/usage"><${Answer} of=${usage}>
          ${(data) => html`<${HeatMap} usage=${data} pick=${pick} theme=${theme} />`}<//><//>
        <${Panel} title="Brokers" api="GET /v1/brokers"><${Answer} of=${brokers}>
          ${(data) => html`<${Brokers} me=${me} brokers=${data} balancing=${balancing.data} picked=${params.broker} pick=${pick} reload=${brokers.reload} />`}<//><//>
      </div>
      <div>
        ${params.broker && html`<${WhyBroker} broker=${params.broker} />`}
        <${Moves} me=${me} bundles=${bundles} />
      </div>
    </div>`;
}

function Figures({ me, bundles, brokers, balancing }) {
  useBundles(bundles, 200);
  const moving = Object.entries(bundles.byState).filter(([state]) => !SETTLED.has(state)).reduce((sum, [, of]) => sum + of, 0);
  const live = brokers?.filter((broker) => broker.live).length, now = balancing.data;
  const unowned = bundles.byState.unassigned - bundles.unasked;
  const leader = useMemo(() => brokers?.find((broker) => broker.leader)?.broker, [brokers]);
  return html`<dl class="figures">
    <div><dt>Brokers</dt><dd class=${brokers && live < brokers.length ? "error" : ""}>${brokers ? `${live} of ${brokers.length} live` : "–"}</dd></div>
    <div><dt>Leader</dt><dd class=${brokers && !leader ? "error" : ""}>${leader ?? (brokers ? "none" : "–")}</dd></div>
    <div><dt>Bundles</dt><dd id="bundle-count">${count(bundles.rows.size)}${bundles.loading ? " …" : ""}</dd></div>
    <div><dt>Without owner</dt><dd class=${unowned ? "error" : ""} title=${unaskedToo(bundles.unasked)}>${count(unowned)}</dd></div>
    <div><dt>Moving</dt><dd>${count(moving)}</dd></div>
    ${now && html`
      <div><dt>Spread</dt><dd title="fullest broker over the mean, less one">${percent(now.spread)}, ${percent(now.tolerance)} allowed</dd></div>
      <div><dt>Balancing</dt><dd class=${now.paused.cluster ? "warn" : ""}>${wordFor(now)} <${Pause} me=${me} paused=${now.paused} reload=${balancing.reload} /></dd></div>
      <div class="wide"><dt>Last round</dt><dd>${now.last ? html`<a href=${to("decisions", { id: now.last.id })}>${now.last.id}</a> <${Time} ms=${now.last.at_ms} />: ${now.last.reason}` : "none yet"}</dd></div>`}
  </dl>`;
}

function wordFor(now) {
  if (!now.balancing) return "off";
  if (now.paused.cluster) return `paused${now.paused.reason ? `: ${now.paused.reason}` : ""}`;
  return now.review ? "on, moves wait for approval" : "on";
}

function Pause({ me, paused, reload }) {
  const verb = paused.cluster ? "Resume" : "Pause";
  const does = () => confirm({
    title: `${verb} balancing of the cluster?`,
    text: paused.cluster ? "The leader decides moves again." : "The leader begins no more moves; those under way are completed.",
    fields: [{ name: "reason", label: "Reason" }],
    verb,
    does: async (values) => {
      await ask("POST", `/v1/balancing/${verb.toLowerCase()}`, { body: { reason: values.reason } });
      reload();
    },
  });
  return html`<${Action} label=${verb} does=${does} missing=${whyNot(me, "operator")} />`;
}
