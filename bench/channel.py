"""The channel: publish → verdict against the plain produce → consume round trip of the same log, and transitions/s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvloop

from bench.backends import open_log
from bench.figures import emit, median, percentile
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.verdict import Change
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.channel import Channel, ChannelSettings

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
BUNDLES = 1_000
ROUND_TRIPS = 600
WARM_UP = 100
PADDING = b"x" * 250
"""A plain record of the size of ours."""


def run(kind: str) -> None:
    """All figures of this bench."""
    uvloop.run(_run(kind))


async def _run(kind: str) -> None:
    async with open_log(kind) as log:
        channel = Channel(log, ChannelSettings(partitions=1), nonce="bench", wall_ms=lambda: 0)
        await channel.open()
        async with channel.running():
            await own_all(channel)
            verdicts, floors = await _round_trips(log, channel)
            p50, floor = median(verdicts) * 1e3, median(floors) * 1e3
            emit(
                "channel", f"publish to verdict p50, {kind}", p50, "ms",
                floor=floor, target="ratio ≤ 1.5", met=p50 <= 1.5 * floor,
                p99_ms=round(percentile(verdicts, 99) * 1e3, 3),
            )  # fmt: skip
            single = max([await _transitions(channel, 1) for _ in range(3)])
            emit("channel", f"awaited transitions, {kind}", single, "1/s", target="≥ 20,000", met=single >= 20_000)
            many = max([await _transitions(channel, 100) for _ in range(3)])
            emit(
                "channel", f"the same, 100 bundles a record, {kind}", many, "1/s", target="≥ 50,000", met=many >= 50_000
            )


async def _plain_round_trip(log: Log, tail: AsyncIterator[Sequence[LogEntry]]) -> float:
    """From the call of `append` to the entry's arrival at a tail, with nothing of ours on the way."""
    begin = time.perf_counter()
    append = asyncio.ensure_future(log.append("plain", 0, [Payload(None, PADDING)]))
    await anext(tail)
    took = time.perf_counter() - begin
    await append
    return took


async def plain_round_trips(log: Log) -> list[float]:
    """Seconds of each."""
    async with _plain_tail(log) as tail:
        return [await _plain_round_trip(log, tail) for _ in range(ROUND_TRIPS)][WARM_UP:]


async def _round_trips(log: Log, channel: Channel) -> tuple[list[float], list[float]]:
    """Ours and the plain ones, in turns."""
    ours: list[float] = []
    plain: list[float] = []
    async with _plain_tail(log) as tail:
        for _ in range(ROUND_TRIPS):
            ours.append(await _timed(channel.read_back(0, A)))
            plain.append(await _plain_round_trip(log, tail))
    return ours[WARM_UP:], plain[WARM_UP:]


@asynccontextmanager
async def _plain_tail(log: Log) -> AsyncGenerator[AsyncIterator[Sequence[LogEntry]]]:
    await log.open_topic(TopicSpec("plain", 1))
    tail = log.tail("plain", [0])
    try:
        yield tail
    finally:
        await tail.aclose()  # type: ignore[attr-defined]


async def _timed(work: object) -> float:
    begin = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - begin


async def own_all(channel: Channel) -> None:
    """A namespace of so many bundles, all of them assigned to A."""
    create = Record("", Action.CREATE_NAMESPACE, A, Role.ADMIN, namespace="t/n", boundaries=even_boundaries(BUNDLES))
    await channel.publish(create)
    bundles = channel.table.namespace("t/n").bundles  # type: ignore[union-attr]
    for begin in range(0, BUNDLES, 500):
        await step(channel, bundles[begin : begin + 500], Action.OWN, A)
        await step(channel, bundles[begin : begin + 500], Action.RETURN, None)


async def step(
    channel: Channel, bundles: Sequence[Bundle], action: Action, to: BrokerId | None, actor: BrokerId = A
) -> None:
    """One accepted record for these bundles."""
    table = channel.table
    subjects = tuple(Subject(b, table.get(b).revision) for b in bundles)  # type: ignore[union-attr]
    verdict = await channel.publish(Record("", action, actor, subjects=subjects, to=to))
    assert isinstance(verdict, Change), verdict
    assert len(verdict.transitions) == len(bundles), verdict


async def _transitions(channel: Channel, bundles_a_record: int) -> float:
    """Transitions per second when every bundle is moved to and fro, each step awaited before its next."""
    bundles = channel.table.namespace("t/n").bundles  # type: ignore[union-attr]
    rounds = 20 if bundles_a_record == 1 else 40

    async def to_and_fro(part: Sequence[Bundle]) -> None:
        for _ in range(rounds):
            await step(channel, part, Action.TRANSFER, B)
            await step(channel, part, Action.CANCEL, None)

    parts = [bundles[begin : begin + bundles_a_record] for begin in range(0, BUNDLES, bundles_a_record)]
    begin = time.perf_counter()
    await asyncio.gather(*(to_and_fro(part) for part in parts))
    return 2 * rounds * BUNDLES / (time.perf_counter() - begin)
