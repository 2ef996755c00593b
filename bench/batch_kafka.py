"""The part of `batch` that needs a real Kafka: its client without a linger, with one, and our accumulator before it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.batch import (
    CALLERS,
    PARTITIONS,
    RECORDS,
    ROUNDS,
    SIZES,
    TOPIC,
    all_at_once,
    by_callers,
    consumed,
    direct,
    gathered,
)
from bench.figures import emit, median
from stack.servers import KafkaServer
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.ports import TopicSpec
from statechannel.runtime.batching import BatchSettings

LINGERS: dict[str, BatchSettings | None] = {
    "without a linger": None,
    "linger 10 ms": BatchSettings(),
}
Way = Callable[..., Awaitable[int]]


async def run_kafka() -> None:
    """All figures of `batch` on Kafka."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        server = KafkaServer(Path(directory))
        try:
            await asyncio.to_thread(server.start)
            for size_bytes in SIZES:
                await _rates(server.address, bytes(size_bytes))
            for partitions in PARTITIONS:
                await _spread(server.address, partitions)
        finally:
            await asyncio.to_thread(server.stop)


async def _rates(address: str, value: bytes) -> None:
    for name, way in ((f"{CALLERS} callers on the loop", by_callers), ("all at once", all_at_once)):
        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for how, settings in LINGERS.items():
                rates.setdefault(how, []).append(await _rate(address, way, value, 1, settings))
            rates.setdefault("our accumulator", []).append(await _rate(address, way, value, 1, None, behind=True))
        base = median(rates["without a linger"])
        for how, measured in rates.items():
            emit(
                "batch", f"{name}, {how}, {len(value)} bytes, kafka", median(measured), "records/s",
                ratio=round(median(measured) / base, 3),
            )  # fmt: skip


async def _spread(address: str, partitions: int) -> None:
    for how, settings in LINGERS.items():
        try:
            async with asyncio.timeout(60):
                rate = await _rate(address, all_at_once, bytes(128), partitions, settings, whole=partitions < 100)
        except Exception as error:  # noqa: BLE001 - that it cannot be done is a figure too
            emit(
                "batch", f"{partitions:,} partitions, all at once, {how}, kafka", 0, "records/s", why=repr(error)[:200]
            )
        else:
            emit("batch", f"{partitions:,} partitions, all at once, {how}, 128 bytes, kafka", rate, "records/s")


async def _rate(
    address: str, way: Way, value: bytes, partitions: int, settings: BatchSettings | None, *,
    behind: bool = False, whole: bool = False,
) -> float:  # fmt: skip
    """Records/s; `whole` also reads all of them again and prints that figure."""
    log = KafkaLog(
        address, topic_prefix=f"bench-{time.time_ns()}-{partitions}.", replication=1, min_insync=1, development=True,
        request_timeout_s=60.0, batching=settings,
    )  # fmt: skip
    await log.start(30)
    try:
        await log.open_topic(TopicSpec(TOPIC, partitions))
        await log.append(TOPIC, 0, [])
        began_s = time.perf_counter()
        if behind:
            async with gathered(log) as batched:
                records = await way(lambda at, payload: batched.append(TOPIC, at, payload), value, partitions)
        else:
            records = await way(direct(log), value, partitions)
        took_s = time.perf_counter() - began_s
        if whole:
            began_s = time.perf_counter()
            await consumed(log, RECORDS)
            read_s = time.perf_counter() - began_s
            emit(
                "batch", f"consumption ÷ production, {len(value)} bytes, {partitions} partitions, kafka",
                took_s / read_s, "", target="≥ 1", met=read_s <= took_s,
            )  # fmt: skip
        return records / took_s
    finally:
        await log.close()
