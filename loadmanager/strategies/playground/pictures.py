"""Draws games, as PNG and as a page that needs no network: brokers over time, fullest over mean, load moved.

Needs the extra `playground` (Altair and vl-convert), imported when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmanager.errors import Invalid
from loadmanager.strategies.playground import drawing
from loadmanager.strategies.playground.game import Run
from loadmanager.strategies.playground.measures import Game

WIDTH = 640
SCALE = 1.1
"""PNG pixels for each pixel of the page."""
COLOURS = ("#1b6ca8", "#e07b39", "#3a9a5b", "#a23e8c", "#8a8d91", "#c7a008", "#5d4bb0", "#b23a3a")


def draw(games: Sequence[Game], directory: Path) -> list[Path]:
    """Draw one game of each strategy on the same scenario; returns the files.

    Raises Invalid without the extra, or if the directory cannot be written.
    """
    altair = drawing.altair("playground")
    name = games[0].run.scenario.name
    chart = _page(altair, [game.run for game in games], games)
    paths = [directory / f"{name}.png", directory / f"{name}.html"]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        chart.save(str(paths[0]), scale_factor=SCALE)
        chart.save(str(paths[1]), inline=True)
    except OSError as error:
        raise Invalid(f"--out {directory}: {error}") from None
    return paths


def _page(altair: Any, runs: Sequence[Run], games: Sequence[Game]) -> Any:
    scenario = runs[0].scenario
    order = [run.strategy for run in runs]
    scale = altair.Scale(domain=order, range=COLOURS[: len(order)])
    parts = [_lines(altair, runs, scale), _bars(altair, games, order, scale), *_maps(altair, runs)]
    title = altair.Title(
        f"{scenario.name}: {scenario.brokers} brokers, {len(scenario.bundles)} bundles",
        subtitle=f"{scenario.rounds} rounds of {scenario.interval_s:g} s, seed {games[0].measures.seed}",
    )
    return (
        altair.vconcat(*parts, spacing=24)
        .properties(title=title, background="white")
        .resolve_scale(color="independent")
        .configure_view(stroke=None)
        .configure_axis(grid=False, labelFontSize=11, titleFontSize=11, titleFontWeight="normal")
        .configure_title(anchor="start", fontSize=15, subtitleColor="#555")
        .configure_legend(title=None, labelFontSize=11)
    )


def _lines(altair: Any, runs: Sequence[Run], scale: Any) -> Any:
    """The fullest broker over the mean one, with a mark in rounds with moves."""
    data = altair.Data(values=[row for run in runs for row in _over_time(run)])
    top = max(1.5, float(np.percentile([row["over"] for run in runs for row in _over_time(run)], 99)) * 1.05)
    x = altair.X("minutes:Q", title="minutes", axis=altair.Axis(tickCount=8), scale=altair.Scale(nice=False))
    y = altair.Y("over:Q", title="fullest ÷ mean", scale=altair.Scale(domain=[1.0, top], clamp=True))
    colour = altair.Color("strategy:N", scale=scale)
    base = altair.Chart(data)
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour)
    marks = (
        base.transform_filter("datum.moves > 0")
        .mark_point(filled=True, opacity=0.55)
        .encode(
            x=x, y=y, color=colour,
            size=altair.Size("moves:Q", legend=None, scale=altair.Scale(type="sqrt", range=[8, 160])),
            tooltip=["strategy:N", "minutes:Q", "over:Q", "moves:Q"],
        )
    )  # fmt: skip
    tolerance = (
        altair.Chart(altair.Data(values=[{"over": 1 + runs[0].ruler.tolerance}]))
        .mark_rule(strokeDash=[4, 4], color="#777")
        .encode(y=y)
    )
    title = altair.Title("Fullest broker over the mean; a dot is a round with moves", fontSize=12, frame="group")
    return altair.layer(tolerance, lines, marks).properties(width=WIDTH, height=190, title=title)


def _bars(altair: Any, games: Sequence[Game], order: Sequence[str], scale: Any) -> Any:
    """The fraction of all load that was moved; the tick is what had to move for that outcome."""
    values = [
        {
            "strategy": game.measures.strategy,
            "moved": game.measures.moved_percent,
            "bound": game.measures.bound * game.measures.moved_percent / game.measures.moved
            if game.measures.moved
            else 0.0,
            "label": f"{game.measures.moved_percent:.0f} % in {game.measures.moves} moves",
        }
        for game in games
    ]
    base = altair.Chart(altair.Data(values=values)).encode(y=altair.Y("strategy:N", sort=order, title=None))
    bars = base.mark_bar(height=12).encode(
        x=altair.X("moved:Q", title="% of the cluster's load", axis=altair.Axis(tickCount=8)),
        color=altair.Color("strategy:N", scale=scale, legend=None),
    )
    ticks = base.mark_tick(color="black", thickness=2, size=16).encode(x="bound:Q")
    labels = base.mark_text(align="left", dx=8, fontSize=11, color="#333").encode(x="moved:Q", text="label:N")
    title = altair.Title("Load moved; the black tick is what had to move to get as far", fontSize=12, frame="group")
    return altair.layer(bars, ticks, labels).properties(width=WIDTH, height=18 * len(order) + 8, title=title)


def _maps(altair: Any, runs: Sequence[Run]) -> Iterator[Any]:
    """A heat map for each strategy: brokers against time, coloured by usage."""
    domain, colours = [0, 0.7, 0.78, 0.85, 1.0], ["#f4f8fb", "#4f94c4", "#f5dd9d", "#e8963a", "#a61c1c"]
    scale = altair.Scale(domain=domain, range=colours, clamp=True, interpolate="rgb")
    for run in runs:
        data = altair.Data(values=list(_cells(run)))
        step = run.scenario.interval_s / 60
        yield (
            altair.Chart(data)
            .transform_calculate(until=f"datum.minutes + {step}")
            .mark_rect(strokeWidth=0.5)
            .encode(
                x=altair.X("minutes:Q", title=None, axis=altair.Axis(tickCount=8), scale=altair.Scale(nice=False)),
                x2="until:Q",
                y=altair.Y("broker:O", title="broker", axis=altair.Axis(labels=False, ticks=False)),
                color=altair.Color("usage:Q", scale=scale, legend=altair.Legend(format="%", gradientLength=70)),
                stroke=altair.Stroke("usage:Q", scale=scale, legend=None),
                tooltip=["broker:O", "minutes:Q", altair.Tooltip("usage:Q", format=".0%")],
            )
            .properties(width=WIDTH, height=max(70, 7 * run.scenario.brokers), title=_titled(altair, run))
        )


def _titled(altair: Any, run: Run) -> Any:
    return altair.Title(f"{run.strategy}: how full each broker is", fontSize=12, frame="group")


def _over_time(run: Run) -> list[dict[str, Any]]:
    usage = np.where(run.taking_part, run.usage, np.nan)
    mean = np.nanmean(usage, axis=1)
    over = np.divide(np.nanmax(usage, axis=1), mean, out=np.ones_like(mean), where=mean > 0)
    moves = np.bincount([each.round for each in run.moved if each.how != "death"], minlength=len(over))
    return [
        {
            "strategy": run.strategy,
            "minutes": round(at * run.scenario.interval_s / 60, 2),
            "over": round(float(over[at]), 4),
            "moves": int(moves[at]),
        }
        for at in range(len(over))
    ]


def _cells(run: Run) -> Iterator[dict[str, Any]]:
    for at, broker in np.argwhere(~np.isnan(run.usage)).tolist():
        minutes = round(at * run.scenario.interval_s / 60, 2)
        yield {"broker": broker, "minutes": minutes, "usage": round(float(run.usage[at, broker]), 2)}
