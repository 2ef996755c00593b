"""Pictures of load: brokers against time, and how far apart they were while the leader worked on it."""

from __future__ import annotations

from typing import Any

from loadmanager.history.report.drawing import (
    AMBER,
    BLUE,
    FULLNESS,
    MUTED,
    WIDTH,
    Chart,
    altair,
    clock,
    duration,
    ms,
    names,
    natural,
    spec_of,
    times,
    whole,
)
from loadmanager.history.report.material import Material
from loadmanager.strategies.playground.bounds import IDLE

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
