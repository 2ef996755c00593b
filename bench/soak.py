"""Ten million transitions: whether disk and memory stay as they are when the channel owner snapshots and trims.

One replica, one partition, retention 0, so that the log is trimmed to the snapshot each time. What is compared is the
end with the state after the first fifth, by when everything has reached its size.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import uvloop

from bench.backends import Carrier, carrier
from bench.channel import A, B, own_all, step
from bench.figures import emit
from bench.start import TOPIC, opened
from loadmanager.channel.owner.keeper import Counts, Keeper, KeeperDependencies, KeeperSettings
from loadmanager.channel.owner.retention import ScheduleSettings
from statechannel.law.record import Action
from statechannel.runtime.channel import Channel, ChannelSettings

TRANSITIONS = 10_000_000
SAMPLES = 20
A_RECORD = 10
RECORDS_A_SNAPSHOT = 50_000


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where:
        uvloop.run(_run(kind, where))


async def _run(kind: str, where: Carrier) -> None:
    log = await opened(where)
    channel = Channel(log, ChannelSettings(TOPIC, partitions=1), nonce="bench", wall_ms=lambda: 0)
    await channel.open()
    async with channel.running():
        await channel.claim_cluster("bench", A)
        await own_all(channel)
        keeper = _keeper(channel)
        await keeper.open()
        samples: list[tuple[int, int]] = []
        begin = time.perf_counter()
        for _ in range(SAMPLES):
            await _transitions(channel, keeper, TRANSITIONS // SAMPLES)
            samples.append((psutil.Process().memory_info().rss, _disk_bytes(where)))
        took_s = time.perf_counter() - begin
        assert keeper.begin > 0, "nothing was trimmed"
        await keeper.close()
    await log.close()
    settled = samples[SAMPLES // 5 :]
    for index, what in enumerate(("memory", "disk")):
        sizes = [sample[index] for sample in settled]
        if max(sizes) == 0:
            continue
        growth = max(sizes[len(sizes) // 2 :]) / max(sizes[: len(sizes) // 2]) - 1
        emit(
            "soak", f"growth of {what} from 2 to {TRANSITIONS // 1_000_000} M transitions, {kind}", 100 * growth, "%",
            target="flat: ≤ 5", met=growth <= 0.05, mib=[round(size / 2**20, 1) for size in sizes[::4]],
            transitions_s=round(TRANSITIONS / took_s),
        )  # fmt: skip


def _keeper(channel: Channel) -> Keeper:
    numbers = iter(range(1_000_000))
    deps = KeeperDependencies(
        log=channel.replica.log,
        topic=channel.topic,
        snapshots_topic=channel.snapshots_topic,
        table=channel.table,
        log_bytes=lambda _partition, _start: 0,  # its snapshots are due by the number of records alone
        wanted=lambda _partition: (),
        name=lambda: f"bench-{next(numbers)}",
        clock_s=time.monotonic,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        now_ms=lambda: time.time_ns() // 1_000_000,
        note=print,
    )
    schedule = ScheduleSettings(records=RECORDS_A_SNAPSHOT, interval_s=3600)
    return Keeper(0, deps, KeeperSettings(schedule, retention_s=0, timeout_s=60), Counts())


async def _transitions(channel: Channel, keeper: Keeper, count: int) -> None:
    namespace = channel.table.namespace("t/n")
    assert namespace is not None
    bundles = namespace.bundles
    rounds = count // (2 * len(bundles))

    async def to_and_fro(begin: int) -> None:
        part = bundles[begin : begin + A_RECORD]
        for _ in range(rounds):
            await step(channel, part, Action.TRANSFER, B)
            await step(channel, part, Action.CANCEL, None)

    async with asyncio.TaskGroup() as tasks:
        moving = [tasks.create_task(to_and_fro(begin)) for begin in range(0, len(bundles), A_RECORD)]
        while not all(task.done() for task in moving):
            await keeper.attend()
            await asyncio.sleep(0.05)


def _disk_bytes(where: Carrier) -> int:
    if not where.log.startswith("sqlite:"):
        return 0  # the server frees what was trimmed when it likes
    path = Path(where.log.removeprefix("sqlite:"))
    return sum(each.stat().st_size for each in path.parent.glob(path.name + "*"))
