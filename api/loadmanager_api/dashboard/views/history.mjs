// What the jobs of the load history published: analyses, pictures, the report, advice.
import { html, useEffect, useState } from "../html.mjs";
import { inPath, request } from "../api.mjs";
import { to, usePoll } from "../live.mjs";
import { Action, Answer, Empty, Facts, Failed, Name, Panel, State, Table, Time } from "../parts.mjs";
import { count } from "../words.mjs";

const ROWS_SHOWN = 500;
/** The pictures of the report in its order; others come after them. */
const PICTURES = ["heat-map", "imbalance", "transfers", "gaps", "replay", "forecast", "capacity"];

export function History({ params }) {
  const folder = usePoll("/v1/config/history_dir");
  const history = usePoll(folder.data?.value ? "/v1/history" : null, 60), advice = usePoll("/v1/plans?kind=advice", 10);
  const pick = (result) => (location.hash = to("history", { name: result.name }));
  return html`<div class=${params.name ? "split opened even" : ""}><div>
    <${Panel} title="Load history" api="GET /v1/history">${folder.data && !folder.data.value && html`<${Empty} what="This broker serves no load history: its setting history_dir is not set." how="loadmanager broker --set history_dir=FOLDER" /><p class="quiet">Jobs publish their results into that folder: loadmanager history --help lists them.</p>`}
      ${folder.data?.value && html`<${Answer} of=${history}>${(found) => html`
      ${found.report && html`<p><${Action} label="Save the report" does=${() => save("/v1/history/report", "report.html")} /></p>`}
      <${Table} label="Results" rows=${found.results} none=${html`<${Empty} what="No job has published anything yet." how="loadmanager history report" />`} pick=${pick} picked=${params.name} keyOf=${(each) => each.name} columns=${[
        ["Result", (each) => html`<${Name} of=${each.name} href=${to("history", { name: each.name })} />`, "name"],
        ["Job", (each) => each.provenance.job], ["Ran", (each) => html`<${Time} ms=${Date.parse(each.provenance.at)} />`], ["Rows", (each) => count(each.rows), "number"],
      ]} />`}<//>`}<//>
    <${Panel} title="Advice" api="GET /v1/plans?kind=advice"><${Answer} of=${advice}>${(plans) => html`<${Table} label="Advice" rows=${plans} none="No advice was published." columns=${[
      ["Plan", (plan) => html`<a href=${to("plans", { id: plan.id })}>${plan.id}</a>`], ["State", (plan) => html`<${State} of=${plan.state} />`], ["What", (plan) => plan.what, "text"], ["Waits for", (plan) => plan.waiting, "text"],
    ]} />`}<//><//>
    ${history.data?.pictures.length > 0 && html`<${Panel} title="Pictures" api="GET /v1/history/pictures/{name}.png"><div class="pictures">
      ${inOrder(history.data.pictures).map((name) => html`<${Picture} key=${name} name=${name} />`)}</div><//>`}</div>
    ${params.name && html`<${Result} key=${params.name} name=${params.name} />`}
  </div>`;
}

const placeOf = (name) => (PICTURES.indexOf(name) + 1 || PICTURES.length + 1);
const inOrder = (names) => [...names].sort((a, b) => placeOf(a) - placeOf(b));

function Result({ name }) {
  const path = `/v1/history/${inPath(name)}`;
  const result = usePoll(path);
  return html`<${Panel} title=${name} api=${`GET ${path}`} controls=${html`<a href=${to("history")}>Close</a>`}><${Answer} of=${result}>${(found) => {
    const shown = found.rows.slice(0, ROWS_SHOWN);
    const fields = [...new Set(shown.flatMap((row) => Object.keys(row)))];
    return html`<${Facts} of=${Object.entries(found.facts).map(([fact, value]) => [fact, text(value)])} />
      <${Table} label=${name} rows=${shown} none="no rows" columns=${fields.map((field) => [field, (row) => text(row[field])])} />
      ${found.rows.length > ROWS_SHOWN && html`<p class="quiet">and ${count(found.rows.length - ROWS_SHOWN)} rows more, by the API</p>`}`;
  }}<//><//>`;
}

/** A value of a result as text; an interval as `mean (low to high)`. */
function text(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  if (typeof value !== "object") return String(value);
  if (Object.keys(value).sort().join() === "high,low,mean") return `${text(value.mean)} (${text(value.low)} to ${text(value.high)})`;
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join("; ");
  return JSON.stringify(value);
}

function Picture({ name }) {
  const [source, setSource] = useState("");
  const [error, setError] = useState(null);
  useEffect(() => {
    let url = "";
    request("GET", `/v1/history/pictures/${inPath(name)}.png`)
      .then((response) => response.blob())
      .then((blob) => setSource((url = URL.createObjectURL(blob))), setError);
    return () => URL.revokeObjectURL(url);
  }, [name]);
  return html`<figure><figcaption>${name.replaceAll("-", " ")}</figcaption>${source && html`<img src=${source} alt=${`Picture of the report: ${name}`} />`}<${Failed} error=${error} /></figure>`;
}

/** The report is a page with scripts of its own: it is saved, and opens without access to this page. */
async function save(path, name) {
  const url = URL.createObjectURL(await (await request("GET", path)).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
