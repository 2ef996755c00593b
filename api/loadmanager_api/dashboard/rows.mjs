// A list of any length of which only the visible rows are drawn. By keyboard: arrows, Page Up and Down, Home, End, Enter.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.mjs";
import { onItself } from "./parts.mjs";

const ROW_PX = 28, MARGIN_ROWS = 8;
/** Browsers limit an element's height: beyond this the scroll bar covers several rows a pixel. */
const TALLEST_PX = 8_000_000;

/** `columns` are [title, cell of an item, width, class?]; `items` are keys; `pick(key)` opens one; `most_px`: no higher. */
export function Rows({ label, columns, items, of, picked, pick, most_px }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [active, setActive] = useState(-1);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setHeight(entry.contentRect.height));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const tall = Math.min(TALLEST_PX, items.length * ROW_PX);
  const seen = Math.max(1, Math.ceil(height / ROW_PX) - 1);
  const most = Math.max(0, items.length - seen);
  const first = tall <= height ? 0 : Math.round((top / (tall - height + ROW_PX)) * most);
  const begin = Math.max(0, Math.min(most, first) - MARGIN_ROWS);
  const shown = items.slice(begin, first + seen + MARGIN_ROWS);
  const offset = tall < TALLEST_PX ? begin * ROW_PX : top - (first - begin) * ROW_PX;
  useLayoutEffect(() => {
    if (active < 0) return;
    const there = active - first;
    if (there < 0) box.current.scrollTop = scrolled(active);
    else if (there >= seen - 1) box.current.scrollTop = scrolled(active - seen + 2);
  }, [active]);
  const scrolled = (row) => (most ? (Math.min(row, most) / most) * (tall - height + ROW_PX) : 0);
  const key = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: seen - 1, PageUp: 1 - seen, Home: -items.length, End: items.length };
    if (event.key === "Enter" && items[active] !== undefined) pick(items[active]);
    else if (steps[event.key]) setActive(Math.max(0, Math.min(items.length - 1, active + steps[event.key])));
    else return;
    event.preventDefault();
  };
  const widths = { gridTemplateColumns: columns.map(([, , width]) => width).join(" ") };
  return html`<div class="rows" role="grid" aria-label=${label} aria-rowcount=${items.length + 1} tabindex="0" ref=${box}
      style=${most_px ? { height: `${Math.min(most_px, (items.length + 1) * ROW_PX + 4)}px`, minHeight: 0 } : {}}
      aria-activedescendant=${active >= begin && active < begin + shown.length ? `row-${active}` : undefined}
      onScroll=${(event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${key}>
    <div class="row head" role="row" aria-rowindex="1" style=${widths}>
      ${columns.map(([title, , , kind]) => html`<span role="columnheader" class=${kind}>${title}</span>`)}</div>
    <div class="all" role="presentation" style=${{ height: `${tall}px` }}>
      <div role="rowgroup" style=${{ transform: `translateY(${offset}px)` }}>
      ${shown.map((item, at) => {
        const row = begin + at;
        return html`<div class=${`row${row === active ? " active" : ""}`} role="row" key=${item} id=${`row-${row}`} style=${widths}
            aria-rowindex=${row + 2} aria-selected=${item === picked ? "true" : "false"}
            onClick=${(event) => { setActive(row); if (onItself(event)) pick(item); }}>
          ${columns.map(([, cell, , kind]) => html`<span role="gridcell" class=${kind}>${cell(of(item), item)}</span>`)}</div>`;
      })}</div></div>
  </div>`;
}
