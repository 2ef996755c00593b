"""`loadmanager playground`: balancing strategies against made-up or recorded loads, as a table and as pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import msgspec

from loadmanager.errors import Invalid
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.game import InvariantViolation
from loadmanager.strategies.playground.measures import Game, Measures, Summary, games, summaries
from loadmanager.strategies.playground.pictures import draw
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import TRACE, WORKLOADS
from loadmanager.strategies.registry import STRATEGIES
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.options import ParamType, prints
from loadmanager_api.cli.printing import echo, show
from loadmanager_api.cli.remote import Remote

ALL = "all"
COLUMNS = (
    "workload", "strategy", "max/mean", "worst", "std", "moved %", "÷ certificate", "moves", "returns",
    "rounds to balance", "above tolerance %", "overloaded s", "gap s", "ends within",
)  # fmt: skip


class Names(ParamType[list[str]]):
    """Names with commas between them."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:  # noqa: ARG002 - click's signature
        return value if isinstance(value, list) else [each.strip() for each in str(value).split(",") if each.strip()]


@click.command(
    epilog=f"Workloads: {', '.join(WORKLOADS)}; with --trace also {TRACE}.",
    short_help="Compare balancing strategies on generated or recorded loads.",
)
@click.option(
    "--strategies", type=Names(), default=ALL, show_default=True, help="Strategies, with commas between; or all."
)
@click.option("--workload", type=Names(), help="Workloads, with commas between; or all.  [default: zipf, or the trace]")
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Number of seeds, from --seed on.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(2, 1_000),
    default=Size().brokers,
    show_default=True,
    help="Number of brokers.",
)
@click.option(
    "--bundles",
    metavar="N",
    type=click.IntRange(2, 100_000),
    default=Size().bundles,
    show_default=True,
    help="Number of bundles.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(12, 100_000),
    default=Size().rounds,
    show_default=True,
    help="Number of rounds.",
)
@click.option(
    "--top", metavar="N", type=click.IntRange(1), help="Number of bundles that a broker reports.  [default: all]"
)
@click.option(
    "--delay", metavar="N", type=click.IntRange(0), default=0, show_default=True, help="Rounds that a move takes."
)
@click.option(
    "--stale",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Most rounds by which a report lags.",
)
@click.option(
    "--noise",
    metavar="X",
    type=click.FloatRange(0.0, 2.0),
    default=0.0,
    show_default=True,
    help="How wrongly a broker divides its load among its bundles: 0.2 is a fifth.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="A CSV file of time,key,rate, as a workload.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for pictures of the first seed.")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any setting; repeatable.")
@prints
def playground(
    remote: Remote,
    strategies: list[str],
    workload: list[str] | None,
    seeds: int,
    seed: int,
    brokers: int,
    bundles: int,
    rounds: int,
    top: int | None,
    delay: int,
    stale: int,
    noise: float,
    trace: Path | None,
    out: Path | None,
    more: tuple[str, ...],
) -> None:
    """Compare balancing strategies on loads: how even they keep a cluster, and how much they move for it.

    The strategies are those that run in a cluster. "÷ certificate" is the load that a strategy moved, divided by the
    load that it proves to have had to move. The command touches nothing outside its process.
    """
    if bundles < brokers:
        raise click.UsageError(f"--bundles {bundles}: give at least one for each of {brokers} brokers")
    chosen = STRATEGIES.names() if strategies == [ALL] else strategies
    size = Size(brokers, bundles, rounds)
    conditions = Conditions(delay_rounds=delay, stale_rounds=stale, top_bundles=top, noise=noise)
    settings = settings_of({}, more)
    try:
        playing = games(
            *(chosen, _workloads(workload, trace), range(seed, seed + seeds), size, settings),
            trace=trace,
            conditions=conditions,
        )
        figures: list[Measures] = []
        drawn: list[Game] = []
        for game in playing:
            figures.append(game.measures)
            if out is not None and game.measures.seed == seed:
                drawn.append(game)
        rows = summaries(figures)
        answer = [{name: _number(value) for name, value in msgspec.structs.asdict(each).items()} for each in rows]
        show(remote, answer, COLUMNS, [_row(each) for each in rows])
        if out is not None:
            for name in dict.fromkeys(game.measures.workload for game in drawn):
                for path in draw([game for game in drawn if game.measures.workload == name], out):
                    echo(f"drawn: {path}", err=True)
    except (Invalid, InvariantViolation) as error:
        raise Failed(str(error)) from None


def _workloads(given: list[str] | None, trace: Path | None) -> list[str]:
    recorded = [TRACE] if trace is not None else []
    if given is None:
        return recorded or ["zipf"]
    return [*WORKLOADS, *recorded] if given == [ALL] else given


def _row(each: Summary) -> tuple[object, ...]:
    return (
        each.workload,
        each.strategy,
        f"{each.max_over_mean:.2f}",
        f"{each.max_over_mean_worst:.2f}",
        f"{each.std:.3f}",
        f"{each.moved_percent:.1f}",
        f"{each.certificate_ratio:.2f}" if math.isfinite(each.certificate_ratio) else "-",
        f"{each.moves:.0f}",
        each.returns,
        f"{each.rounds_to_balance:.1f}",
        f"{each.above_tolerance_percent:.1f}",
        f"{each.overloaded_broker_s:.0f}",
        f"{each.gap_s:.1f}",
        f"{each.ends_within} of {each.seeds}",
    )


def _number(value: Any) -> Any:
    """What JSON can say: no infinity, no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
