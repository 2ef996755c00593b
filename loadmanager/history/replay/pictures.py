"""The ranking as a picture, as PNG and as an HTML page that needs no network.

It shows each candidate's cost and its terms, with intervals, and the difference to the record in each window. Needs
Altair and vl-convert, which are imported at drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadmanager.errors import Invalid
from loadmanager.history.replay.candidates import RECORDED
from loadmanager.history.replay.ranking import Ranked, ReplayResult
from loadmanager.strategies.playground import drawing

WIDTH = 560
SCALE = 1.3
"""Pixels of the PNG for one of the page."""
TERMS = ("overload", "imbalance", "moved", "gap")
COLOURS = ("#a61c1c", "#1b6ca8", "#e07b39", "#8a8d91")
_CHANGES = ("#3a9a5b", "#f4f4f4", "#b23a3a")


def draw(result: ReplayResult, directory: Path) -> list[Path]:
    """Draws it; returns the files. Raises Invalid if the directory cannot be written, or the extra is missing."""
    paths = [directory / "replay.png", directory / "replay.html"]
    picture = chart(result)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        picture.save(str(paths[0]), scale_factor=SCALE)
        picture.save(str(paths[1]), inline=True)
    except OSError as error:
        raise Invalid(f"{directory}: {error}") from None
    return paths


def chart(result: ReplayResult) -> Any:
    """An Altair chart."""
    altair = drawing.altair("history")
    names = [each.candidate for each in result.ranked]
    parts = [_costs(altair, result, names)]
    if RECORDED in names and len(names) > 1:
        parts.append(_windows(altair, result, [name for name in names if name != RECORDED]))
    title = altair.Title(
        f"Replay of {result.windows} windows of {result.window_s / 60:g} minutes",
        subtitle=f"{result.begin[:16]} to {result.end[:16]} UTC. {result.verdict}",
    )
    return (
        altair.vconcat(*parts, spacing=24)
        .properties(title=title, background="white")
        .resolve_scale(color="independent")
        .configure_view(stroke=None)
        .configure_axis(grid=False, labelFontSize=11, titleFontSize=11, titleFontWeight="normal", labelLimit=280)
        .configure_title(anchor="start", fontSize=15, subtitleColor="#555")
        .configure_legend(title=None, labelFontSize=11)
    )


def _costs(altair: Any, result: ReplayResult, names: Sequence[str]) -> Any:
    """Stacked terms of the objective, its interval, and the lower bound."""
    played = [each for each in result.ranked if each.windows]
    weights = [result.objective[name] for name in TERMS]
    values = [
        {"candidate": each.candidate, "term": term, "order": order, "cost": weight * _term(each, term)}
        for each in played
        for order, (term, weight) in enumerate(zip(TERMS, weights, strict=True))
    ]
    spans = [
        {
            "candidate": each.candidate,
            "low": each.objective.low,
            "high": each.objective.high,
            "bound": each.objective.mean - each.regret.mean,
            "label": f"{each.objective.mean:.3f}" + (f", broke rules in {each.violations}" if each.violations else ""),
        }
        for each in played
    ]
    y = altair.Y("candidate:N", sort=list(names), title=None)
    bars = (
        altair.Chart(altair.Data(values=values))
        .mark_bar(height=13)
        .encode(
            y=y,
            x=altair.X("cost:Q", title="cost, in brokers", axis=altair.Axis(tickCount=8)),
            color=altair.Color("term:N", scale=altair.Scale(domain=list(TERMS), range=list(COLOURS))),
            order="order:O",
            tooltip=["candidate:N", "term:N", altair.Tooltip("cost:Q", format=".4f")],
        )
    )
    base = altair.Chart(altair.Data(values=spans)).encode(y=y)
    rules = base.mark_rule(color="black").encode(x="low:Q", x2="high:Q")
    ticks = base.mark_tick(color="#3a9a5b", thickness=2, size=17).encode(x="bound:Q")
    labels = base.mark_text(align="left", dx=6, fontSize=11, color="#333").encode(x="high:Q", text="label:N")
    title = altair.Title(
        "What each would have cost; the line is its 95 % interval, the green tick the least possible",
        fontSize=12,
        frame="group",
    )
    return altair.layer(bars, rules, ticks, labels).properties(width=WIDTH, height=22 * len(names), title=title)


def _term(each: Ranked, term: str) -> float:
    return {
        "overload": each.overload,
        "imbalance": each.imbalance,
        "moved": each.moved_an_hour,
        "gap": each.gap_s_an_hour,
    }[term]


def _windows(altair: Any, result: ReplayResult, names: Sequence[str]) -> Any:
    """Candidates against time: green where a window cost less than what the cluster did."""
    record = {row.begin: row.objective for row in result.rows if row.candidate == RECORDED}
    values: list[dict[str, Any]] = [
        {"candidate": row.candidate, "begin": row.begin, "change": row.objective - before}
        for row in result.rows
        if row.candidate != RECORDED and row.objective is not None and (before := record.get(row.begin)) is not None
    ]
    most = max((abs(each["change"]) for each in values), default=0.0) or 1.0
    colour = altair.Scale(domain=[-most, 0, most], range=list(_CHANGES), interpolate="rgb")
    title = altair.Title("Window by window: cost above (red) or below what the cluster did", fontSize=12, frame="group")
    return (
        altair.Chart(altair.Data(values=values))
        .mark_rect()
        .encode(
            x=altair.X("begin:O", title=None, axis=altair.Axis(labelAngle=-40, labelOverlap=True, labelLimit=90)),
            y=altair.Y("candidate:N", sort=list(names), title=None),
            color=altair.Color("change:Q", scale=colour, legend=altair.Legend(format="+.2f", gradientLength=70)),
            tooltip=["candidate:N", "begin:O", altair.Tooltip("change:Q", format="+.4f")],
        )
        .properties(width=WIDTH, height=22 * len(names), title=title)
    )
