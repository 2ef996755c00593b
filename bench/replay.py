"""Replay of a generated history: time, growth by each of its dimensions, and what one core more is worth.

A week of 20 brokers and 1,000 bundles with 6 candidates is played with one core, with two, and with twice as much of
each dimension by itself; from that the cost of a month of 100 brokers and 10,000 bundles with 24 candidates is worked
out. `REPLAY_SIZE` (days,brokers,bundles,candidates) does so with something smaller. `--log` means nothing here. Each
run is on a Spark of its own, after a short one that is not counted.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import msgspec

from bench.figures import emit
from bench.generating import World, generated
from loadmanager.history.lake import Lake
from loadmanager.history.replay import Options, replay
from loadmanager.history.session import Spark, session
from loadmanager.settings import Settings

NEEDED = ("broker_load", "bundle_load", "bundle_total", "transition", "decision")
CORES = 2
BETTER = 1.5
GRID = tuple(
    f"{strategy}bundle_rest_s={rest_s}"
    for rest_s in (1800, 900, 3600, 600)
    for strategy in (
        *("plan:balancing_tolerance=tight,", "transfer:", "uniform:"),
        *("plan:balancing_tolerance=default,", "threshold:", "plan:balancing_tolerance=loose,"),
    )
)
"""24 candidates, of which the first six are one of each, and the first three one of each kind."""


class Sizes(msgspec.Struct, frozen=True):
    """What a replay grows with."""

    days: int = 7
    brokers: int = 20
    bundles: int = 1_000
    candidates: int = 6

    @property
    def games(self) -> int:
        """Rounds that are played, over all candidates."""
        return self.days * 1440 * self.candidates

    def __str__(self) -> str:
        return f"{self.days} d x {self.brokers} brokers x {self.bundles:,} bundles x {self.candidates} candidates"


MONTH = Sizes(30, 100, 10_000, 24)
FACTOR = 2
"""By which each dimension grows when growth is measured."""


def run(kind: str) -> None:
    """All figures of this bench."""
    size = os.environ.get("REPLAY_SIZE")
    base = Sizes(*(int(each) for each in size.split(","))) if size else Sizes()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        took_s = cores(root, base)
        emit("replay", str(base), took_s, "s", ms_a_round=round(1000 * CORES * took_s / base.games, 2), cores=CORES)
        month(base, took_s, {each: growth(root, base, took_s, each) for each in Sizes.__struct_fields__})


def cores(root: Path, sizes: Sizes) -> float:
    """What a second core is worth; returns the seconds with both."""
    one_s, both_s = played(root, sizes, 1), played(root, sizes, CORES)
    emit("replay", f"1 → {CORES} cores, {sizes}", one_s / both_s, "times", target=f"≥ {BETTER:g}",
         met=one_s / both_s >= BETTER, one_s=round(one_s, 1), both_s=round(both_s, 1))  # fmt: skip
    return both_s


def growth(root: Path, base: Sizes, base_s: float, name: str) -> float:
    """The power by which time grows in one dimension."""
    larger = msgspec.structs.replace(base, **{name: FACTOR * getattr(base, name)})
    times = played(root, larger) / base_s
    emit("replay", f"growth, {FACTOR} x {name}", times, "times", of=str(base))
    return math.log(times, FACTOR)


def month(start: Sizes, took_s: float, powers: dict[str, float]) -> None:
    """What the month costs, from what was measured."""
    times = math.prod((getattr(MONTH, name) / getattr(start, name)) ** power for name, power in powers.items())
    emit("replay", f"worked out: {MONTH}", CORES * took_s * times / 3600, "core hours",
         powers={name: round(power, 2) for name, power in powers.items()})  # fmt: skip


def played(root: Path, sizes: Sizes, threads: int = CORES) -> float:
    """How long a replay takes, session and data left out."""
    spark = session(Spark(master=f"local[{threads}]", conf={"spark.sql.shuffle.partitions": str(2 * threads)}))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        options = Options(settings=Settings(), parallelism=threads)
        brief = filled(Lake(spark, str(root / "brief")), Sizes(1, 4, 40, 2))
        replay(brief, candidates=GRID[:2], options=msgspec.structs.replace(options, interval_s=600.0))
        lake = filled(Lake(spark, str(root / f"{sizes.days}-{sizes.brokers}-{sizes.bundles}")), sizes)
        begin = time.perf_counter()
        found = replay(lake, candidates=GRID[: sizes.candidates], options=options)
        took_s = time.perf_counter() - begin
        wrong = sum(each.violations for each in found.ranked) + sum(found.skipped.values())
        assert not wrong, f"{found.skipped}, {[each.broke for each in found.ranked]}"
        return took_s
    finally:
        spark.stop()


def filled(lake: Lake, sizes: Sizes) -> Lake:
    """With a generated history of this size, made once."""
    world = World(brokers=sizes.brokers, bundles=sizes.bundles, days=sizes.days)
    tables = generated(lake.spark, world)
    for name in NEEDED:
        if not lake.exists(name):
            tables(name).write.format("delta").partitionBy("day").save(lake.path(name))
    return lake
