"""The default strategy and Pulsar's over all workloads, and what the default one promises, held against it.

Pure simulation (`loadmanager.strategies.playground`), the same on every machine; `--log` means nothing here. One JSON
line for each workload and strategy, one for each promise with games that broke it, and tables on stderr.

All is played twice: with exact and fresh reports and moves that are done at once, and in the field, where moves take a
round, reports are up to a round old, only the 25 largest bundles of a broker are known, and brokers divide their load
wrongly among them. Pulsar's strategies play with settings that bring them near our tolerance: with their defaults they
seldom get there. `overload` does nothing below 85 %, and does not play.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from bench.figures import emit, finite
from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.measures import Measures, Summary, games, summaries
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import WORKLOADS
from loadmanager.strategies.rebalancing.pulsar.avg import Avg
from loadmanager.strategies.rebalancing.pulsar.shedder import Tuning
from loadmanager.strategies.rebalancing.pulsar.shedding import Threshold, Uniform
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer
from loadmanager.strategies.rebalancing.strategy import Strategy
from loadmanager.strategies.registry import Evacuating

SEEDS = range(1, 4)
FIELD = Conditions(delay_rounds=1, stale_rounds=1, top_bundles=25, noise=0.2)
ITS_SETTINGS = Settings(shedder_hit_count=0, shedder_delay_s=0)
TUNING = Tuning(
    target_std=0.03, max_brokers=10, history=0.0, threshold_percent=3, lower_boundary=True, rate_percent=10,
    throughput_factor=1.1, unload_fraction=0.5, unload_min_rate_msg_s=100, low_percent=3, low_hits=1, high_percent=10,
    high_hits=1,
)  # fmt: skip
"""With which Pulsar's strategies come as near to our tolerance as they can."""
OURS = "plan"
THEIRS = (Avg, Threshold, Transfer, Uniform)
AS_LITTLE = 1.02
OF_THE_BOUND = 1.05
FIELD_ABOVE_PERCENT = 10.0
AS_LONG_PERCENT = 5.0
"""Who is beyond tolerance for so much longer than ours, in points of the rounds, did not do the same work."""
SHOWN = 12
"""Games that are named for each promise that was broken."""

Key = tuple[str, int]
Found = tuple[int, list[str]]
"""How many cases there were, and those that broke the promise, the worst first."""


def run(kind: str) -> None:
    """All figures of this bench."""
    begin = time.perf_counter()
    for name, conditions in (("exact", Conditions()), ("field", FIELD)):
        ours = play_all([OURS], SEEDS, Settings(), conditions)
        theirs = play_all([Evacuating(each(TUNING)) for each in THEIRS], SEEDS, ITS_SETTINGS, conditions)
        rows = summaries([*ours, *theirs])
        for each in rows:
            emit(
                "balance", f"rounds beyond tolerance, {name}, {each.workload}, {each.strategy}",
                each.above_tolerance_percent, "%", moved_percent=round(each.moved_percent, 1),
                moved_percent_worst=round(each.moved_percent_worst, 1), max_over_mean=round(each.max_over_mean, 3),
                max_over_mean_p99=round(each.max_over_mean_p99, 3), std=round(each.std, 4), moves=round(each.moves, 1),
                over_certificate=finite(each.certificate_ratio), over_hindsight=finite(each.over_hindsight),
                returns=each.returns, rounds_to_balance=round(each.rounds_to_balance, 1),
                ends_within=f"{each.ends_within}/{each.seeds}",
            )  # fmt: skip
        promises([*ours, *theirs], name)
        emit("balance", f"games, {name}", time.perf_counter() - begin, "s", games=len(ours) + len(theirs))
        print(f"\n{name}:\n", file=sys.stderr)
        table(sorted(rows, key=lambda each: list(WORKLOADS).index(each.workload)))


def play_all(
    strategies: Sequence[str | Strategy], seeds: Iterable[int], settings: Settings, conditions: Conditions
) -> list[Measures]:
    """The figures of every game."""
    playing = games(strategies, list(WORKLOADS), seeds, Size(), settings, conditions=conditions)
    return [game.measures for game in playing]


def promises(found: Sequence[Measures], which: str) -> None:
    """What is promised for the default strategy, held against these games."""
    ours = {(each.workload, each.seed): each for each in found if each.strategy == OURS}
    others = [each for each in found if each.strategy != OURS]
    within = f"beyond tolerance in ≤ {FIELD_ABOVE_PERCENT:g} % of the rounds"
    checks: tuple[tuple[str, str, Found], ...] = (
        ("ends within tolerance", "always", broken(ours.values(), _ends_beyond)),
        (within, "always", broken(ours.values(), _often_beyond)),
        ("unwarranted returns", "0", broken(ours.values(), _returns)),
        ("load moved ÷ certificate, one dimension", f"≤ {OF_THE_BOUND}", broken(ours.values(), _beyond_bound)),
        (
            "moved by others that were within tolerance as long ÷ ours", f"≥ 1/{AS_LITTLE}",
            broken([each for each in others if _as_good(each, ours)], lambda each: _less(each, ours)),
        ),
    )  # fmt: skip
    for figure, target, (cases, misses) in checks:
        emit(
            "balance", f"promise: {figure}, {which}: broken in", len(misses), f"of {cases} games",
            target=target, met=not misses, games=misses[:SHOWN],
        )  # fmt: skip


def broken(cases: Iterable[Measures], broke: Callable[[Measures], tuple[float, str] | None]) -> Found:
    """The cases, and what was wrong in them, by how much."""
    each_of = list(cases)
    wrong = [(found, each) for each in each_of if (found := broke(each)) is not None]
    wrong.sort(key=lambda item: -item[0][0])
    return len(each_of), [f"{each.workload} seed {each.seed}, {each.strategy}: {what}" for (_, what), each in wrong]


def _ends_beyond(each: Measures) -> tuple[float, str] | None:
    beyond = each.above_tolerance_percent
    return None if each.ends_within else (beyond, f"beyond tolerance at the end, and {beyond:.0f} % of the time")


def _often_beyond(each: Measures) -> tuple[float, str] | None:
    beyond = each.above_tolerance_percent
    return None if beyond <= FIELD_ABOVE_PERCENT else (beyond, f"{beyond:.0f} % of the rounds")


def _returns(each: Measures) -> tuple[float, str] | None:
    return (each.returns, f"{each.returns} returns") if each.returns else None


def _beyond_bound(each: Measures) -> tuple[float, str] | None:
    ratio = each.certificate_ratio
    return None if not each.one_dimension or ratio <= OF_THE_BOUND else (ratio, f"{ratio:.3f} times")


def _less(each: Measures, ours: dict[Key, Measures]) -> tuple[float, str] | None:
    our = ours[each.workload, each.seed]
    if each.moved * AS_LITTLE >= our.moved:
        return None
    text = (
        f"moved {each.moved:.3f}, ours {our.moved:.3f}; beyond tolerance "
        f"{each.above_tolerance_percent:.0f} % of the time, ours {our.above_tolerance_percent:.0f} %"
    )
    return our.moved - each.moved * AS_LITTLE, text


def _as_good(each: Measures, ours: dict[Key, Measures]) -> bool:
    our = ours[each.workload, each.seed]
    return each.ends_within and each.above_tolerance_percent <= our.above_tolerance_percent + AS_LONG_PERCENT


def _plain(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def table(rows: Sequence[Summary]) -> None:
    """The figures as Markdown."""
    print(
        "| workload | strategy | max/mean (p99) | std | moved % (worst) | ÷ certificate | ÷ hindsight | moves "
        "| returns | rounds to balance | above tolerance | ends within |\n" + "|---" * 12 + "|",
        file=sys.stderr,
    )
    for each in rows:
        print(
            f"| {each.workload} | {each.strategy} | {each.max_over_mean:.2f} ({each.max_over_mean_p99:.2f}) "
            f"| {each.std:.3f} | {each.moved_percent:.0f} ({each.moved_percent_worst:.0f}) "
            f"| {_plain(each.certificate_ratio)} | {_plain(each.over_hindsight)} | {each.moves:.0f} "
            f"| {each.returns} | {each.rounds_to_balance:.1f} | {each.above_tolerance_percent:.0f} % "
            f"| {each.ends_within}/{each.seeds} |",
            file=sys.stderr,
        )
