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

from loadmanager.history.report.material import DAY_S, HOUR_S, Material, Span
from loadmanager.strategies.playground import drawing
from loadmanager.strategies.playground.bounds import IDLE

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


ROW_PX, LEAST_PX = 22, 90
FULLEST, MEAN = "fullest broker", "mean"


def heat_map(material: Material) -> Chart:
    """Brokers against time; the colour is how full each was."""
    library, span = altair(), material.span
    peak = max(material.cells, key=lambda cell: cell["usage"])
    shown = len({cell["broker"] for cell in material.cells})
    title = (
        f"{_brokers(material, shown)}: the fullest moment was {peak['usage']:.0%} on {peak['broker']}, "
        f"{clock(peak['at'], span.seconds)}"
    )
    rows = [
        {
            "at": ms(cell["at"]),
            "until": ms(cell["at"]) + span.bucket_s * 1000,
            "broker": cell["broker"],
            "usage": cell["usage"],
            "says": f"{cell['broker']}, {clock(cell['at'], span.seconds)}: {cell['usage']:.0%} full",
        }
        for cell in material.cells
    ]
    domain, colours = FULLNESS
    scale = library.Scale(domain=list(domain), range=list(colours), clamp=True, interpolate="rgb")
    legend = library.Legend(format="%", gradientLength=340, gradientThickness=8, values=list(domain))
    chart = (
        library.Chart(library.Data(values=rows))
        .mark_rect(clip=True)
        .encode(
            x=times(library, span),
            x2="until:T",
            y=names(library, "broker", sorted({cell["broker"] for cell in material.cells}, key=natural)),
            color=library.Color("usage:Q", scale=scale, legend=legend),
            description="says:N",
        )
        .properties(width=WIDTH, height=max(LEAST_PX, ROW_PX * shown if shown <= 12 else 13 * shown))
    )
    note = (
        f"Each field is the mean over {duration(span.bucket_s)} of the use of the broker's fullest resource. "
        "Empty: no recent report. Orange: overloaded, from 85 % on. Times are UTC."
    )
    return Chart("heat-map", title, note, spec_of(chart))


def _brokers(material: Material, shown: int) -> str:
    if shown < material.brokers:
        return f"The {shown} of {material.brokers} brokers with the highest peaks"
    return f"{material.brokers} brokers" if material.brokers != 1 else "One broker"


def imbalance(material: Material) -> Chart:
    """The fullest broker and the mean over time, with the leader's decisions."""
    library, span = altair(), material.span
    moved = sum(row["moves"] for row in material.rounds)
    title = _imbalance_title(material)
    base = library.Chart(library.Data(values=_steps(material)))
    x = times(library, span)
    scale = library.Scale(domain=[0, max(row["max"] for row in material.levels) * 1.05], nice=False)

    def y(column: str) -> Any:
        return library.Y(f"{column}:Q", title="usage", scale=scale, axis=library.Axis(format="%", tickCount=5))

    colour = library.Color("line:N", scale=library.Scale(domain=[FULLEST, MEAN], range=[AMBER, BLUE]))
    step: dict[str, Any] = {"interpolate": "step-after", "aria": False, "clip": True}
    band = base.mark_area(opacity=0.22, color=BLUE, **step).encode(x=x, y=y("mean"), y2="allowed:Q")
    lines = [
        base.transform_calculate(line=f"'{name}'")
        .mark_line(strokeWidth=1.8, **step)
        .encode(x=x, y=y(column), color=colour)
        for name, column in ((FULLEST, "max"), (MEAN, "mean"))
    ]
    told = base.transform_filter("datum.says !== null")
    points = told.mark_point(size=60, opacity=0, filled=True).encode(x=x, y=y("max"), description="says:N")
    upper = library.layer(band, *lines, points).properties(width=WIDTH, height=190)
    charts = [upper]
    if material.rounds:
        charts.append(_decisions(library, material).properties(width=WIDTH, height=46))
    chart = library.vconcat(*charts, spacing=8).resolve_scale(x="shared", color="independent")
    note = (
        f"The pale band is tolerance: {material.tolerance:.0%} above the mean, or {IDLE:.0%} in all. Below: rounds of "
        f"the leader that began moves, {moved} in all; the higher the bar, the more moves."
    )
    return Chart("imbalance", title, note, spec_of(chart))


def _imbalance_title(material: Material) -> str:
    """The title. Only busy brokers count: imbalance of idle ones does not matter."""
    busy = [row for row in material.levels if row["max"] > IDLE]
    if not busy:
        return f"Nothing to balance: no broker was above {IDLE:.0%}"
    worst = max(busy, key=_over)
    beyond = sum(row["max"] > _allowed(row, material.tolerance) for row in busy) / len(material.levels)
    return (
        f"The fullest broker was at most {_over(worst):.2f} times the mean "
        f"({clock(worst['at'], material.span.seconds)}), and beyond tolerance {beyond:.0%} of the time"
    )


def _decisions(library: Any, material: Material) -> Any:
    rows = [
        {
            "at": ms(row["at"]),
            "until": ms(row["at"]) + material.span.bucket_s * 1000,
            "moves": row["moves"],
            "says": f"{clock(row['at'], material.span.seconds)}: {row['moves']} moves begun ({row['strategy']})",
        }
        for row in material.rounds
    ]
    return (
        library.Chart(library.Data(values=rows))
        .mark_rect(color=MUTED, clip=True)
        .encode(
            x=times(library, material.span, labels=False),
            x2="until:T",
            y=library.Y("moves:Q", title="moves", axis=whole(library, 2)),
            y2=library.datum(0),
            description="says:N",
        )
    )


def _over(level: dict[str, Any]) -> float:
    return level["max"] / level["mean"] if level["mean"] > 0 else 1.0


def _allowed(level: dict[str, Any], tolerance: float) -> float:
    return max(IDLE, (1 + tolerance) * level["mean"])


def _steps(material: Material) -> list[dict[str, Any]]:
    """The levels, each up to its bucket's end; the line is broken where no broker reported."""
    length_ms = material.span.bucket_s * 1000
    rows = [_level(row, material) for row in material.levels]
    begins = {row["at"] for row in rows}
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(row)
        end = row["at"] + length_ms
        if end not in begins:
            nothing = {"at": end, "mean": None, "max": None, "allowed": None, "says": None}
            found += [{**row, "at": end, "says": None}, nothing]
    return found


def _level(row: dict[str, Any], material: Material) -> dict[str, Any]:
    return {
        "at": ms(row["at"]),
        "mean": round(row["mean"], 4),
        "max": round(row["max"], 4),
        "allowed": round(_allowed(row, material.tolerance), 4),
        "says": f"{clock(row['at'], material.span.seconds)}: {row['broker']} {row['max']:.0%}, mean {row['mean']:.0%}, "
        f"of {row['brokers']} brokers",
    }


HOW = {"transfer": BLUE, "unload": AMBER, "failover": RED}
"""Ways of moving, in the words of the analysis `transfers`."""

NONE = "No bundle moved in this time."


def transfers(material: Material) -> Chart:
    """Moves over time, by how they came about."""
    name, span = "transfers", material.span
    if not material.moves:
        return Chart(name, "No bundle moved", NONE)
    library = altair()
    totals = {how: sum(row["moves"] for row in material.moves if row["how"] == how) for how in HOW}
    returned = sum(row["returned"] for row in material.gaps)
    parts = ", ".join(f"{count:,} by {how}" for how, count in totals.items() if count)
    title = f"{sum(totals.values()):,} moves: {parts}; {returned or 'none'} came back within the rest time"
    rows = [
        {
            "at": ms(row["at"]),
            "until": ms(row["at"]) + span.bucket_s * 1000,
            "how": row["how"],
            "moves": row["moves"],
            "says": f"{clock(row['at'], span.seconds)}: {row['moves']} by {row['how']}",
        }
        for row in material.moves
    ]
    chart = (
        library.Chart(library.Data(values=stacked(rows, "at", "moves")))
        .mark_rect(clip=True)
        .encode(
            x=times(library, span),
            x2="until:T",
            y=library.Y("low:Q", title=f"moves in {duration(span.bucket_s)}", axis=whole(library)),
            y2="high:Q",
            color=_colours(library, [how for how, count in totals.items() if count]),
            description="says:N",
        )
        .properties(width=WIDTH, height=120)
    )
    return Chart(
        name, title, "A transfer is warmed up at the new owner first; a failover follows a death.", spec_of(chart)
    )


def gaps(material: Material) -> Chart:
    """How long bundles were without service while they moved."""
    name = "gaps"
    if not material.gap_shares:
        return Chart(name, "No gaps", NONE)
    library = altair()
    title = "; ".join(_typical(material, how) for how in HOW if any(row["how"] == how for row in material.gaps))
    rows = [
        {
            **{key: row[key] for key in ("how", "low_s", "high_s", "moves")},
            "says": f"{row['moves']} by {row['how']}: {duration(row['low_s'])} to {duration(row['high_s'])}",
        }
        for row in material.gap_shares
    ]
    axis = library.Axis(labelExpr=_LOG_LABELS, values=[0.001, 0.01, 0.1, 1, 10, 100, 1000], grid=False)
    chart = (
        library.Chart(library.Data(values=stacked(rows, "low_s", "moves")))
        .mark_rect()
        .encode(
            x=library.X("low_s:Q", title="without service", scale=library.Scale(type="log"), axis=axis),
            x2="high_s:Q",
            y=library.Y("low:Q", title="moves", axis=whole(library)),
            y2="high:Q",
            color=_colours(library, list({row["how"]: None for row in rows})),
            description="says:N",
        )
        .properties(width=WIDTH, height=140)
    )
    note = (
        "From the record with which the old owner stops serving to the one with which the new owner serves, on a "
        "logarithmic scale. Clients wait about that long; in a failover, the detection comes before it."
    )
    return Chart(name, title[:1].upper() + title[1:], note, spec_of(chart))


_LOG_LABELS = "datum.value < 1 ? format(datum.value * 1000, 'd') + ' ms' : format(datum.value, 'd') + ' s'"


def _typical(material: Material, how: str) -> str:
    kinds = [row for row in material.gaps if row["how"] == how and row["p50_s"] is not None]
    if not kinds:
        return f"{how}s without a known gap"
    most = max(kinds, key=lambda row: row["moves"])
    worst = max(row["max_s"] for row in kinds)
    return f"{how}s took {duration(most['p50_s'])} in the median, {duration(worst)} at worst"


def _colours(library: Any, names: list[str]) -> Any:
    shown = [name for name in HOW if name in names]
    return library.Color("how:N", scale=library.Scale(domain=shown, range=[HOW[name] for name in shown]))


LEAST_HOURS = 6
EXPLAINED = 0.1
"""A model with an R² below this tells nothing, and is not drawn."""
NOTHING = 1e-6
"""A cost below this is rounding."""
TOGETHER = 0.05
"""A load with less variance of its own than this part has a cost that cannot be told from those of others."""
UNITS = {
    "cpu": "cores",
    "memory": "bytes",
    "bandwidth in": "bytes/s",
    "bandwidth out": "bytes/s",
    "message rate": "messages/s",
}


def forecast(material: Material) -> Chart:
    """The hottest bundles' past and what follows, with the band in which nine of ten hours should fall."""
    name = "forecast"
    hours_known = len({row["at"] for row in material.history})
    if not material.forecast or hours_known < LEAST_HOURS:
        why = f"A forecast needs hours of load, and seasons a day or two; {hours_known} h of these bundles are known."
        return Chart(name, "No forecast yet", why)
    library = altair()
    bundles = list({row["bundle"]: None for row in material.forecast})
    errors = [row["mape"] for row in material.forecast if row["mape"] is not None]
    how_good = (
        f", {sum(errors) / len(errors):.0%} off on average in the past" if errors else ", not yet tried on the past"
    )
    hours = len({row["at"] for row in material.forecast})
    title = f"The {_count(bundles)} hottest bundles, {hours} hours ahead{how_good}"
    last = bundles[-1]
    panels = [_panel(library, bundle, material, labels=bundle == last) for bundle in bundles]
    note = (
        f"Grey: the past, by hour, in {UNITS[material.measure]}. Blue: the forecast by the method that was best for "
        "this bundle in a backtest; nine of ten hours should lie in the band."
    )
    return Chart(name, title, note, spec_of(library.vconcat(*panels, spacing=10).resolve_scale(x="shared")))


def _count(bundles: list[str]) -> str:
    return {1: "single", 2: "two", 3: "three", 4: "four"}.get(len(bundles), str(len(bundles)))


def _panel(library: Any, bundle: str, material: Material, *, labels: bool) -> Any:
    past = [{"at": ms(row["at"]), "load": row["load"]} for row in material.history if row["bundle"] == bundle]
    future = [
        {
            "at": ms(row["at"]),
            **{key: row[key] for key in ("predicted", "low", "high")},
            "says": f"{clock(row['at'], DAY_S * 2)}: {row['predicted']:.3g}, {row['low']:.3g} to {row['high']:.3g}",
        }
        for row in material.forecast
        if row["bundle"] == bundle
    ]
    moments = [row["at"] for row in (*material.history, *material.forecast)]
    x = times(library, Span(min(moments), max(moments), HOUR_S), labels=labels)
    ahead = library.Chart(library.Data(values=future)).encode(x=x)
    axis = library.Axis(tickCount=3, format="~g" if material.measure == "cpu" else "~s")
    layers = [
        library.Chart(library.Data(values=past))
        .mark_line(color=MUTED, strokeWidth=1.3, aria=False)
        .encode(x=x, y=library.Y("load:Q", title=None, axis=axis)),
        ahead.mark_area(color=BLUE, opacity=0.2, aria=False).encode(y=library.Y("low:Q", title=None), y2="high:Q"),
        ahead.mark_line(color=BLUE, strokeWidth=1.8, aria=False).encode(y="predicted:Q"),
        ahead.mark_point(size=50, opacity=0, filled=True).encode(y="predicted:Q", description="says:N"),
    ]
    heading = library.Title(bundle, anchor="start", fontSize=11, fontWeight="normal", color=INK)
    return library.layer(*layers).properties(width=WIDTH, height=84, title=heading)


def replay(material: Material) -> Chart:
    """Candidates, the best first: each one's regret against the optimum in hindsight."""
    name, found = "replay", material.found.replay
    if found is None or not found.rows:
        return Chart(name, "Not replayed yet", "Run `loadmanager history replay`; the next report shows its ranking.")
    library = altair()
    rows = [
        {
            "candidate": _ranked(row),
            **row["regret"],
            "kind": "recorded" if row["candidate"] == "recorded" else "best" if row["rank"] == 1 else "other",
            "says": f"{row['candidate']}: regret {row['regret']['mean']:.3g} ({row['regret']['low']:.3g} to "
            f"{row['regret']['high']:.3g}), {row['moves']:.1f} moves a window, "
            f"fullest over mean {row['max_over_mean']['mean']:.2f}",
        }
        for row in found.rows
    ]
    scale = library.Scale(domain=["best", "recorded", "other"], range=[BLUE, COLOURS[1], COLOURS[4]])
    base = library.Chart(library.Data(values=rows)).encode(
        y=names(library, "candidate", (row["candidate"] for row in rows)),
        color=library.Color("kind:N", scale=scale, legend=None),
    )
    axis = library.Axis(grid=True, tickCount=6)
    layers = [
        base.mark_rule(strokeWidth=3, opacity=0.45, aria=False).encode(
            x=library.X("low:Q", title="regret: cost above the optimum in hindsight", axis=axis), x2="high:Q"
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(x="mean:Q", description="says:N"),
    ]
    chart = library.layer(*layers).properties(width=WIDTH - 230, height=24 * len(rows) + 10)
    note = (
        "Each candidate plays the recorded load in the simulator, window by window, with the code that runs in "
        "brokers. The line is the 95 % interval over windows; blue is the best, orange what the cluster did."
    )
    return Chart(name, str(found.facts.get("verdict") or "How candidates would have done"), note, spec_of(chart))


def _ranked(row: dict[str, Any]) -> str:
    return f"{row['rank']}  {row['candidate']}" + ("  (broke a rule)" if row["violations"] else "")


def capacity(material: Material) -> Chart:
    """What each kind of load costs, by kind of broker."""
    name = "capacity"
    explaining = [row for row in material.capacity if row["r2"] is not None and row["r2"] >= EXPLAINED]
    rows = [row for row in explaining if row["coefficient"] > NOTHING]
    if not rows:
        why = f"The model needs minutes whose loads differ enough to explain {EXPLAINED:.0%} of the brokers' CPU."
        return Chart(name, "No capacity model yet", why)
    library = altair()
    kinds = list({row["kind"]: None for row in rows})
    explained = f"explains {min(row['r2'] for row in rows):.0%} of the variation of their CPU"
    others = material.kinds - len(kinds[:2])
    more = f" (and {others} more kinds)" if others > 0 else ""
    title = f"What load costs a broker of {' or '.join(kinds[:2])}{more}: the model {explained}"
    values = [_bar(row) for row in rows]
    base = library.Chart(library.Data(values=values)).encode(y=names(library, "term", (row["term"] for row in values)))
    bars = base.mark_bar(height=12).encode(
        opacity=library.Opacity("opacity:Q", scale=None, legend=None),
        x=library.X("coefficient:Q", title="cores", axis=library.Axis(grid=True, tickCount=5)),
        color=library.Color("kind:N", scale=library.Scale(domain=kinds, range=list(COLOURS[: len(kinds)]))),
        yOffset=library.YOffset("kind:N"),
        description="says:N",
    )
    errors = base.mark_rule(color=MUTED, strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q", yOffset="kind:N")
    height = library.Step(18)
    chart = library.layer(bars, errors).properties(width=WIDTH - 200, height=height)
    note = (
        "A regression over broker minutes; the thin line is the 95 % interval. The model cannot separate loads that "
        "always rise together: then their sum is right and its division is not; such bars are pale."
    )
    return Chart(name, title, note, spec_of(chart))


def _bar(row: dict[str, Any]) -> dict[str, Any]:
    error = 1.96 * (row["standard_error"] or 0.0)
    together = row["alone"] is not None and row["alone"] < TOGETHER
    unit = row["unit"].removeprefix("cores").strip()
    return {
        "term": f"{row['term']}, {unit}" if unit else row["term"],
        "kind": row["kind"],
        "coefficient": row["coefficient"],
        "low": max(0.0, row["coefficient"] - error),
        "high": row["coefficient"] + error,
        "opacity": 0.4 if together else 1.0,
        "says": f"{row['term']}: {row['coefficient']:.3g} {row['unit']}, on {row['kind']}"
        + (", not separable from loads that rise with it" if together else ""),
    }
