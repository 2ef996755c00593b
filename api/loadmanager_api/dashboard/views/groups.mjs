// Consumer groups: their members and partitions, what waits for them, and their rebalances.
import { html, useEffect, useState } from "../html.mjs";
import { inPath, request, withQuery } from "../api.mjs";
import { to, usePoll } from "../live.mjs";
import { Answer, Failed, Facts, Panel, Table, Time } from "../parts.mjs";
import { Rows } from "../rows.mjs";
import { count, lasting } from "../words.mjs";

const MOST = 1000;
const BROKER = "X-Broker";

export function Groups({ me, params }) {
  const [text, setText] = useState("");
  const [all, setAll] = useState(false);
  const groups = usePoll(withQuery("/v1/groups", { coordinated: all ? null : "true", limit: MOST }), 5);
  const pick = (group) => (location.hash = to("groups", { group }));
  const kinds = new Map(groups.data?.map((each) => [each.group, each]));
  const part = text.trim().toLowerCase();
  const items = [...kinds.keys()].filter((name) => name.toLowerCase().includes(part));
  const columns = [
    { title: "Group", cell: (_, name) => name, width: "minmax(0, 4fr)", kind: "name" },
    { title: "Coordinated by", cell: (each) => (each?.coordinated ? "brokers" : "Kafka"), width: "minmax(7rem, 1fr)" },
  ];
  return html`<div class=${params.group ? "split opened even" : ""}>
    <${Panel} title="Consumer groups" api="GET /v1/groups"><form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
        <label class="inline">Name <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="tenant/namespace/group" /></label>
        <label class="inline"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Kafka's own too</label>
        <span class="quiet" role="status">${groups.data && `${count(items.length)} of ${count(kinds.size)}${kinds.size === MOST ? " or more" : ""}`}</span></form>
      <${Answer} of=${groups}>${() => (kinds.size
        ? html`<${Rows} label="Consumer groups" columns=${columns} items=${items} of=${(name) => kinds.get(name)} picked=${params.group} pick=${pick} most_px=${560} />`
        : html`<${HowToBegin} all=${all} />`)}<//><//>
    ${params.group && html`<div key=${params.group}><${Group} me=${me} name=${params.group} /></div>`}
  </div>`;
}

/** What fills this view. */
function HowToBegin({ all }) {
  return html`<p class="answer">${all ? "There are no consumer groups." : "Brokers of this cluster coordinate no group yet."}</p>
    <p>A group appears here with its first member:</p>
    <ol class="steps">
      <li>Start brokers whose log is on Kafka with <code>--host loadmanager.consumer.hosting:make_host</code>.</li>
      <li>Create the namespace of the group: <code>loadmanager namespaces create shop/orders</code></li>
      <li>Start a consumer: <code>GroupConsumer("shop/orders/billing", ["orders"], brokers=[…], kafka={…})</code></li>
    </ol>`;
}

/** {broker, error} of the broker that coordinates a group: it alone knows the members. */
function useCoordinator(name) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const ending = new AbortController();
    let timer = 0;
    const look = async () => {
      try {
        const answer = await request("GET", `/lookup/v2/topic/persistent/${pathOf(name)}`, { signal: ending.signal });
        setFound({ broker: decodeURIComponent(answer.headers.get(BROKER)) });
      } catch (error) {
        if (ending.signal.aborted) return;
        setFound({ error });
      }
      if (!ending.signal.aborted) timer = setTimeout(look, 5000);
    };
    look();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [name]);
  return found;
}

/** The group's key in a path; slashes after the namespace belong to its name. */
function pathOf(name) {
  const [tenant, namespace, ...rest] = name.split("/");
  return `${inPath(`${tenant}/${namespace}`)}/${encodeURIComponent(rest.join("/"))}`;
}

function Group({ me, name }) {
  const close = html`<a href=${to("groups")}>Close</a>`;
  return name.split("/").length < 3 ? html`<${Foreign} name=${name} close=${close} />` : html`<${Coordinated} me=${me} name=${name} close=${close} />`;
}

function Foreign({ name, close }) {
  return html`<${Panel} title=${name} controls=${close}><p>No broker coordinates it: it is a group of Kafka's own consumers, or has had no members.</p><//>
    <${Waiting} name=${name} />`;
}

function Coordinated({ me, name, close }) {
  const { broker, error } = useCoordinator(name);
  const brokers = usePoll("/v1/brokers", 30);
  const api = `GET /v1/groups/${name}`;
  if (broker === me.broker) return html`<${Here} name=${name} close=${close} api=${api} />`;
  const url = brokers.data?.find((each) => each.broker === broker)?.admin_url;
  return html`<${Panel} title=${name} api=${api} controls=${close}>
    ${error && html`<${Failed} error=${error} />`}
    ${!error && !broker && html`<p class="quiet">reading …</p>`}
    ${broker && html`<p>${broker} has its bundle. If it coordinates the group, ${url
      ? html`<a href=${`${url}/${to("groups", { group: name })}`}>its dashboard</a>` : "its dashboard"} shows members and rebalances.</p>`}<//>
    <${Waiting} name=${name} />`;
}

/** A group that the asked broker coordinates. */
function Here({ name, close, api }) {
  const path = `/v1/groups/${pathOf(name)}`;
  const group = usePoll(path, 2), members = usePoll(`${path}/members?limit=${MOST}`, 2), rebalances = usePoll(`${path}/rebalances`, 5);
  if (group.error?.status === 404 && !group.data) return html`<${Foreign} name=${name} close=${close} />`;
  return html`<${Panel} title=${name} api=${api} controls=${close}><${Answer} of=${group}>${(found) => html`<${Facts} of=${[
      ["Strategy", found.strategy], ["Divided by", found.mode === "client" ? "its members" : "its coordinator"], ["Coordinator", found.coordinator],
      ["Members", count(found.members)], ["Partitions", count(found.partitions)], ["Moving", count(found.moving)],
      ["Without a reader by its strategy", found.unread || ""], ["Generation", count(found.generation)], ["Topics", found.topics.join(", ")],
    ]} />`}<//><//>
    <${Panel} title="Members" api=${`GET ${path}/members`}><${Answer} of=${members}>${(rows) => html`<${Table} label="Members" rows=${rows} keyOf=${(each) => each.member}
      none="It has no members, so nothing reads. Members join when consumers of this group start." columns=${[
        ["Client", (each) => html`${each.client_id || each.name || html`<span class="quiet">–</span>`}<br /><span class="quiet">${each.host}</span>`, "whole"],
        ["Member", (each) => each.member, "name"],
        ["Partitions", (each) => count(sizeOf(each.partitions)), "number"],
        ["Reads", (each) => ranges(each.partitions), "text"],
        ...(rows.some((each) => sizeOf(each.giving_up)) ? [["Gives up", (each) => ranges(each.giving_up), "text"]] : []),
        ...(rows.some((each) => each.rack) ? [["Rack", (each) => each.rack]] : []),
      ]} />`}<//><//>
    <${Waiting} name=${name} />
    <${Panel} title="Rebalances" api=${`GET ${path}/rebalances`}><${Answer} of=${rebalances}>${(rows) => html`<${Table} label="Rebalances" rows=${rows} keyOf=${(each) => each.number}
      none="Nothing has changed yet." columns=${[
        ["When", (each) => html`<${Time} ms=${each.at_ms} />`],
        ["Why", (each) => each.why, "text"],
        ["Moved", (each) => count(each.moved), "number"],
        ["Kept", (each) => count(each.kept), "number"],
        ["Settled after", (each) => (each.settled_ms === null ? html`<span class="tag">going on</span>` : lasting(each.settled_ms)), "number"],
        ["Longest pause", (each) => (each.pause_max_ms === null ? html`<span class="quiet">none</span>` : lasting(each.pause_max_ms)), "number"],
      ]} />`}<//><//>`;
}

/** What waits for a group, by topic, and by partition where most waits. */
function Waiting({ name }) {
  const topics = usePoll(withQuery("/v1/backlog/topics", { group: name, ages: 10 }), 5);
  const partitions = usePoll(withQuery("/v1/backlog/partitions", { group: name, ages: 10, limit: MOST }), 5);
  const most = partitions.data?.filter((each) => each.lag?.messages).sort((one, other) => other.lag.messages - one.lag.messages).slice(0, 10);
  return html`<${Panel} title="Lag" api="GET /v1/backlog/topics, GET /v1/backlog/partitions"><${Answer} of=${topics}>${(rows) => html`<${Table} label="Lag by topic" rows=${rows}
      keyOf=${(each) => each.topic} none="It has committed no offset." columns=${[
        ["Topic", (each) => each.topic, "name"],
        ["Partitions", (each) => count(each.queues), "number"],
        ["Lag", (each) => (each.lag ? count(each.lag.messages) : "not known"), "number"],
        ["In flight", (each) => (each.in_flight ? count(each.in_flight.messages) : "–"), "number"],
        ["Oldest", (each) => (each.lag?.messages && each.lag.latency_s !== null ? lasting(1000 * each.lag.latency_s) : "–"), "number"],
      ]} />
    ${most?.length > 0 && html`<h3>Partitions with the largest lag</h3><${Table} label="Partitions with the largest lag" rows=${most}
      keyOf=${(each) => `${each.topic} ${each.partition}`} columns=${[
        ["Partition", (each) => `${each.topic} ${each.partition}`, "name"],
        ["Committed", (each) => (each.consumer === null ? "–" : count(each.consumer)), "number"],
        ["End", (each) => (each.end === null ? "–" : count(each.end)), "number"],
        ["Lag", (each) => count(each.lag.messages), "number"],
      ]} />`}`}<//><//>`;
}

const sizeOf = (byTopic) => Object.values(byTopic).reduce((sum, numbers) => sum + numbers.length, 0);

/** Partitions as text: `orders 0-5, 7`. */
function ranges(byTopic) {
  return Object.entries(byTopic).map(([topic, numbers]) => `${topic} ${runs(numbers)}`).join("; ");
}

function runs(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(", ");
}
