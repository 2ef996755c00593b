// The heat map: brokers from top to bottom, time from left to right, the colour says how full. A canvas, and a cursor.
import { html, useEffect, useRef, useState } from "./html.mjs";
import { useWidth } from "./live.mjs";
import { clock, percent } from "./words.mjs";

const NAME_PX = 132, NAMED_FROM_PX = 13, WIDEST_PX = 36, AXIS_PX = 18, LABEL_PX = 64;

export function HeatMap({ usage, pick, theme }) {
  const [box, width] = useWidth();
  const canvas = useRef(null);
  const [cursor, setCursor] = useState(null);
  const names = Object.keys(usage.brokers).sort((a, b) => last(usage.brokers[b]) - last(usage.brokers[a]) || (a < b ? -1 : 1));
  const columns = columnsOf(usage);
  const tall = Math.max(2, Math.min(18, Math.floor(420 / Math.max(1, names.length))));
  const left = tall >= NAMED_FROM_PX ? NAME_PX : 0;
  const wide = Math.min(WIDEST_PX, Math.max(0, width - left) / columns);
  useEffect(() => {
    if (width > left) draw(canvas.current, { names, usage, columns, tall, left, width, wide });
  }, [usage, width, theme]);
  const move = (rows, spans) => {
    const at = cursor ?? { row: 0, column: columns - 1 };
    setCursor({ row: within(at.row + rows, names.length), column: within(at.column + spans, columns) });
  };
  const key = (event) => {
    const by = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) move(...by);
    else if (event.key === "Enter" && cursor) pick(names[cursor.row]);
    else return;
    event.preventDefault();
  };
  const point = (event) => {
    const x = event.offsetX - left;
    if (x < 0) return { row: within(Math.floor(event.offsetY / tall), names.length), column: columns - 1 };
    return { row: within(Math.floor(event.offsetY / tall), names.length), column: within(Math.floor(x / wide), columns) };
  };
  const readout = cursor ? sentence(usage, names[cursor.row], columns - 1 - cursor.column) : "point at a cell, or use the arrow keys";
  return html`<div class="heat" ref=${box}>
    <canvas ref=${canvas} tabindex="0" role="img" onKeyDown=${key} onMouseMove=${(event) => setCursor(point(event))}
      onClick=${(event) => pick(names[point(event).row])}
      aria-label=${`Usage of ${names.length} brokers over ${Math.round((columns * usage.span_s) / 60)} minutes. Arrow keys read single cells.`}></canvas>
    <p class="quiet" aria-live="polite">${readout}<span class="scale" aria-hidden="true">0 %<i></i>100 %</span></p>
  </div>`;
}

const within = (at, length) => Math.max(0, Math.min(length - 1, at));
const last = (row) => row.at(-1) ?? -1;

function columnsOf(usage) {
  const rows = Object.values(usage.brokers);
  const spans = rows[0]?.length ?? 0;
  const first = Math.min(...rows.map((row) => row.findIndex((value) => value !== null)).filter((at) => at >= 0), spans - 1);
  return Math.max(1, spans - first);
}

function sentence(usage, name, ago) {
  const value = usage.brokers[name]?.at(-1 - ago);
  const begin_ms = usage.end_ms - (ago + 1) * usage.span_s * 1000;
  return `${name} at ${clock(begin_ms)}: ${value === null || value === undefined ? "no report" : `${percent(value)} full`}`;
}

function draw(canvas, { names, usage, columns, tall, left, width, wide }) {
  const scale = devicePixelRatio || 1, style = getComputedStyle(canvas);
  canvas.width = width * scale;
  canvas.height = (tall * names.length + AXIS_PX) * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${tall * names.length + AXIS_PX}px`;
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  paint.font = `11px ${style.fontFamily}`;
  paint.textBaseline = "middle";
  const dark = document.documentElement.dataset.theme === "dark", gap = tall > 4 ? 1 : 0;
  names.forEach((name, row) => {
    const cells = usage.brokers[name].slice(-columns);
    cells.forEach((value, column) => {
      paint.fillStyle = value === null ? style.getPropertyValue("--empty") : colour(value, dark);
      paint.fillRect(left + column * wide, row * tall, Math.ceil(wide) - (wide > 4 ? 1 : 0), tall - gap);
    });
    if (!left) return;
    paint.fillStyle = style.getPropertyValue("--text");
    paint.fillText(name.length > 21 ? `${name.slice(0, 20)}…` : name, 0, row * tall + tall / 2);
  });
  paint.fillStyle = style.getPropertyValue("--quiet");
  for (const { text, at } of axis(usage, columns, wide, width - left - columns * wide)) {
    const x = left + at * wide;
    paint.fillRect(x, tall * names.length, 1, 4);
    paint.textAlign = x + LABEL_PX > width ? "right" : "left";
    paint.fillText(text, x + (paint.textAlign === "right" ? -3 : 3), tall * names.length + AXIS_PX / 2 + 2);
  }
}

const STEPS_MIN = [1, 2, 5, 10, 15, 30];

/**
 * Marks of the time axis: full minutes, as close as their labels have room, and the end. `at` counts columns. The label
 * of the end is before it where there is no room (`after_px`) behind it.
 */
export function axis(usage, columns, wide, after_px) {
  const end_px = after_px < LABEL_PX ? 2 * LABEL_PX : LABEL_PX;
  const span_ms = 1000 * usage.span_s, begin_ms = usage.end_ms - columns * span_ms;
  const step_min = STEPS_MIN.find((minutes) => ((60_000 * minutes) / span_ms) * wide >= LABEL_PX) ?? 60, step_ms = 60_000 * step_min;
  const marks = [];
  for (let at_ms = Math.ceil(begin_ms / step_ms) * step_ms; at_ms < usage.end_ms; at_ms += step_ms) {
    const at = (at_ms - begin_ms) / span_ms;
    if ((columns - at) * wide >= end_px) marks.push({ text: clock(at_ms).slice(0, 5), at });
  }
  return [...marks, { text: `${clock(usage.end_ms).slice(0, 5)} now`, at: columns }];
}

const STOPS = {
  light: [[0, 232, 239, 246], [0.5, 116, 169, 217], [0.75, 240, 180, 80], [1, 200, 50, 45]],
  dark: [[0, 26, 36, 48], [0.5, 38, 98, 150], [0.75, 190, 130, 30], [1, 228, 75, 60]],
};

/** The colour of a usage: near the background, then blue, amber from 75 %, red. The style sheet's scale shows the same. */
function colour(value, dark) {
  const at = Math.max(0, Math.min(1, value)), stops = dark ? STOPS.dark : STOPS.light;
  const upper = Math.max(1, stops.findIndex(([place]) => place >= at));
  const [low, ...from] = stops[upper - 1], [high, ...until] = stops[upper];
  const part = (at - low) / (high - low);
  return `rgb(${from.map((each, band) => Math.round(each + part * (until[band] - each))).join(" ")})`;
}
