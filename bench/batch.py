"""Records/s and bytes on disk of a log, one by one and in batches, for callers on its loop and in threads.

Each figure of a caller through the accumulator is beside that of the same callers without it, in turns within one run;
`ratio` is between the two. `rows` and `bytes a record` are of the file after it was closed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.backends import open_log
from bench.figures import emit, median, percentile
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import BrokerId
from statechannel.ports import Log, Payload, TopicSpec
from statechannel.runtime.auto_batch import BatchedAppends
from statechannel.runtime.batching import BatchSettings
from statechannel.runtime.channel import Channel, ChannelSettings

TOPIC = "stream"
SIZES = (16, 128, 1_024)
ROUNDS = 3
ONE_BY_ONE, RECORDS, OF_THREADS = 2_000, 20_000, 4_000
CALLERS, THREADS = 64, 16
GIVEN_TOGETHER = 500
TRICKLE_S, TRICKLE_EVERY_S = 3.0, 0.0005
PARTITIONS = (16, 10_000)
TIMEOUT_S = 120.0

Append = Callable[[int, Payload], Awaitable[None]]
Write = Callable[[Log, bytes], Awaitable[int]]
"""Writes records with this value to a log; how many."""


def run(kind: str) -> None:
    """All figures of this bench."""
    if kind == "kafka":
        from bench.batch_kafka import run_kafka

        uvloop.run(run_kafka())
    else:
        uvloop.run(_run())


async def _run() -> None:
    for size_bytes in SIZES:
        await _rates(bytes(size_bytes))
    await _trickles()
    await _partitions()
    await _consumption()
    await _channels()


# --- one log, several ways to write
def direct(log: Log) -> Append:
    """Each record is an append."""
    return lambda partition, payload: log.append(TOPIC, partition, [payload])


@asynccontextmanager
async def gathered(log: Log, settings: BatchSettings | None = None) -> AsyncIterator[BatchedAppends]:
    """The accumulator before a log."""
    batched = BatchedAppends(log, settings)
    yield batched
    await batched.close()
    assert batched.held_bytes == 0


async def one_by_one(log: Log, value: bytes) -> int:
    """One caller, each record awaited."""
    for _ in range(ONE_BY_ONE):
        await log.append(TOPIC, 0, [Payload(None, value)])
    return ONE_BY_ONE


async def given_together(log: Log, value: bytes) -> int:
    """One caller that has its records already: the most that is possible."""
    payloads = [Payload(None, value)] * GIVEN_TOGETHER
    for _ in range(RECORDS // GIVEN_TOGETHER):
        await log.append(TOPIC, 0, payloads)
    return RECORDS


async def by_callers(append: Append, value: bytes, partitions: int = 1) -> int:
    """Callers on the loop, each of which awaits its record before the next."""

    async def call(number: int) -> None:
        for at in range(RECORDS // CALLERS):
            await append((number + at * CALLERS) % partitions, Payload(None, value))

    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return RECORDS // CALLERS * CALLERS


async def all_at_once(append: Append, value: bytes, partitions: int = 1) -> int:
    """No caller waits for another's record."""
    await asyncio.gather(*(append(number % partitions, Payload(None, value)) for number in range(RECORDS)))
    return RECORDS


async def by_threads(append: Callable[[Payload], None], value: bytes) -> int:
    """Callers in threads, each of which waits for its record before the next."""

    def call() -> None:
        for _ in range(OF_THREADS // THREADS):
            append(Payload(None, value))

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, call) for _ in range(THREADS)))
    return OF_THREADS


def crossing(log: Log) -> Callable[[Payload], None]:
    """What a thread does without the accumulator: each record crosses to the loop."""
    loop = asyncio.get_running_loop()

    def append(payload: Payload) -> None:
        asyncio.run_coroutine_threadsafe(log.append(TOPIC, 0, [payload]), loop).result(TIMEOUT_S)

    return append


def _through(way: Callable[[BatchedAppends, bytes], Awaitable[int]], settings: BatchSettings | None) -> Write:
    async def write(log: Log, value: bytes) -> int:
        async with gathered(log, settings) as batched:
            return await way(batched, value)

    return write


HOW = {"gathered": BatchSettings()}
"""How the accumulator gathers."""


def _ways(plain: Write, way: Callable[[BatchedAppends, bytes], Awaitable[int]]) -> dict[str, Write]:
    return {"": plain} | {f", {name}": _through(way, settings) for name, settings in HOW.items()}


WAYS: dict[str, dict[str, Write]] = {
    "one by one": {"": one_by_one},
    f"appends of {GIVEN_TOGETHER}": {"": given_together},
    f"{CALLERS} callers on the loop": _ways(
        lambda log, value: by_callers(direct(log), value),
        lambda batched, value: by_callers(lambda at, payload: batched.append(TOPIC, at, payload), value),
    ),
    "all at once": _ways(
        lambda log, value: all_at_once(direct(log), value),
        lambda batched, value: all_at_once(lambda at, payload: batched.append(TOPIC, at, payload), value),
    ),
    f"{THREADS} threads": _ways(
        lambda log, value: by_threads(crossing(log), value),
        lambda batched, value: by_threads(lambda payload: batched.append_blocking(TOPIC, 0, payload, TIMEOUT_S), value),
    ),
}
"""By the kind of callers: without the accumulator, and with it."""


async def _rates(value: bytes) -> None:
    for name, ways in WAYS.items():
        measured: dict[str, list[tuple[float, int, float]]] = {what: [] for what in ways}
        for _ in range(ROUNDS):
            for what, write in ways.items():
                measured[what].append(await _written(write, value))
        plain = median([rate for rate, _, _ in measured[""]])
        for what, runs in measured.items():
            rate, rows, disk = (median(column) for column in zip(*runs, strict=True))
            emit(
                "batch", f"{name}{what}, {len(value)} bytes, sqlite", rate, "records/s",
                ratio=round(rate / plain, 3), rows=int(rows), bytes_a_record=round(disk, 1),
            )  # fmt: skip


async def _written(write: Write, value: bytes) -> tuple[float, int, float]:
    """Records/s, rows, and bytes of the closed file for each record."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        log = await _fresh(directory / "log.db", 1)
        began_s = time.perf_counter()
        records = await write(log, value)
        took_s = time.perf_counter() - began_s
        await log.close()
        with closing(sqlite3.connect(directory / "log.db")) as db:
            rows = int(db.execute("SELECT count(*) FROM chunks").fetchone()[0])
        return records / took_s, rows, (directory / "log.db").stat().st_size / records
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _fresh(path: Path, partitions: int) -> SqliteLog:
    log = SqliteLog(path, append_timeout_s=TIMEOUT_S)
    await log.start(30)
    await log.open_topic(TopicSpec(TOPIC, partitions))
    return log


# --- a stream on which no caller waits
TRICKLED: dict[str, BatchSettings | None] = {
    "without the accumulator": None,
    "gathered for 10 ms": BatchSettings(),
    "gathered for 100 ms": BatchSettings(batch_max_delay_ms=100),
}


async def _trickles() -> None:
    """2,000 records/s of 128 bytes, as they would come from many parts of a process."""
    plain = 0.0
    for what, settings in TRICKLED.items():
        cpu_us, written_bytes, rows, p50_ms, p99_ms = await _trickle(settings)
        plain = plain or written_bytes
        emit(
            "batch", f"2,000 records/s of 128 bytes, {what}, sqlite: written a record", written_bytes, "bytes",
            ratio=round(written_bytes / plain, 3), cpu_us=round(cpu_us, 1), rows=int(rows),
            durable_p50_ms=round(p50_ms, 2), durable_p99_ms=round(p99_ms, 2),
        )  # fmt: skip


async def _trickle(settings: BatchSettings | None) -> tuple[float, float, float, float, float]:
    value, took = Payload(None, bytes(128)), list[float]()
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        log = await _fresh(directory / "log.db", 1)
        stack.push_async_callback(log.close)
        append = direct(log)
        if settings is not None:
            batched = await stack.enter_async_context(gathered(log, settings))
            append = lambda at, payload: batched.append(TOPIC, at, payload)  # noqa: E731

        async def write() -> None:
            began_s = time.perf_counter()
            await append(0, value)
            took.append(time.perf_counter() - began_s)

        tasks: list[asyncio.Task[None]] = []
        written, cpu_s, began_s = _written_bytes(), time.process_time(), time.perf_counter()
        while (now_s := time.perf_counter()) < began_s + TRICKLE_S:
            due = int((now_s - began_s) / TRICKLE_EVERY_S)
            tasks += [asyncio.create_task(write()) for _ in range(due - len(tasks))]
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        cpu_s, written = time.process_time() - cpu_s, _written_bytes() - written
        with closing(sqlite3.connect(directory / "log.db")) as db:
            rows = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
        count = len(tasks)
        return cpu_s / count * 1e6, written / count, rows, median(took) * 1e3, percentile(took, 99) * 1e3


def _written_bytes() -> int:
    """What this process has given to the system to write."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


# --- many partitions
async def _partitions() -> None:
    value = bytes(128)
    for partitions in PARTITIONS:
        for name, way in ((f"{CALLERS} callers", by_callers), ("all at once", all_at_once)):
            rates: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                rates.setdefault("", []).append(await _spread(way, value, partitions, None))
                for how, settings in HOW.items():
                    rates.setdefault(f", {how}", []).append(await _spread(way, value, partitions, settings))
            for what, measured in rates.items():
                emit(
                    "batch", f"{partitions:,} partitions, {name}{what}, 128 bytes, sqlite", median(measured),
                    "records/s", ratio=round(median(measured) / median(rates[""]), 3),
                )  # fmt: skip


async def _spread(
    way: Callable[[Append, bytes, int], Awaitable[int]], value: bytes, partitions: int, settings: BatchSettings | None
) -> float:
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        log = await _fresh(directory / "log.db", partitions)
        began_s = time.perf_counter()
        if settings is not None:
            async with gathered(log, settings) as batched:
                records = await way(lambda at, payload: batched.append(TOPIC, at, payload), value, partitions)
        else:
            records = await way(direct(log), value, partitions)
        rate = records / (time.perf_counter() - began_s)
        await log.close()
        return rate
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# --- reading keeps up
async def _consumption() -> None:
    """A reader from the beginning beside the fastest writer, and one that reads the same again by itself."""
    for size_bytes in SIZES:
        async with open_log("sqlite") as log:
            await log.open_topic(TopicSpec(TOPIC, 1))
            value, count = bytes(size_bytes), 100_000
            reading = asyncio.create_task(consumed(log, count))
            began_s = time.perf_counter()
            payloads = [Payload(None, value)] * GIVEN_TOGETHER
            for _ in range(count // GIVEN_TOGETHER):
                await log.append(TOPIC, 0, payloads)
            produced_s = time.perf_counter() - began_s
            await reading
            beside_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            await consumed(log, count)
            alone_s = time.perf_counter() - began_s
            emit(
                "batch", f"consumption ÷ production, {size_bytes} bytes, sqlite", produced_s / alone_s, "",
                target="≥ 1", met=alone_s <= produced_s, produced_s=round(count / produced_s),
                consumed_s=round(count / alone_s), reader_beside_ends_later_ms=round((beside_s - produced_s) * 1e3, 1),
            )  # fmt: skip


async def consumed(log: Log, count: int) -> int:
    """Read so many records of partition 0 from the beginning."""
    read, partitions = 0, len(await log.ends(TOPIC))
    async with aclosing(log.tail(TOPIC, [0] * partitions)) as tail:  # type: ignore[type-var]
        while read < count:
            read += len(await anext(tail))  # type: ignore[call-overload]
    return read


# --- the channel, as it is and behind the accumulator
class Behind:
    """A log whose appends go through the accumulator, one payload at a time, and everything else to the log."""

    def __init__(self, log: Log, batched: BatchedAppends) -> None:
        self._log, self._batched = log, batched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """As `Log.append`."""
        if len(payloads) == 1:
            return await self._batched.append(topic, partition, payloads[0])
        await asyncio.gather(*(self._batched.append(topic, partition, payload) for payload in payloads))
        return None


async def _channels() -> None:
    from bench.channel import BUNDLES, _transitions, own_all

    waits: dict[str, list[float]] = {}
    for name, how in (
        ("as it is", None),
        ("gathered for 1 ms", BatchSettings(batch_max_delay_ms=1)),
        ("gathered for 10 ms", BatchSettings()),
    ):
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(open_log("sqlite"))
            if how is not None:
                log = cast(Log, Behind(log, await stack.enter_async_context(gathered(log, how))))
            channel = Channel(log, ChannelSettings(partitions=1), nonce="bench", wall_ms=lambda: 0)
            await channel.open()
            await stack.enter_async_context(channel.running())
            waits[name] = [await _read_back(channel) for _ in range(300)][50:]
            p50, plain = median(waits[name]) * 1e3, median(waits["as it is"]) * 1e3
            await own_all(channel)
            moved = max([await _transitions(channel, 1) for _ in range(2)])
            emit(
                "batch", f"the channel {name}, publish to verdict p50, sqlite", p50, "ms", ratio=round(p50 / plain, 2),
                p99_ms=round(percentile(waits[name], 99) * 1e3, 2), transitions_s=round(moved), bundles=BUNDLES,
            )  # fmt: skip


async def _read_back(channel: Channel) -> float:
    began_s = time.perf_counter()
    assert await channel.read_back(0, BrokerId("a:1", 1))
    return time.perf_counter() - began_s


if __name__ == "__main__":
    run(os.environ.get("LOG", "sqlite"))
