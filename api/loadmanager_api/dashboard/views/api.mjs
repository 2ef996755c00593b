// The API: every route as /openapi.json describes it, with a form to try it.
import { html, useEffect, useState } from "../html.mjs";
import { inPath, request, withQuery } from "../api.mjs";
import { confirm } from "../dialog.mjs";
import { to, usePoll } from "../live.mjs";
import { Action, Answer, Facts, Json, Name, Panel, Table } from "../parts.mjs";

export function Api({ params }) {
  const document = usePoll("/openapi.json");
  const [wanted, setWanted] = useState("");
  return html`<${Answer} of=${document}>${(found) => {
    const all = operations(found);
    const open = all.find((each) => each.operationId === params.id);
    const fits = all.filter((each) => `${each.method} ${each.path} ${each.tags} ${each.summary}`.toLowerCase().includes(wanted.toLowerCase()));
    return html`<div class=${open ? "split opened" : ""}><${Panel} title="API" api="GET /openapi.json">
      <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}><label class="inline">Search <input value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label></form>
      <${Table} label="Routes" rows=${fits} keyOf=${(each) => each.operationId} picked=${open?.operationId} none="no route fits" columns=${[
        ["Method", (each) => html`<span class=${`tag ${each.method === "GET" ? "" : "warm"}`}>${each.method}</span>`],
        ["Path", (each) => html`<${Name} of=${each.path} href=${to("api", { id: each.operationId })} />`, "name"],
        ["What it does", (each) => first(each.description), "text"],
      ]} /><//>
      ${open && html`<${Operation} of=${open} schemas=${found.components} key=${open.operationId} />`}</div>`;
  }}<//>`;
}

function Operation({ of, schemas }) {
  const given = (of.parameters ?? []).map((each) => resolved(each, schemas));
  const body = of.requestBody?.content["application/json"]?.schema;
  const [values, setValues] = useState({});
  const [text, setText] = useState("");
  const [answer, setAnswer] = useState(null);
  useEffect(() => setAnswer(null), [of]);
  const send = async () => {
    const by = (place) => Object.fromEntries(given.filter((each) => each.in === place).map((each) => [each.name, values[each.name]]));
    const path = Object.entries(by("path")).reduce((made, [name, value]) => made.replace(`{${name}}`, inPath(value ?? "")), of.path);
    const headers = Object.fromEntries(Object.entries(by("header")).filter(([, value]) => value));
    const response = await request(of.method, withQuery(path, by("query")), { headers, body: text.trim() ? JSON.parse(text) : undefined });
    const kind = response.headers.get("Content-Type") ?? "";
    const said = await response.text();
    setAnswer({ status: response.status, headers: ["ETag", "Link", "Location"].map((name) => [name, response.headers.get(name)]), said: kind.includes("json") ? JSON.parse(said) : said });
  };
  const ask = () => (of.method === "GET" ? send() : confirm({ title: `${of.method} ${of.path}`, text: `${first(of.description)} This is sent to the cluster now.`, verb: "Send", hurts: of.method === "DELETE", does: send }));
  return html`<${Panel} title=${`${of.method} ${of.path}`} controls=${html`<a href=${to("api")}>Close</a>`}>
    <p>${of.description}</p>
    <form class="try" onSubmit=${(event) => event.preventDefault()}>
      ${given.map((each) => html`<label key=${each.name}>${each.name}${each.required ? " *" : ""} <small>${each.in}${each.description ? `: ${each.description}` : ""}</small>
        <input value=${values[each.name] ?? ""} autocomplete="off" onInput=${(event) => setValues({ ...values, [each.name]: event.target.value })} /></label>`)}
      ${body && html`<label>body <small>JSON</small><textarea rows="4" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}
      ${of.path !== "/v1/watch" && html`<${Action} label="Send" kind=${of.method === "GET" ? "main" : "hurts"} does=${ask} />`}
    </form>
    ${answer && html`<h3>Answer</h3><${Facts} of=${[["Status", answer.status], ...answer.headers]} />${answer.said !== "" && html`<${Json} of=${answer.said} />`}`}
    ${body && html`<h3>Body</h3><${Json} of=${outline(body, schemas)} />`}
    <h3>Answers</h3><${Table} label="Answers" rows=${Object.entries(of.responses)} keyOf=${([status]) => status} columns=${[
      ["Status", ([status]) => status], ["When", ([, each]) => resolved(each, schemas).description],
    ]} />
    ${success(of) && html`<h3>Shape of the answer</h3><${Json} of=${outline(success(of), schemas)} />`}
  <//>`;
}

function operations(document) {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, each]) => ({ ...each, path, method: method.toUpperCase() })));
}

const first = (text = "") => text.split(/\.\s/)[0].replace(/\.?$/, ".");

const success = (of) => Object.entries(of.responses).find(([status]) => status[0] === "2")?.[1].content?.["application/json"]?.schema;

function resolved(part, components) {
  return part?.$ref ? part.$ref.slice("#/components/".length).split("/").reduce((in_, name) => in_[name], components) : part;
}

/** A schema as JSON with types in place of values; what it refers to is shown `depth` levels deep. */
function outline(schema, components, depth = 4) {
  const of = resolved(schema, components) ?? {};
  const choices = of.anyOf ?? of.oneOf;
  if (depth === 0) return "…";
  if (choices) {
    const shown = choices.map((each) => outline(each, components, depth));
    if (shown.every((each) => typeof each === "string")) return shown.join(" | ");
    const there = shown.filter((each) => each !== "null");
    return there.length === 1 ? there[0] : there;
  }
  if (of.enum) return of.enum.join(" | ");
  if (of.properties) return Object.fromEntries(Object.entries(of.properties).map(([name, each]) => [name, outline(each, components, depth - 1)]));
  if (of.items) return [outline(of.items, components, depth - 1)];
  return [of.type ?? "any"].flat().join(" | ");
}
