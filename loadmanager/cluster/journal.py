"""A topic to which entries are only added: a log of one partition, read from its end, and trimmed by age.

An entry that cannot be read is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import msgspec

from loadmanager.errors import Invalid
from statechannel.errors import LogUnavailable, Trimmed
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.tasks import Blocking, at_once

T = TypeVar("T")

APPEND_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
TRIM_EVERY_S = 600.0
LOOKED_THROUGH = 2_000
"""How many entries a search reads at most."""
TRIMMED_AT_ONCE = 5_000
"""A trim removes at most this many, plus one batch."""


class Found(msgspec.Struct, Generic[T], frozen=True):
    """A record, and its offset in the topic."""

    offset: int
    appended_ms: int
    record: T


class Journal(Generic[T]):
    """Call `open()` first, and all methods on the log's loop. Each trim calls `retention_s`.

    `now_ms` is the time by which entries are old, None if it is not known: then nothing is trimmed.

    `decode` gives the record in an entry's value, None if it cannot be read; `run_blocking` runs it. `seen` is called
    with each record that is read.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        decode: Callable[[bytes | None], T | None],
        *,
        retention_s: Callable[[], float],
        now_ms: Callable[[], int | None],
        run_blocking: Blocking = at_once,
        seen: Callable[[Found[T]], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self._log = log
        self._decode = decode
        self._retention_s = retention_s
        self._now_ms = now_ms
        self._run_blocking = run_blocking
        self._seen = seen
        self._trimmed_s: float | None = None

    async def open(self) -> None:
        """Create the topic, or check it. Raises LogUnavailable, TopicMismatch."""
        await self._log.open_topic(TopicSpec(self.topic, partitions=1))

    async def append(self, key: bytes, value: bytes) -> None:
        """Add an entry; returns when it is durable. Trims old entries from time to time.

        Raises LogUnavailable, at the latest after APPEND_TIMEOUT_S, when the entry may be there or not; RecordTooLarge.
        """
        async with self._within(APPEND_TIMEOUT_S):
            await self._log.append(self.topic, 0, [Payload(key, value)])
            now_s, now_ms = asyncio.get_running_loop().time(), self._now_ms()
            if now_ms is not None and (self._trimmed_s is None or now_s - self._trimmed_s >= TRIM_EVERY_S):
                self._trimmed_s = now_s
                await self.trim(now_ms)

    async def trim(self, now_ms: int) -> int:
        """Trim what the log took longer ago than the retention. Returns the topic's new begin. Raises LogUnavailable.

        Entries' times need not increase, since their writers' clocks may differ, and `offset_at` finds only some place
        where old ones end. So each entry below it is looked at: the first recent one ends the trim. A time after
        `now_ms` is ignored: such an entry is trimmed with the older ones after it.
        """
        horizon_ms, begin = max(0, now_ms - round(self._retention_s() * 1000)), await self.begin()
        before, old = await self.offset_at(horizon_ms), begin
        if before > begin:
            async with aclosing(self._log.read(self.topic, 0, begin)) as reading:
                async for batch in reading:
                    for entry in batch:
                        if entry.offset >= before or horizon_ms <= entry.appended_ms <= now_ms:
                            before = entry.offset
                            break
                        if entry.appended_ms < horizon_ms:
                            old = entry.offset + 1
                    if not batch or batch[-1].offset + 1 >= min(before, begin + TRIMMED_AT_ONCE):
                        break
        if old > begin:
            await self._log.trim(self.topic, 0, old)
        return old

    # --- reading; each raises LogUnavailable

    async def backwards(
        self, before: int | None, count: int, wanted: Callable[[Found[T]], bool], most: int = LOOKED_THROUGH
    ) -> list[Found[T]]:
        """The newest wanted records below an offset, newest first, among the last `most`; at most READ_TIMEOUT_S."""
        kept: list[Found[T]] = []
        async with self.reading():
            begin, end = await self.begin(), await self.end()
            high, step, looked = end if before is None else min(before, end), max(1, min(count, 50)), 0
            while high > begin and len(kept) < count and looked < most:
                low = max(begin, high - step)
                kept += [found for found in reversed(await self.window(low, high)) if wanted(found)]
                looked += high - low
                high, step = low, min(200, step * 2)
        return kept[:count]

    async def window(self, low: int, high: int) -> list[Found[T]]:
        """The readable records at these offsets, in order, without those trimmed meanwhile."""
        found: list[Found[T]] = []
        try:
            async with aclosing(self._log.read(self.topic, 0, low)) as reading:
                async for batch in reading:
                    wanted = [entry for entry in batch if entry.offset < high]
                    found += await self._run_blocking(partial(self._readable, wanted))
                    if len(wanted) < len(batch) or (batch and batch[-1].offset >= high - 1):
                        break
        except Trimmed:
            begin = await self.begin()
            return await self.window(begin, high) if low < begin < high else []
        for each in found:
            self._seen(each)
        return found

    def _readable(self, entries: Sequence[LogEntry]) -> list[Found[T]]:
        decoded = ((entry, self._decode(entry.value)) for entry in entries)
        return [Found(entry.offset, entry.appended_ms, record) for entry, record in decoded if record is not None]

    async def offset_at(self, at_ms: int) -> int:
        """The offset of the first entry that the log took at this time or later."""
        return await self._log.offset_at(self.topic, 0, at_ms)

    async def begin(self) -> int:
        """The lowest offset that can be read."""
        return (await self._log.begins(self.topic))[0]

    async def end(self) -> int:
        """The offset after the last entry."""
        return (await self._log.ends(self.topic))[0]

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Raises LogUnavailable if what is inside takes longer than READ_TIMEOUT_S."""
        return self._within(READ_TIMEOUT_S)

    @asynccontextmanager
    async def _within(self, timeout_s: float) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise LogUnavailable(f"the log of {self.topic} did not answer within {timeout_s:g} s; try again") from None


def offset_of(cursor: str | None) -> int | None:
    """The offset in a cursor of a list that is in the order of a topic. Raises Invalid."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise Invalid(f"{cursor!r} is not a cursor of this list; use the `next` of a page, or leave it out")
    return int(cursor)
