// Small pieces that every view is made of.
import { html, useState } from "./html.mjs";
import { moment, percent } from "./words.mjs";

/** A section with its title, the routes that its figures come from, and controls at the right. */
export function Panel({ title, api, controls, children, className = "" }) {
  return html`<section class=${`panel ${className}`} aria-label=${title}>
    <header><h2>${title}</h2><span class="controls">${controls}</span>${api && html`<code class="api">${api}</code>`}</header>
    ${children}
  </section>`;
}

/**
 * A button; none if a role is `missing`. One that is `forbidden` now (why, in words) can be reached but does nothing.
 * Shows errors of what it does.
 */
export function Action({ label, does, missing = "", forbidden = "", kind = "" }) {
  const [running, setRunning] = useState(false);
  const [error, setError] = useState("");
  const act = async () => {
    if (forbidden || running) return;
    setRunning(true);
    setError("");
    try {
      await does();
    } catch (problem) {
      setError(problem.message);
    }
    setRunning(false);
  };
  if (missing) return null;
  return html`<span class="action"
    ><button type="button" class=${kind} aria-disabled=${forbidden || running ? "true" : "false"} title=${forbidden}
      aria-description=${forbidden || undefined} onClick=${act}>${running ? `${label} …` : label}</button
    >${error && html`<span role="alert" class="error">${error}</span>`}</span>`;
}

/** An error, and from when the figures below it are. */
export function Failed({ error, at_ms }) {
  return error ? html`<p role="alert" class="error">${error.message}${at_ms && ` These figures are of ${moment(at_ms)}.`}</p>` : null;
}

/** What to show while an answer is awaited, and its error. */
export function Answer({ of, children }) {
  if (of.data === undefined) return of.error ? html`<${Failed} error=${of.error} />` : html`<p class="quiet">reading …</p>`;
  return html`<${Failed} error=${of.error} at_ms=${of.at_ms} />${children(of.data)}`;
}

/** A usage as a bar with its figure; `limit` draws a mark. */
export function Usage({ value, limit }) {
  if (value === null || value === undefined) return html`<span class="quiet">–</span>`;
  const level = value >= 0.85 ? "hot" : "calm";
  return html`<span class="usage"><span class="bar"><i class=${level} style=${{ width: `${Math.min(100, 100 * value)}%` }}></i>
    ${limit !== undefined && html`<b style=${{ left: `${Math.min(100, 100 * limit)}%` }}></b>`}</span>${percent(value)}</span>`;
}

/** The role that the buttons of a panel need and the principal lacks, in words; null if they have it. */
export function Missing({ role }) {
  return role ? html`<p class="quiet">Actions are not shown: ${role}.</p>` : null;
}

/** `unasked`: a bundle that no lookup has asked for. */
export function State({ of, unasked = false }) {
  return html`<span class=${`state ${unasked ? "unasked" : of}`} title=${unasked ? "no lookup has asked for it yet" : undefined}>${of}</span>`;
}

export function Time({ ms }) {
  return ms ? html`<time datetime=${new Date(ms).toISOString()} title=${new Date(ms).toISOString()}>${moment(ms)}</time>` : "–";
}

/** Whether a click was meant for the row, not for a control in it. */
export const onItself = (event) => !event.target.closest("a, button");

/** A name, or a link with it, that may be broken behind its separators. */
export function Name({ of, href }) {
  const pieces = String(of).split(/(?<=[/_.:-])/).map((piece) => html`${piece}<wbr />`);
  return href ? html`<a class="name" href=${href}>${pieces}</a>` : html`<span class="name">${pieces}</span>`;
}

const shown = (kind, value) => (kind === "name" && typeof value === "string" ? html`<${Name} of=${value} />` : value);

/** What stands where there is nothing to show: why, and the command that fills it. */
export function Empty({ what, how }) {
  return html`<p class="answer">${what}</p>${how && html`<p>To begin: <code>${how}</code></p>`}`;
}

/** A plain table: `columns` are [title, cell of a row, class?]; `name` breaks at separators, `text` anywhere.
 * On a phone each row is a card: the first cell, then the others with their titles. `none` stands where there are no rows. */
export function Table({ label, columns, rows, none = "nothing", pick, picked, keyOf }) {
  if (!rows.length) return typeof none === "string" ? html`<p class="quiet">${none}</p>` : none;
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${`${label}, scrolls`}><table role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">${columns.map(([title, , kind]) => html`<th role="columnheader" scope="col" class=${kind}>${title}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row, at) => html`<tr role="row" key=${keyOf ? keyOf(row) : at} class=${pick ? "pickable" : ""}
        aria-current=${picked !== undefined && picked === keyOf?.(row) ? "true" : undefined} onClick=${pick && ((event) => onItself(event) && pick(row))}>
      ${columns.map(([title, cell, kind]) => html`<td role="cell" class=${kind} data-title=${title}>${shown(kind, cell(row))}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Names and values, one under the other. */
export function Facts({ of }) {
  return html`<dl class="facts">${of
    .filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Json({ of }) {
  return html`<pre tabindex="0">${JSON.stringify(of, null, 2)}</pre>`;
}
