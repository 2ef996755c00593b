// The list of brokers with their load, and drains by hand.
import { html, useMemo } from "../html.mjs";
import { ask } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { useNow } from "../live.mjs";
import { whyNot } from "../may.mjs";
import { Action, Usage } from "../parts.mjs";
import { Rows } from "../rows.mjs";
import { amount, count, lasting } from "../words.mjs";

const MOST_PX = 420;
const USAGE = "Usage: the fullest of a broker's resources, CPU among them, by weight and capacity; the mark is the limit of balancing. CPU: measured, without weight.";

/** Whether it needs attention: such brokers come first. */
const ailing = (broker) => Number(!broker.live || !broker.registered || Boolean(broker.suspected || broker.unfit || broker.behind));

export function Brokers({ me, brokers, balancing, picked, pick, reload }) {
  const now_ms = useNow(5);
  const byName = useMemo(() => new Map([...brokers].sort((one, other) => ailing(other) - ailing(one)).map((broker) => [`${broker.broker}#${broker.incarnation}`, broker])), [brokers]);
  const limit = balancing && limitOf(balancing);
  const columns = [
    { title: "Broker", cell: (broker) => broker.broker, width: "minmax(0, 1.6fr)", kind: "name" },
    { title: "Usage", help: USAGE, cell: (broker) => html`<${Usage} value=${balancing?.usages[broker.broker]} limit=${limit} />`, width: "10rem", narrow: "6.9rem" },
    { title: "Bundles", cell: (broker) => count(broker.bundles), width: "4.3rem", kind: "number" },
    { title: "CPU", cell: (broker) => (broker.live && broker.load ? `${broker.load.cpu_percent?.toFixed(0) ?? 0} %` : "–"), width: "3rem", kind: "number", least_px: 620 },
    { title: "Msg/s", cell: (broker) => amount(broker.live && broker.load ? (broker.load.in_rate_msg_s ?? 0) + (broker.load.out_rate_msg_s ?? 0) : null), width: "4.2rem", kind: "number", least_px: 680 },
    { title: "Bytes/s", cell: (broker) => amount(broker.live && broker.load ? (broker.load.in_rate_bytes_s ?? 0) + (broker.load.out_rate_bytes_s ?? 0) : null), width: "4.5rem", kind: "number", least_px: 760 },
    { title: "Condition", cell: (broker) => condition(broker, now_ms), width: "minmax(7rem, 1fr)" },
    { title: "", cell: (broker) => html`<${Drain} me=${me} broker=${broker} reload=${reload} />`, width: "4.8rem" },
  ];
  return html`<${Rows} most_px=${MOST_PX} label="Brokers" columns=${columns} items=${[...byName.keys()]} of=${(key) => byName.get(key)}
    picked=${[...byName.keys()].find((key) => key.startsWith(`${picked}#`))} pick=${(key) => pick(byName.get(key).broker)} />
    <p class="quiet">${USAGE}</p>`;
}

function limitOf(balancing) {
  const usages = Object.values(balancing.usages);
  return usages.length ? (usages.reduce((sum, each) => sum + each, 0) / usages.length) * (1 + balancing.tolerance) : undefined;
}

function condition(broker, now_ms) {
  const words = [];
  if (broker.leader) words.push(html`<span class="tag">leader</span>`);
  if (!broker.registered) words.push(html`<span class="tag bad">${broker.gone_ms ? `dead for ${lasting(Math.max(0, now_ms - broker.gone_ms))}` : "gone"}</span>`);
  else if (broker.suspected) words.push(html`<span class="tag bad" title=${broker.suspected}>suspected</span>`);
  else if (!broker.live) words.push(html`<span class="tag bad">not live</span>`);
  if (broker.unfit) words.push(html`<span class="tag bad" title=${broker.unfit}>unfit</span>`);
  if (broker.behind) words.push(html`<span class="tag bad" title="It cannot read the log, and gets no bundles.">behind</span>`);
  if (broker.draining) words.push(html`<span class="tag">${broker.bundles ? `draining, ${broker.bundles} left` : "drained"}</span>`);
  return words.length ? words : html`<span class="quiet">serves</span>`;
}

function Drain({ me, broker, reload }) {
  if (!broker.registered) return null;
  const path = `/v1/brokers/${encodeURIComponent(broker.broker)}/drain?by_policy=true`;
  const does = () => confirm({
    title: broker.draining ? `End the drain of ${broker.broker}?` : `Drain ${broker.broker}?`,
    text: broker.draining
      ? "The broker takes bundles again. Bundles that have left stay where they are."
      : `Its ${count(broker.bundles)} bundles move to other brokers, within the limits of the leader's rounds, and it takes no more until you end the drain, even after a restart.`,
    verb: broker.draining ? "End the drain" : "Drain",
    hurts: !broker.draining,
    does: async () => {
      await ask(broker.draining ? "DELETE" : "PUT", path);
      reload();
    },
  });
  return html`<${Action} label=${broker.draining ? "Undrain" : "Drain"} does=${does} missing=${whyNot(me, "operator")} />`;
}
