"""The page around everything: its style, and the few lines that show a mark's label. `page.py` fills in `$name`."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink: #1d2329; --muted: #5d6770; --hair: #d5dade; --ground: #f4f6f7; --card: #ffffff;
  color-scheme: light dark }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaed; --muted: #9aa5ae; --hair: #3a434b; --ground: #14181b; --card: #1c2226 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0; line-height: 1.2 }
h2 { font-size: .8rem; font-weight: 600; letter-spacing: .06em; text-transform: uppercase; color: var(--muted);
  margin: 2.4rem 0 .6rem }
h3 { font-size: 1rem; font-weight: 600; margin: 0 0 .7rem }
p { margin: .3rem 0 } .note { color: var(--muted); font-size: .85rem; max-width: 46rem }
figure, .card, .table, pre { margin: 0 0 1rem; padding: 1rem 1.1rem; background: var(--card);
  border: 1px solid var(--hair); border-radius: 8px }
figure svg { display: block; height: auto; max-width: 100% }
figure svg [aria-roledescription="rect mark"] { shape-rendering: crispEdges }
section > h3 { margin: 1.4rem 0 .6rem }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin-top: 1.4rem }
.figures div { background: var(--card); border: 1px solid var(--hair); border-radius: 8px; padding: .7rem .9rem }
.figures b { display: block; font-size: 1.5rem; line-height: 1.2; font-weight: 600; font-variant-numeric: tabular-nums }
.figures span { color: var(--muted); font-size: .8rem }
.table { overflow-x: auto; padding: .4rem 1.1rem }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 500; color: var(--muted) }
th, td { padding: .35rem .8rem .35rem 0; white-space: nowrap }
tbody tr { border-top: 1px solid var(--hair) } .n { text-align: right }
pre { overflow-x: auto; font-size: .85rem } footer { margin-top: 2.5rem }
#tip { position: fixed; pointer-events: none; display: none; background: var(--ink); color: var(--ground);
  padding: .25rem .55rem; border-radius: 5px; font-size: .8rem; max-width: 24rem; z-index: 1 }
[aria-roledescription$$=" mark"]:hover { filter: brightness(1.15) }
@media (max-width: 48rem) { figure { overflow-x: auto } figure svg { min-width: 44rem; max-width: none } }
@media print { body { max-width: none; background: none } figure, .card, .table { break-inside: avoid } }
</style>
<header><h1>$title</h1><p class=note>$span</p>$figures</header>
<main>
$sections</main>
<footer class=note>$made</footer>
<div id=tip role=presentation></div>
<script>
const tip = document.getElementById("tip");
addEventListener("pointermove", event => {
  const mark = event.target.closest && event.target.closest('svg [aria-label][aria-roledescription$$=" mark"]');
  tip.style.display = mark ? "block" : "none";
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label");
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = left + "px";
  tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
});
</script>
</html>
"""
