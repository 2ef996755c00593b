// Moves as they happen: under way, and those that ended while this page was open.
import { html } from "../html.mjs";
import { useBundles, useNow, to } from "../live.mjs";
import { Panel, State, Time } from "../parts.mjs";
import { lasting } from "../words.mjs";

const SHOWN = 50;

export function Moves({ bundles }) {
  useBundles(bundles);
  const now_ms = useNow(1);
  const under_way = [...bundles.moves.values()].slice(-SHOWN).reverse();
  const more = bundles.moves.size - under_way.length;
  return html`<${Panel} title="Moves" api="GET /v1/watch">
    <ol class="moves" aria-label="Moves under way">
      ${under_way.map((move) => html`<${Move} key=${move.bundle} move=${move} took_ms=${move.since_ms && now_ms - move.since_ms} />`)}
    </ol>
    ${more > 0 && html`<p class="quiet">and ${more} more under way</p>`}
    ${!under_way.length && html`<p class="quiet">Nothing moves.</p>`}
    <h3>Ended since this page was opened</h3>
    ${bundles.recent.length
      ? html`<ol class="moves" aria-label="Moves that ended">${bundles.recent.slice(0, SHOWN).map((move) => html`<${Move}
          key=${`${move.bundle}${move.at_ms}`} move=${move} took_ms=${move.took_ms} />`)}</ol>`
      : html`<p class="quiet">none</p>`}
  <//>`;
}

function Move({ move, took_ms }) {
  return html`<li>
    <a href=${to("bundles", { bundle: move.bundle })}>${move.bundle}</a>
    <span class="way">${move.from ?? "none"} → ${move.to ?? "none"}</span>
    <${State} of=${move.state} /> <span class="number">${lasting(Math.max(0, took_ms || 0))}</span>
    ${move.at_ms && html`<${Time} ms=${move.at_ms} />`}
    ${move.reason && html`<span class="quiet reason">${move.reason}</span>`}
    ${/^\d+\.\d+$/.test(move.cause ?? "") && html`<a href=${to("decisions", { id: move.cause })}>decision ${move.cause}</a>`}
  </li>`;
}
