"""The old load manager against the new one: the same workloads, seeds and placements' rules; and their load data.

Old, as Pulsar's modular manager: the leader assigns, `threshold` sheds by unloading, all load data goes to all brokers
through the store. New: brokers assign, bundles are transferred (by Pulsar's `transfer`, or by `plan`), each broker's
load goes to all and its hottest bundles to the leader. Pure simulation; `--log` means nothing here. A table on
stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from bench.figures import emit
from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.game import Run
from loadmanager.strategies.playground.measures import Game, Measures, Summary, games, summaries
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.traffic import Traffic, traffic

OLD = "threshold"
NEW = ("transfer", "plan")
STRATEGIES = (OLD, *NEW)
NAMES = {OLD: "old: threshold", "transfer": "new: transfer", "plan": "new: plan"}
WORKLOADS = ("zipf", "diurnal", "flash", "steps", "unequal", "restart", "autoscaling")
SEEDS = range(1, 6)
TRAFFIC_SEED = 1
SIZES = (Size(12, 600, 30), Size(50, 5_000, 30), Size(100, 10_000, 30))
MIB = 2**20


class Line(msgspec.Struct, frozen=True):
    """One manager on one workload."""

    summary: Summary
    asked_of_leader: float
    """Assignments that the leader was asked for, in the mean over the seeds: the others assign for themselves."""
    mib_h: float
    """Load data read, in all, an hour."""


def run(kind: str) -> None:
    """All figures of this bench."""
    lines: list[Line] = []
    for line in compared():
        lines.append(line)
        each = line.summary
        emit(
            "old-new", f"load data read, {each.workload}, {NAMES[each.strategy]}", line.mib_h, "MiB/h",
            moved_percent=round(each.moved_percent, 1), max_over_mean=round(each.max_over_mean, 3),
            above_percent=round(each.above_tolerance_percent, 1), overloaded_s=round(each.overloaded_broker_s),
            gap_s=round(each.gap_s, 1), moves=round(each.moves, 1), returns=each.returns,
            rounds_to_balance=round(each.rounds_to_balance, 1), asked_of_leader=round(line.asked_of_leader, 1),
        )  # fmt: skip
    table(lines)
    sizes = list(grown())
    for size, found in sizes:
        emit(
            "old-new", f"load data read, {size.brokers} brokers, {size.bundles} bundles",
            found.top_read / found.hours / MIB, "MiB/h", old_mib_h=round(found.everything_read / found.hours / MIB, 2),
            factor=round(found.everything_read / found.top_read, 1), reports=found.reports,
        )  # fmt: skip
    table_of_sizes(sizes)


def compared() -> Iterator[Line]:
    """Each manager on each workload."""
    settings = Settings()
    for workload in WORKLOADS:
        figures: list[Measures] = []
        asked: dict[str, list[int]] = {name: [] for name in STRATEGIES}
        data: dict[str, Traffic] = {}
        for game in _both(workload, settings):
            figures.append(game.measures)
            asked[game.run.strategy].append(assigned(game.run))
            if game.measures.seed == TRAFFIC_SEED:
                data[game.run.strategy] = traffic(game.run, settings)
        for summary in summaries(figures):
            found = data[summary.strategy]
            old = summary.strategy == OLD
            read = found.everything_read if old else found.top_read
            yield Line(summary, float(np.mean(asked[summary.strategy])) if old else 0.0, read / found.hours / MIB)


def _both(workload: str, settings: Settings) -> Iterator[Game]:
    """The games of the old leader, who knows every bundle, and of the new one, who knows the hottest."""
    top = Conditions(top_bundles=settings.load_top_bundles)
    for names, conditions in (((OLD,), Conditions()), (NEW, top)):
        yield from games(names, [workload], SEEDS, Size(), settings, conditions=conditions, hindsight=False)


def assigned(played: Run) -> int:
    """How many bundles needed a broker to be found for them."""
    return sum(each.how != "transfer" for each in played.moved)


def grown() -> Iterator[tuple[Size, Traffic]]:
    """The load data of growing clusters under bursts, hardly balanced (so that both ways see the same)."""
    settings = Settings(balancing_tolerance=1.0, overloaded_percent=100)
    for size in SIZES:
        [game] = games(["overload"], ["bursty"], [TRAFFIC_SEED], size, settings, hindsight=False)
        yield size, traffic(game.run, settings)


def table(lines: Sequence[Line]) -> None:
    """As Markdown."""
    print(
        "| workload | manager | max/mean | beyond tolerance | overloaded, broker-s | load moved | moves | gap, s "
        "| rounds to balance | asked of the leader | load data read |\n" + "|---" * 11 + "|",
        file=sys.stderr,
    )
    for line in lines:
        each = line.summary
        print(
            f"| {each.workload} | {NAMES[each.strategy]} | {each.max_over_mean:.2f} "
            f"| {each.above_tolerance_percent:.0f} % | {each.overloaded_broker_s:,.0f} | {each.moved_percent:.0f} % "
            f"| {each.moves:.0f} | {each.gap_s:.1f} | {each.rounds_to_balance:.1f} | {line.asked_of_leader:.0f} "
            f"| {line.mib_h:.2f} MiB/h |",
            file=sys.stderr,
        )


def table_of_sizes(sizes: Sequence[tuple[Size, Traffic]]) -> None:
    """As Markdown."""
    print(
        "\n| brokers | bundles | reports an hour | old: all to all | new: hottest to the leader | factor |\n"
        + "|---" * 6 + "|",
        file=sys.stderr,
    )  # fmt: skip
    for size, found in sizes:
        old, new = (read / found.hours / MIB for read in (found.everything_read, found.top_read))
        print(
            f"| {size.brokers} | {size.bundles:,} | {found.reports / found.hours:,.0f} | {old:,.1f} MiB/h "
            f"| {new:,.1f} MiB/h | {old / new:.0f} |",
            file=sys.stderr,
        )
