"""How pictures look: an SVG in the page's colours, light or dark, and a PNG on white.

A chart's title says what it shows, its note how to read it. Data colours are legible on both grounds; colours of text
and lines become the page's own in the SVG.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from loadmanager.history.report.material import DAY_S, Span
from loadmanager.strategies.playground import drawing

WIDTH = 820
LINE = 104
"""Characters of a title that a PNG has room for."""
SCALE = 1.5
"""Pixels of a PNG for one of the page."""
LONGEST_NAME_PX, CHARACTER_PX = 230, 7.2

INK, MUTED, HAIR = "#1d2329", "#5d6770", "#d5dade"
COLOURS = ("#2b7bba", "#e0872f", "#3f9e62", "#a4508f", "#8b949c", "#c2a11c", "#6a5cc2", "#c0473f")
BLUE, AMBER, RED = COLOURS[0], "#e39a2d", "#c0392b"
FULLNESS = ((0.0, 0.35, 0.7, 0.85, 1.0), ("#c4dbea", "#86b5d8", "#2b7bba", "#f0a83a", "#b3261e"))
"""Colours of a broker's usage, always the same: from 85 % on it is overloaded. White: no data."""

_PAGE = {INK: "var(--ink)", MUTED: "var(--muted)", HAIR: "var(--hair)"}
_NAMESPACES = re.compile(r' xmlns(:\w+)?="[^"]*"')
_FONT = "system-ui, sans-serif"


class Chart(msgspec.Struct, frozen=True):
    """A picture, or why there is none: then `spec` is None and `note` says what is missing."""

    name: str
    title: str
    note: str
    spec: dict[str, Any] | None = None


class Drawn(msgspec.Struct, frozen=True):
    """A chart as it goes into the page and into a file."""

    chart: Chart
    svg: str = ""
    png: bytes = b""


def altair() -> Any:
    """Altair. Raises Invalid where the extra is missing."""
    return drawing.altair("history")


def spec_of(chart: Any) -> dict[str, Any]:
    """An Altair chart in the house style, as Vega-Lite."""
    styled = (
        chart.configure(background="white", font=_FONT, padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            grid=False, labelColor=MUTED, titleColor=MUTED, domainColor=HAIR, tickColor=HAIR, gridColor=HAIR,
            labelFontSize=11, titleFontSize=11, titleFontWeight="normal", titlePadding=8,
        )
        .configure_axisY(grid=True, domain=False, ticks=False)
        .configure_legend(
            title=None, labelColor=MUTED, labelFontSize=11, orient="top", direction="horizontal", titleColor=MUTED,
            symbolStrokeWidth=2, columnPadding=24,
        )
        .configure_header(labelColor=INK, labelFontSize=11, title=None, labelAnchor="start", labelFontWeight="normal")
    )  # fmt: skip
    spec: dict[str, Any] = styled.to_dict()
    return spec


def draw(chart: Chart) -> Drawn:
    """The SVG, without anything from outside, and the PNG; a chart without a spec stays without."""
    if chart.spec is None:
        return Drawn(chart)
    converter = importlib.import_module("vl_convert")
    svg: str = converter.vegalite_to_svg(chart.spec)
    titled = chart.spec | {
        "title": {
            "text": textwrap.wrap(chart.title, LINE),
            "anchor": "start",
            "fontSize": 14,
            "color": INK,
            "offset": 12,
        },
        "padding": 12,
    }
    return Drawn(chart, _for_page(svg, chart.title), converter.vegalite_to_png(titled, scale=SCALE))


def _for_page(svg: str, title: str) -> str:
    svg = _NAMESPACES.sub("", svg, count=2)
    svg = re.sub(r'<rect width="[\d.]+" height="[\d.]+" fill="white"/>', "", svg, count=1)
    svg = re.sub(
        r'(<svg[^<>]*?) width="([\d.]+)" height="[\d.]+"', r'\1 width="100%" style="max-width: \2px"', svg, count=1
    )
    for colour, name in _PAGE.items():
        svg = svg.replace(f'"{colour}"', f'"{name}"')
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def ms(at: datetime) -> int:
    """As Vega wants times."""
    return round(at.timestamp() * 1000)


def clock(at: datetime, span_s: float) -> str:
    """A time as it is read beside a picture that spans so many seconds."""
    at = at.astimezone(UTC)
    return at.strftime(
        "%H:%M:%S" if span_s <= 7_200 else "%a %d %b, %H:%M" if span_s <= 8 * 86_400 else "%d %b %Y, %H:%M"
    )


def duration(seconds: float) -> str:
    """A duration in its natural unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"


def times(library: Any, span: Span, *, labels: bool = True) -> Any:
    """The x axis of charts over time: `at`, ms, shown in UTC, from one end of the span to the other."""
    scale = library.Scale(type="utc", nice=False, domain=[ms(span.begin), ms(span.end)])
    forms = ((600, "%H:%M:%S"), (2 * DAY_S, "%H:%M"), (5 * DAY_S, "%a %H:%M"))
    form = next((form for most_s, form in forms if span.seconds <= most_s), "%a %d %b")
    axis = library.Axis(tickCount=8, labelOverlap=True, format=form, labels=labels, ticks=labels, domain=labels)
    return library.X("at:T", title=None, scale=scale, axis=axis)


def names(library: Any, field: str, values: Iterable[str]) -> Any:
    """The y axis of named things, in natural order: b2 before b10."""
    there = list(dict.fromkeys(values))
    room = min(LONGEST_NAME_PX, CHARACTER_PX * max(map(len, there)))  # browsers have other fonts than who measures here
    axis = library.Axis(grid=False, labelLimit=LONGEST_NAME_PX, minExtent=room)
    return library.Y(f"{field}:N", title=None, sort=there, axis=axis)


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers in them by the numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def stacked(rows: Sequence[dict[str, Any]], by: str, value: str) -> list[dict[str, Any]]:
    """The rows with `low` and `high`: each on top of those before it with the same `by`."""
    heights: dict[Any, float] = {}
    found: list[dict[str, Any]] = []
    for row in rows:
        low = heights.get(row[by], 0)
        heights[row[by]] = low + row[value]
        found.append({**row, "low": low, "high": low + row[value]})
    return found


def whole(library: Any, count: int = 4) -> Any:
    """An axis for counts: whole numbers only."""
    return library.Axis(tickMinStep=1, tickCount=count, format="d")
