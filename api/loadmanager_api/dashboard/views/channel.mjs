// The channel as the asked broker has it, its proofs, what it refused, its notes.
import { html } from "../html.mjs";
import { usePoll } from "../live.mjs";
import { Answer, Facts, Panel, Table, Time } from "../parts.mjs";
import { count, lasting } from "../words.mjs";

export function Channel({ me }) {
  const channel = usePoll("/v1/channel", 3), notes = usePoll("/v1/notes?limit=50", 5);
  return html`<div class="split"><div>
    <${Panel} title=${`Channel, as ${me.broker} has it`} api="GET /v1/channel"><${Answer} of=${channel}>${(found) => html`
      <${Problems} of=${found} />
      <${Facts} of=${[
        ["Coordination", found.connection], ["Safe mode", found.safe_mode ?? "off"], ["Leader", found.leader ?? "none"],
        ["Namespaces", count(found.namespaces)], ["Accepted records", count(found.accepted)], ["Publishes in flight", count(found.publishes_in_flight)],
        ["Failed appends", count(found.append_failures)], ["Skipped entries", count(found.skipped)], ["Reloads", count(found.reloads)],
        ["Refused records", Object.entries(found.refused).map(([reason, records]) => `${reason}: ${records}`).join(", ") || "none"],
        ["Readers", found.readers.join(", ") || "none"], ["Identity", `${found.identity}, generation ${found.generation}`],
        ["A proof lasts", found.agreement && lasting(1000 * found.agreement.proof_validity_s)],
        ["Coordination root", found.agreement?.root],
      ]} />
      <h3>Partitions</h3>
      <${Table} label="Partitions" rows=${found.partitions} columns=${[
        ["Partition", (each) => each.partition, "number"],
        ["Proof", (each) => html`<${Proof} left_s=${each.proof_left_s} />`],
        ["Lag", (each) => (each.lag === null ? "log does not answer" : count(each.lag)), "number"],
        ["Offsets", (each) => `${each.begin ?? "?"} … ${each.next_offset}`, "number"],
        ["Term", (each) => `${each.epoch} of ${each.leader ?? "none"}`, "name"],
        ["Snapshots by", (each) => each.owner ?? "none", "name"],
        ["Newest snapshot", (each) => (each.snapshots?.length ? html`<${Time} ms=${each.snapshots[0].at_ms} />, ${count(each.snapshots[0].bundles)} bundles` : "none")],
      ]} />`}<//><//></div>
    <${Panel} title="Notes of this broker" api="GET /v1/notes"><${Answer} of=${notes}>${(found) => html`<ol class="story">
      ${found.notes.map((note) => html`<li><${Time} ms=${note.at_ms} /> ${note.text}</li>`)}</ol>`}<//><//>
  </div>`;
}

function Problems({ of }) {
  const found = [of.stopped_by && `The replica has stopped: ${of.stopped_by}`, of.log_problem, of.last_error && `Last error: ${of.last_error}`].filter(Boolean);
  return found.length ? html`<div role="alert" class="error">${found.map((each) => html`<p>${each}</p>`)}</div>` : null;
}

function Proof({ left_s }) {
  if (left_s === null || left_s === undefined) return html`<span class="quiet">none</span>`;
  return left_s > 0 ? html`<span class="tag good">good for ${left_s.toFixed(1)} s</span>` : html`<span class="tag bad">expired</span>`;
}
