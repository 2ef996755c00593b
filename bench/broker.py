"""A broker joins a running cluster: seconds to ready, and resident memory. Pulsar 4.0.7: 6.1 s, 374-403 MiB.

Then with 10,000 bundles and a year of their moves in the log: from its beginning, and behind snapshots, with as many
records after them as there may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import psutil
import uvloop

from bench.backends import Carrier, carrier
from bench.channel import step
from bench.cluster import START_S, BrokerProcess, await_true, cluster, create_namespace
from bench.figures import emit, median
from loadmanager.broker import wiring
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import Action, BrokerId
from statechannel.runtime.channel import Channel, ChannelSettings

BUNDLES = 1_000
TIMES = 5
MOVER = BrokerId("mover.example:6650", 1)
NAMESPACES = [f"bench/year-{number}" for number in range(50)]
BUNDLES_EACH = 200
OF_A_YEAR = 160_000
"""Records: each bundle changes its owner four times."""

AFTER_SNAPSHOTS = 0.96
"""The records after the snapshots, of those that make new ones due."""

STEPS = ((Action.OWN, MOVER), (Action.RETURN, None), (Action.UNLOAD, None), (Action.RELEASE, None))


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where, cluster(where, 1) as brokers:
        create_namespace(brokers[0], "bench/broker", BUNDLES)
        ready_s, resident_mib = _joins(where)
        emit("broker", f"process start to ready, {kind}", ready_s, "s", target="≤ 0.7", met=ready_s <= 0.7)
        emit(
            "broker", f"resident, {BUNDLES} bundles, {kind}", resident_mib, "MiB", target="≤ 80",
            met=resident_mib <= 80,
        )  # fmt: skip
    with carrier(kind) as where:
        _after_a_year(kind, where)


def _after_a_year(kind: str, where: Carrier) -> None:
    with cluster(where, 1) as brokers:
        for namespace in NAMESPACES:
            create_namespace(brokers[0], namespace, BUNDLES_EACH)
        brokers[0].end()
    uvloop.run(_moved(where, _a_year))
    rate_s = uvloop.run(_replayed(where))
    emit("broker", f"records replayed, {kind}", rate_s, "1/s of CPU", target="≥ 200,000", met=rate_s >= 200_000)
    with cluster(where, 1) as brokers:
        emit("broker", f"start to ready with {OF_A_YEAR:,} records, no snapshot, {kind}", brokers[0].ready_s, "s")
        await_true(lambda: _behind(brokers[0]) < 1_000, START_S, "snapshots are written")
        brokers[0].end()
    uvloop.run(_moved(where, _after_snapshots))
    with cluster(where, 1) as brokers:
        records = _behind(brokers[0])
        ready_s, resident_mib = _joins(where)
    emit(
        "broker", f"the same behind snapshots, {kind}", ready_s, "s", target="≤ 0.7", met=ready_s <= 0.7,
        records_replayed=records,
    )  # fmt: skip
    bundles = len(NAMESPACES) * BUNDLES_EACH
    emit("broker", f"resident, {bundles:,} bundles, {kind}", resident_mib, "MiB", target="≤ 80", met=resident_mib <= 80)


def _joins(where: Carrier) -> tuple[float, float]:
    """The median of the seconds until a further broker is ready, and the most memory that one has then (MiB)."""
    ready: list[float] = []
    resident: list[float] = []
    for _ in range(TIMES):
        joining = BrokerProcess(where)
        try:
            ready.append(joining.await_ready())
            resident.append(psutil.Process(joining.process.pid).memory_info().rss / 2**20)
        finally:
            joining.end()
    return median(ready), max(resident)


def _behind(broker: BrokerProcess) -> int:
    """Records after the newest snapshots, over all partitions."""
    partitions = broker.ask("GET", "/v1/channel")[1]["partitions"]
    return sum(each["next_offset"] if each["since_snapshot"] is None else each["since_snapshot"] for each in partitions)


async def _moved(where: Carrier, moving: Callable[[Channel], Awaitable[None]]) -> None:
    """Move bundles while no broker runs."""
    async with _caught_up(where) as channel:
        await moving(channel)


async def _replayed(where: Carrier) -> float:
    """Records a second of CPU: read from the log, decoded, judged and put into the table."""
    begin_s = time.process_time()
    async with _caught_up(where) as channel:
        took_s = time.process_time() - begin_s
        return sum(channel.table.next_offset(number) for number in range(channel.table.partitions)) / took_s


@asynccontextmanager
async def _caught_up(where: Carrier) -> AsyncGenerator[Channel]:
    log = wiring.open_log(Settings(log=where.log, development=True))
    await log.start(30)
    channel = Channel(log, ChannelSettings(), nonce="bench", wall_ms=lambda: time.time_ns() // 1_000_000)
    await channel.open()
    try:
        async with channel.running():
            await channel.catch_up(START_S)
            yield channel
    finally:
        await log.close()


async def _a_year(channel: Channel) -> None:
    for _ in range(OF_A_YEAR // (len(NAMESPACES) * BUNDLES_EACH * len(STEPS))):
        for namespace in NAMESPACES:
            await _move(channel, tile(namespace, even_boundaries(BUNDLES_EACH)))


async def _after_snapshots(channel: Channel) -> None:
    """As many records in each partition as it may have, nearly."""
    namespaces = {channel.table.partition_of(namespace): namespace for namespace in NAMESPACES}
    moves = int(Settings().snapshot_records * AFTER_SNAPSHOTS) // channel.table.partitions // len(STEPS)
    for namespace in namespaces.values():
        bundles = tile(namespace, even_boundaries(BUNDLES_EACH))
        for begin in range(0, moves, len(bundles)):
            await _move(channel, bundles[: moves - begin])


async def _move(channel: Channel, bundles: Sequence[Bundle]) -> None:
    """Give each bundle an owner and take it back, one record for each step."""
    for action, to in STEPS:
        await asyncio.gather(*(step(channel, (bundle,), action, to, MOVER) for bundle in bundles))
