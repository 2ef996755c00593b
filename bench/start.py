"""A replica that starts from snapshots: how long, and how much memory a bundle takes, from 10,000 to 1,000,000 bundles.

The log is a real one; the bundles are 1,000 to a namespace, owned by 100 brokers, each with a revision and a token of
its own. The topic holds as many snapshots as the default retention leads to. The start is what a broker does: create or
check the topics, read the newest snapshot of each partition, check it, decode it, put it into the table.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Iterator

import psutil
import uvloop

from bench.backends import Carrier, carrier
from bench.figures import emit
from loadmanager.broker import wiring
from loadmanager.settings import Settings
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId
from statechannel.law.snapshot import SNAPSHOTS, Index, SnapshotInfo, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.ports import Log, Payload, TopicSpec
from statechannel.runtime.channel import Replica

TOPIC = "bundle-state"
PARTITIONS = 4
SIZES = (10_000, 100_000, 1_000_000)
KEPT = 7
"""Snapshots in the topic: the newest, and those behind which the log is trimmed one day."""
WAITING = 10_000
"""Tasks beside which a search for cycles is timed: more than a leader has under way in a mass recovery."""
BUNDLES_A_NAMESPACE = 1_000
BROKERS = [BrokerId(f"broker-{number}.example:6650", 3) for number in range(100)]
GENESIS = ClusterIdentity("bench", "bench-1", 0)


def run(kind: str) -> None:
    """All figures of this bench."""
    for size in SIZES:
        with carrier(kind) as where:
            asyncio.run(_write(where, size))
            # a process of its own: memory that another size has left behind would be counted, or used again
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                took_s, bytes_a_bundle, search_s, waiting_s = pool.apply(_start, (where, size))
        largest = size == SIZES[-1]
        emit(
            "start", f"replica of {size:,} bundles from snapshots, {kind}", took_s, "s",
            target="≤ 3" if largest else "", met=took_s <= 3 if largest else None, per_s=round(size / took_s),
        )  # fmt: skip
        emit(
            "start", f"resident memory a bundle, {size:,} bundles, {kind}", bytes_a_bundle, "bytes",
            target="≤ 300" if largest else "", met=bytes_a_bundle <= 300 if largest else None,
        )  # fmt: skip
        emit("start", f"a whole search for cycles beside a table of {size:,} bundles", search_s * 1e3, "ms")
        emit("start", f"the same while {WAITING:,} tasks wait", waiting_s * 1e3, "ms")


def states(size: int) -> Iterator[PartitionState]:
    """Each partition of a table with so many assigned bundles."""
    table = OwnershipTable(PARTITIONS)
    names: list[list[str]] = [[] for _ in range(PARTITIONS)]
    for number in range(size // BUNDLES_A_NAMESPACE):
        name = f"tenant/namespace-{number}"
        names[table.partition_of(name)].append(name)
    for partition in range(PARTITIONS):
        offset = 1
        namespaces: list[NamespaceState] = []
        for name in sorted(names[partition]):
            entries: list[Ownership] = []
            for index, bundle in enumerate(tile(name, even_boundaries(BUNDLES_A_NAMESPACE))):
                owner = BROKERS[(index * 7 + offset) % len(BROKERS)]
                entries.append(
                    Ownership(bundle, State.ASSIGNED, owner, None, offset + 1, offset, Action.RETURN, owner)
                )  # fmt: skip
                offset += 2
            namespaces.append(NamespaceState(name, offset, entries))
        yield PartitionState(
            partition, offset, GENESIS if partition == 0 else None, Lead(), None, (), tuple(namespaces), (), ()
        )  # fmt: skip


async def opened(where: Carrier) -> Log:
    """A started log."""
    log = wiring.open_log(Settings(log=where.log, development=True))
    await log.start(30)
    return log


async def _write(where: Carrier, size: int) -> None:
    log = await opened(where)
    await log.open_topic(TopicSpec(TOPIC, PARTITIONS))
    await log.open_topic(TopicSpec(TOPIC + SNAPSHOTS, PARTITIONS, compacted=True))
    for state in states(size):
        await log.append(TOPIC, state.partition, [Payload(None, b"what stands in the snapshot")])
        writer = await log.exclusive(f"bench-{state.partition}")
        known: Index | None = None
        for number in range(KEPT):
            *chunks, info = encode(state, f"bench-{number}", 0)
            assert isinstance(info, SnapshotInfo)
            # which says that it begins where the log does: at an empty one
            info = SnapshotInfo(info.snapshot_id, 1, 0, info.chunks, info.bundles, info.size_bytes, info.checksum)
            kept = known.snapshots if known is not None else ()
            payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
            payloads += closing(known, GENESIS, state.partition, info, {each.snapshot_id for each in kept})
            await writer.commit(TOPIC + SNAPSHOTS, state.partition, payloads)
            known = Index(GENESIS, state.partition, (*kept, info))
        await writer.close()
    await log.close()


def _start(where: Carrier, size: int) -> tuple[float, float, float, float]:
    return uvloop.run(_started(where, size))


async def _started(where: Carrier, size: int) -> tuple[float, float, float, float]:
    log = await opened(where)
    gc.collect()
    gc.freeze()
    before = psutil.Process().memory_info().rss
    replica = Replica(log, TOPIC)
    begin = time.perf_counter()
    await replica.open(PARTITIONS)
    took_s = time.perf_counter() - begin
    gc.collect()
    assert len(replica.table) == size, len(replica.table)
    grown = psutil.Process().memory_info().rss - before
    begin = time.thread_time()
    gc.collect()
    search_s = time.thread_time() - begin
    waiting_s = await _search_beside(WAITING)
    await log.close()
    return took_s, grown / size, search_s, waiting_s


async def _search_beside(tasks: int) -> float:
    """What a whole search takes while so many tasks wait three calls deep, as a publish does for its verdict."""

    async def deep(calls: int, verdict: asyncio.Future[None]) -> None:
        await (deep(calls - 1, verdict) if calls else verdict)

    verdicts = [asyncio.get_running_loop().create_future() for _ in range(tasks)]
    waiting = [asyncio.create_task(deep(3, verdict)) for verdict in verdicts]
    await asyncio.sleep(0)
    begin = time.thread_time()
    gc.collect()
    search_s = time.thread_time() - begin
    for verdict in verdicts:
        verdict.set_result(None)
    await asyncio.gather(*waiting)
    return search_s
