"""What a snapshot of a million bundles costs the channel owner: time, CPU, and how long its loop stands still for it.

The channel owner is a broker: its proofs are renewed on the same loop. The loop's pause is measured from outside, by a
task that wants to run every millisecond while the snapshots of all partitions are written and read back.
"""

from __future__ import annotations

import asyncio
import gc
import time

import uvloop

from bench.backends import carrier
from bench.figures import emit, percentile
from bench.start import GENESIS, PARTITIONS, TOPIC, opened, states
from loadmanager.channel.owner.keeper import Counts, Keeper, KeeperDependencies, KeeperSettings
from loadmanager.channel.owner.retention import ScheduleSettings
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.law.table import OwnershipTable
from statechannel.ports import TopicSpec

BUNDLES = 1_000_000
TICK_S = 0.001
GC_THRESHOLDS = (50_000, 50, 1_000)


def run(kind: str) -> None:
    """All figures of this bench."""
    uvloop.run(_run(kind))


async def _run(kind: str) -> None:
    table = OwnershipTable(PARTITIONS)
    for state in states(BUNDLES):
        table.restore(state)
    assert table.cluster_identity == GENESIS
    gc.collect()
    gc.freeze()
    with carrier(kind) as where:
        log = await opened(where)
        await log.open_topic(TopicSpec(TOPIC, PARTITIONS))
        await log.open_topic(TopicSpec(TOPIC + SNAPSHOTS, PARTITIONS, compacted=True))
        numbers = iter(range(1_000))
        deps = KeeperDependencies(
            log=log,
            topic=TOPIC,
            snapshots_topic=TOPIC + SNAPSHOTS,
            table=table,
            log_bytes=lambda _partition, _start: 0,
            wanted=lambda _partition: (),
            name=lambda: f"bench-{next(numbers)}",
            clock_s=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            now_ms=lambda: time.time_ns() // 1_000_000,
            note=print,
        )
        settings = KeeperSettings(ScheduleSettings(records=1, interval_s=3600), retention_s=3600, timeout_s=60)
        counts = Counts()
        keepers = [Keeper(partition, deps, settings, counts) for partition in range(PARTITIONS)]
        for keeper in keepers:
            await keeper.open()
        pauses: list[float] = []
        watching = asyncio.create_task(_watch(pauses))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for keeper in keepers:
            assert await keeper.attend() is not None, "no snapshot was due"
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        watching.cancel()
        for keeper in keepers:
            await keeper.close()
        await log.close()
    assert counts.written == PARTITIONS
    emit(
        "snapshot", f"snapshots of {BUNDLES:,} bundles written and read back, {kind}", took_s, "s",
        cpu_s=round(cpu_s, 3), bundles_s=round(BUNDLES / took_s),
    )  # fmt: skip
    worst_ms = max(pauses) * 1e3
    emit(
        "snapshot", f"longest pause of the loop meanwhile, {kind}", worst_ms, "ms", target="< 20", met=worst_ms < 20,
        p99_ms=round(percentile(pauses, 99) * 1e3, 2), longest_step_ms=round(counts.longest_step_s * 1e3, 2),
    )  # fmt: skip


async def _watch(pauses: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(TICK_S)
        pauses.append(max(0.0, time.perf_counter() - begin - TICK_S))
