// A list of any length of which only the visible rows are drawn. By keyboard: arrows, Page Up and Down, Home, End, Enter.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.mjs";
import { onItself } from "./parts.mjs";

const MARGIN_ROWS = 8;
/** In a narrow list the first column has a line of its own. */
const NARROW_PX = 480, ROW_PX = 28, TWO_LINES_PX = 50;
/** Browsers limit an element's height: beyond this the scroll bar covers several rows a pixel. */
const TALLEST_PX = 8_000_000;

/**
 * `columns` are {title, cell(item, key), width, kind?, narrow?, least_px?, help?}; `narrow` is the width in a
 * narrow list, and a column is left out where the list is narrower than its `least_px`.
 * `items` are keys; `pick(key)` opens one; `most_px`: no higher.
 */
export function Rows({ label, columns, items, of, picked, pick, most_px }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [{ width, height }, setSize] = useState({ width: 0, height: 600 });
  const [active, setActive] = useState(-1);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setSize(entry.contentRect));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const narrow = width < NARROW_PX, row_px = narrow ? TWO_LINES_PX : ROW_PX;
  const there = columns.filter(({ least_px }) => !(width < least_px));
  const tall = Math.min(TALLEST_PX, items.length * row_px);
  const seen = Math.max(1, Math.ceil(height / row_px) - 1);
  const most = Math.max(0, items.length - seen);
  const first = tall <= height ? 0 : Math.round((top / (tall - height + row_px)) * most);
  const begin = Math.max(0, Math.min(most, first) - MARGIN_ROWS);
  const shown = items.slice(begin, first + seen + MARGIN_ROWS);
  const offset = tall < TALLEST_PX ? begin * row_px : top - (first - begin) * row_px;
  useLayoutEffect(() => {
    if (active < 0) return;
    const below = active - first;
    if (below < 0) box.current.scrollTop = scrolled(active);
    else if (below >= seen - 1) box.current.scrollTop = scrolled(active - seen + 2);
  }, [active]);
  const scrolled = (row) => (most ? (Math.min(row, most) / most) * (tall - height + row_px) : 0);
  const key = (event) => {
    if (!onItself(event)) return; // a button in a row does its own
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: seen - 1, PageUp: 1 - seen, Home: -items.length, End: items.length };
    if (event.key === "Enter" && items[active] !== undefined) pick(items[active]);
    else if (steps[event.key]) setActive(Math.max(0, Math.min(items.length - 1, active + steps[event.key])));
    else return;
    event.preventDefault();
  };
  const widths = { height: `${row_px}px`, gridTemplateColumns: (narrow ? there.slice(1) : there).map((column) => (narrow && column.narrow) || column.width).join(" ") };
  return html`<div class=${`rows${narrow ? " narrow" : ""}`} role="grid" aria-label=${label} aria-rowcount=${items.length + 1} tabindex="0" ref=${box}
      style=${most_px ? { height: `${Math.min(most_px, (items.length + 1) * row_px + 4)}px`, minHeight: 0 } : {}}
      aria-activedescendant=${active >= begin && active < begin + shown.length ? `row-${active}` : undefined}
      onScroll=${(event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${key}>
    <div class="row head" role="row" aria-rowindex="1" style=${widths}>
      ${there.map(({ title, kind, help }) => html`<span role="columnheader" class=${kind} title=${help}>${title}</span>`)}</div>
    <div class="all" role="presentation" style=${{ height: `${tall}px` }}>
      <div role="rowgroup" style=${{ transform: `translateY(${offset}px)` }}>
      ${shown.map((item, at) => {
        const row = begin + at;
        return html`<div class=${`row${row === active ? " active" : ""}`} role="row" key=${item} id=${`row-${row}`} style=${widths}
            aria-rowindex=${row + 2} aria-selected=${item === picked ? "true" : "false"}
            onClick=${(event) => { setActive(row); if (onItself(event)) pick(item); }}>
          ${there.map(({ cell, kind }) => {
            const shown = cell(of(item), item);
            return html`<span role="gridcell" class=${kind} title=${typeof shown === "string" ? shown : undefined}>${shown}</span>`;
          })}</div>`;
      })}</div></div>
  </div>`;
}
