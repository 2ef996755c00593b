"""The words of the log contract's tests: payloads that are appended, and what is read of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from statechannel.ports import Log, LogEntry, Payload

WAIT_S = 60


def value(text: object) -> Payload:
    return Payload(None, str(text).encode())


def values(*said: object) -> list[Payload]:
    return [value(text) for text in said]


def keyed(key: str, text: str | None) -> Payload:
    return Payload(key.encode(), None if text is None else text.encode())


def texts(entries: Sequence[LogEntry]) -> list[str]:
    return [(entry.value or b"").decode() for entry in entries]


def latest(entries: Sequence[LogEntry]) -> dict[bytes | None, bytes | None]:
    return {entry.key: entry.value for entry in entries}


async def take(tail: AsyncIterator[Sequence[LogEntry]], count: int) -> list[LogEntry]:
    """At least `count` entries, as they come."""
    taken: list[LogEntry] = []
    async with asyncio.timeout(WAIT_S):
        while len(taken) < count:
            taken += await anext(tail)
    return taken


async def tailed(log: Log, topic: str, starts: Sequence[int], count: int) -> list[LogEntry]:
    """At least `count` entries of a tail that is closed again."""
    async with aclosing(log.tail(topic, starts)) as tail:
        return await take(tail, count)


async def held(log: Log, topic: str, partition: int = 0, start: int | None = None) -> list[LogEntry]:
    """All that a partition holds, by `read`; from its begin on unless `start` says otherwise."""
    if start is None:
        start = (await log.begins(topic))[partition]
    async with asyncio.timeout(WAIT_S), aclosing(log.read(topic, partition, start)) as reading:
        return [entry async for batch in reading for entry in batch]
