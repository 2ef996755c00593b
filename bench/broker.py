"""A broker joins a running cluster: seconds to ready, and resident memory. Pulsar 4.0.7: 6.1 s, 374-403 MiB.

Then with 10,000 bundles and a year of their moves in the log: from its beginning, and behind snapshots, with as many
records after them as there may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

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
from statechannel.runtime.service import Channel, ChannelSettings

BUNDLES = 1_000
TIMES = 5
NAMESPACES = [f"bench/year-{number}" for number in range(50)]
BUNDLES_EACH = 200
OF_A_YEAR = 160_000
"""Records: each bundle changes its owner four times."""

AFTER_SNAPSHOTS = 0.95
"""The records after the snapshots, of those that make new ones due."""

RECORDS_A_ROUND = 4
MOVER = BrokerId("mover.example:6650", 1)


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
    rounds = OF_A_YEAR // (len(NAMESPACES) * BUNDLES_EACH * RECORDS_A_ROUND)
    uvloop.run(_move(where, rounds, NAMESPACES))
    with cluster(where, 1) as brokers:
        emit("broker", f"start to ready with {OF_A_YEAR:,} records, no snapshot, {kind}", brokers[0].ready_s, "s")
        await_true(lambda: _behind(brokers[0]) < 1_000, START_S, "snapshots are written")
        brokers[0].end()
    left = int(Settings().snapshot_records * AFTER_SNAPSHOTS) // (BUNDLES_EACH * RECORDS_A_ROUND)
    uvloop.run(_move(where, 1, NAMESPACES[:left]))
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


async def _move(where: Carrier, rounds: int, namespaces: Sequence[str]) -> None:
    """Give each bundle an owner and take it back, one record for each step, while no broker runs."""
    log = wiring.open_log(Settings(log=where.log, development=True))
    await log.start(30)
    channel = Channel(log, ChannelSettings(), nonce="bench", wall_ms=lambda: time.time_ns() // 1_000_000)
    await channel.open()
    try:
        async with channel.running():
            await channel.catch_up(START_S)
            for _ in range(rounds):
                for namespace in namespaces:
                    await _round(channel, tile(namespace, even_boundaries(BUNDLES_EACH)))
    finally:
        await log.close()


async def _round(channel: Channel, bundles: Sequence[Bundle]) -> None:
    for action, to in ((Action.OWN, MOVER), (Action.RETURN, None), (Action.UNLOAD, None), (Action.RELEASE, None)):
        await asyncio.gather(*(step(channel, (bundle,), action, to, MOVER) for bundle in bundles))
