"""The topic of decision records: one leader appends, everybody reads. A log of one partition, trimmed by age.

Only the offsets of recently read records are kept in memory: a reader searches by the log's clock and by the ids, which
grow. A record that cannot be read is skipped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar

import msgspec

from loadmanager.decisions.codec import decode, encode
from loadmanager.decisions.errors import BadDecision
from loadmanager.decisions.record import DecisionRecord, Summary, ordinal, summary_of
from loadmanager.model.run_blocking import Blocking, at_once
from statechannel.errors import LogUnavailable, RecordTooLarge, Trimmed
from statechannel.law.bundle import Bundle
from statechannel.ports import Log, LogEntry, Payload, TopicSpec

T = TypeVar("T")

DECISIONS_TOPIC = "decisions"
DECISIONS = TopicSpec(DECISIONS_TOPIC, partitions=1)
APPEND_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
TRIM_EVERY_S = 600.0
PLACES_KEPT = 10_000
LISTED_AT_MOST = 1_000
LOOKED_THROUGH = 2_000
"""How many records a search reads at most."""

READ_AT_ONCE = 50
"""How many records are read at once if nothing is kept of them."""

LARGE_BYTES = 100_000
LARGE_EVERY_S = 600.0
"""How often rounds without moves keep a large model: else a thousand brokers would write 5 GB a week."""

OUT_OF_ORDER = 8
"""By how many offsets ids may be out of order: a deposed leader's last records may be among its successor's."""


class Found(msgspec.Struct, frozen=True):
    """A record, and its offset in the topic."""

    offset: int
    appended_ms: int
    record: DecisionRecord


class DecisionLog:
    """The log of decisions; call `open()` first, and all methods on the log's loop. Each trim calls `retention_s`."""

    def __init__(
        self,
        log: Log,
        retention_s: Callable[[], float],
        wall_ms: Callable[[], int],
        run_blocking: Blocking = at_once,
        topic: str = DECISIONS_TOPIC,
    ) -> None:
        self._topic = topic
        self._log = log
        self._run_blocking = run_blocking
        self._retention_s = retention_s
        self._wall_ms = wall_ms
        self._trimmed_ms: int | None = None
        self._large_ms: int | None = None
        """When a large model was kept last."""
        self._places: OrderedDict[str, int] = OrderedDict()

    async def open(self) -> None:
        """Create the topic, or check it. Raises LogUnavailable, TopicMismatch."""
        await self._log.open_topic(TopicSpec(self._topic, partitions=1))

    async def append(self, record: DecisionRecord) -> None:
        """Keep a record; returns when it is durable. Trims old records from time to time.

        Raises LogUnavailable, at the latest after APPEND_TIMEOUT_S, when the record may be there or not; ValueError if
        the record is too large.
        """
        data = await self._run_blocking(partial(self._encoded, record))
        async with _within(APPEND_TIMEOUT_S):
            try:
                await self._log.append(self._topic, 0, [Payload(record.id.encode(), data)])
            except RecordTooLarge:
                data = await self._run_blocking(partial(encode, record, len(data) // 2))
                await self._log.append(self._topic, 0, [Payload(record.id.encode(), data)])
            await self._trim_now_and_then()

    def _encoded(self, record: DecisionRecord) -> bytes:
        data, now_ms = encode(record), self._wall_ms()
        if record.model is None or len(data) <= LARGE_BYTES:
            return data
        kept_ms = self._large_ms
        if not record.decision.moves and kept_ms is not None and now_ms - kept_ms < LARGE_EVERY_S * 1000:
            why = f"nothing was moved, and then so large a model is kept only every {LARGE_EVERY_S / 60:g} min"
            return encode(msgspec.structs.replace(record, model=None, without_model=why))
        self._large_ms = now_ms
        return data

    async def _trim_now_and_then(self) -> None:
        now_ms = self._wall_ms()
        if self._trimmed_ms is None or now_ms - self._trimmed_ms >= TRIM_EVERY_S * 1000:
            self._trimmed_ms = now_ms
            await self.trim(now_ms)

    async def trim(self, now_ms: int) -> int:
        """Trim what the log took more than the retention ago; the new begin of the topic. Raises LogUnavailable."""
        before = await self._log.offset_at(self._topic, 0, max(0, now_ms - round(self._retention_s() * 1000)))
        if before > await self._begin():
            await self._log.trim(self._topic, 0, before)
        return before

    # --- reading; each raises LogUnavailable, at the latest after READ_TIMEOUT_S

    async def newest(self, count: int, before: int | None = None) -> list[Summary]:
        """The newest `count` records, below the offset `before` if it is given, newest first."""
        found = await self._backwards(before, min(count, LISTED_AT_MOST), _any)
        return [summary_of(each.record, each.offset) for each in found]

    async def get(self, decision_id: str) -> Found | None:
        """The record with this id, None if there is none (any more). Raises ValueError for an invalid id."""
        wanted = ordinal(decision_id)
        async with _within(READ_TIMEOUT_S):
            begin, end = await self._begin(), await self._end()
            place = self._places.get(decision_id)
            if place is None or place < begin:
                place = await self._place_of(wanted, begin, end)
            window = await self._window(max(begin, place - OUT_OF_ORDER), min(end, place + OUT_OF_ORDER + 1))
            return next((found for found in window if found.record.id == decision_id), None)

    async def at(self, at_ms: int) -> Found | None:
        """The last record decided at or before this time, as far as clocks agree."""
        before = await self._behind(at_ms)
        found = await self._backwards(before, 1, _any)
        return found[0] if found else None

    async def with_model(self, at_ms: int | None = None) -> Found | None:
        """The last record with a model at or before this time, among the last LOOKED_THROUGH."""
        before = None if at_ms is None else await self._behind(at_ms)
        found = await self._backwards(before, 1, lambda found: found.record.model is not None)
        return found[0] if found else None

    async def moves_of(self, bundle: Bundle, count: int, before: int | None = None) -> list[Found]:
        """The newest records that decided to move this bundle, among the last LOOKED_THROUGH."""
        return await self._backwards(
            before, count, lambda found: any(move.bundle == bundle for move in found.record.decision.moves)
        )

    async def between(self, begin_ms: int, end_ms: int, read: Callable[[DecisionRecord], T | None]) -> list[T]:
        """What `read` returns for the records of this period, oldest first, without None; of the last LOOKED_THROUGH.

        `read` runs off the loop, and nothing else of a record is kept: its model may be large.
        """
        async with _within(READ_TIMEOUT_S):
            end = await self._end()
            first = await self._log.offset_at(self._topic, 0, begin_ms)
            low = max(await self._begin(), first - OUT_OF_ORDER, end - LOOKED_THROUGH)
            kept: list[T] = []
            while low < end:
                high = min(end, low + READ_AT_ONCE)
                records = [found.record for found in await self._window(low, high)]
                inside = [record for record in records if begin_ms <= record.at_ms < end_ms]
                kept += [value for value in await self._run_blocking(partial(_each, read, inside)) if value is not None]
                if records and not inside and records[-1].at_ms >= end_ms:
                    break
                low = high
            return kept

    async def _behind(self, at_ms: int) -> int:
        """The offset after the last record up to this time; the log took it a little after it was decided."""
        async with _within(READ_TIMEOUT_S):
            before = await self._log.offset_at(self._topic, 0, at_ms + 1)
            window = await self._window(before, min(before + OUT_OF_ORDER, await self._end()))
            return max((found.offset + 1 for found in window if found.record.at_ms <= at_ms), default=before)

    async def _backwards(self, before: int | None, count: int, wanted: Callable[[Found], bool]) -> list[Found]:
        """The newest wanted records below an offset, newest first."""
        kept: list[Found] = []
        async with _within(READ_TIMEOUT_S):
            begin, end = await self._begin(), await self._end()
            high, step, looked = end if before is None else min(before, end), max(1, min(count, 50)), 0
            while high > begin and len(kept) < count and looked < LOOKED_THROUGH:
                low = max(begin, high - step)
                kept += [found for found in reversed(await self._window(low, high)) if wanted(found)]
                looked += high - low
                high, step = low, min(200, step * 2)
        return kept[:count]

    async def _window(self, low: int, high: int) -> list[Found]:
        """The readable records at these offsets, in order, without those trimmed meanwhile."""
        found: list[Found] = []
        try:
            batches = self._log.read(self._topic, 0, low)
            async with aclosing(batches) as reading:
                async for batch in reading:
                    wanted = [entry for entry in batch if entry.offset < high]
                    found += await self._run_blocking(partial(_readable, wanted))
                    if len(wanted) < len(batch) or (batch and batch[-1].offset >= high - 1):
                        break
        except Trimmed:
            begin = await self._begin()
            return await self._window(begin, high) if low < begin < high else []
        for each in found:
            self._keep_place(each)
        return found

    async def _place_of(self, wanted: tuple[int, int], begin: int, end: int) -> int:
        """The approximate offset of an id: ids grow along the log."""
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            there = await self._window(middle, middle + 1) or await self._window(middle, min(high, middle + 50))
            if not there or ordinal(there[0].record.id) >= wanted:
                high = middle
            else:
                low = there[0].offset + 1
        return low

    def _keep_place(self, found: Found) -> None:
        self._places[found.record.id] = found.offset
        self._places.move_to_end(found.record.id)
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)

    async def _begin(self) -> int:
        return (await self._log.begins(self._topic))[0]

    async def _end(self) -> int:
        return (await self._log.ends(self._topic))[0]


def _readable(entries: Sequence[LogEntry]) -> list[Found]:
    found: list[Found] = []
    for entry in entries:
        try:
            found.append(Found(entry.offset, entry.appended_ms, decode(entry.value)))
        except BadDecision:
            continue
    return found


def _each(read: Callable[[DecisionRecord], T | None], records: Sequence[DecisionRecord]) -> list[T | None]:
    return [read(record) for record in records]


def _any(_: Found) -> bool:
    return True


@asynccontextmanager
async def _within(timeout_s: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise LogUnavailable(f"the log of decisions did not answer within {timeout_s:g} s; try again") from None
