"""Rolling updates as a StatefulSet does them, under the counters' load: SIGTERM, wait, the same name again, next pod.

The brokers are processes of this machine instead of pods. A pod counts as ready when `health` answers 200. Automatic
balancing is on, so moves that even out what an update left count too. The brokers begin as a release that knows only
the former format of records, so versions are mixed in the first update. Then two brokers are drained at once, as where
two nodes go under a budget of two; the cluster goes from three brokers to eight and back, as an autoscaler does it; and
one broker is killed, as by an eviction without a grace period.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.backends import Carrier, carrier
from bench.figures import emit, median
from bench.stage import staged
from loadmanager.demo.options import BUNDLES
from loadmanager.demo.stage import Member, Stage
from statechannel.law.codec import NEWEST_VERSION

BROKERS = 5
FEWEST, MOST = 3, 8
UPDATES = 10
RATE_S = 150.0
READY_S = 60.0
BALANCED_S = 300.0
"""Until every new broker has got bundles."""


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory(prefix="bench-rolling-") as directory, carrier(kind) as where:
        asyncio.run(_run(kind, where, Path(directory)))


async def _run(kind: str, where: Carrier, directory: Path) -> None:
    older = NEWEST_VERSION - 1
    async with staged(
        where, directory, brokers=BROKERS, rate_s=RATE_S, balancing_interval_s=60.0, reads=older
    ) as stage:
        stage.reads = None
        await stage.start_load()
        took, moves = [], []
        for _ in range(UPDATES):
            begin_s, before = time.monotonic(), stage.observer.transfers
            await roll(stage)
            took.append(time.monotonic() - begin_s)
            moves.append((stage.observer.transfers - before) / BUNDLES)
        await _both(stage, stage.up()[:2])
        scaled_s = await _scaled(stage)
        await stage.kill(stage.up()[0], "eviction")
        await stage.finish_load()
    load = stage.load
    emit(
        "rolling", f"failed requests over {UPDATES} updates of {BROKERS} brokers, {kind}", load.failed, "requests",
        target="0", met=(load.failed, load.lost, load.doubled) == (0, 0, 0), ok=load.ok, late=load.late,
        lost=load.lost, doubled=load.doubled, problems=list(stage.problems),
    )  # fmt: skip
    emit(
        "rolling", f"moves of an update by bundle, {kind}", max(moves), "moves", target="≤ 2", met=max(moves) <= 2,
        median=round(median(moves), 2), bundles=BUNDLES,
    )  # fmt: skip
    emit("rolling", f"time from {BROKERS} brokers to {FEWEST}, {MOST}, and {FEWEST}, {kind}", scaled_s, "s")
    emit("rolling", f"time of an update of {BROKERS} brokers, {kind}", median(took), "s", longest_s=round(max(took), 1))


async def _scaled(stage: Stage) -> float:
    """Down to the fewest brokers, up to the most, and down again; the seconds that this took."""
    begin_s = time.monotonic()
    await _shrink(stage)
    added = await asyncio.gather(*(stage.start_broker() for _ in range(MOST - FEWEST)))
    for member in added:
        await _ready(stage, member)
    held = stage.observer.held_by_name
    await stage.observer.wait_for(lambda: all(held(member.name) for member in stage.up()), BALANCED_S)
    await _shrink(stage)
    return time.monotonic() - begin_s


async def _shrink(stage: Stage) -> None:
    """One pod after the other, as the chart's autoscaler does; the last ones first."""
    for member in sorted(stage.up(), key=lambda member: member.label)[FEWEST:][::-1]:
        await stage.retire(member)


async def roll(stage: Stage) -> None:
    """One update: the last pod first, as a StatefulSet does."""
    for name in sorted(stage.members, reverse=True):
        await stage.retire(stage.members[name])
        await _ready(stage, await stage.start_broker(stage.members[name]))


async def _both(stage: Stage, members: list[Member]) -> None:
    await asyncio.gather(*(stage.retire(member) for member in members))
    for member in members:
        await _ready(stage, await stage.start_broker(member))


async def _ready(stage: Stage, member: Member) -> None:
    """Until the readiness probe of the pod succeeds."""
    async with asyncio.timeout(READY_S):
        while True:
            async with stage.http.router.session.get(f"{member.admin_url}/admin/v2/brokers/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)
