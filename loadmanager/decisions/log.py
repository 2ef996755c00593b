"""The topic of decision records: one leader appends, all brokers read. A log of one partition, trimmed by age.

Only the offsets of recently read records are kept in memory: a reader searches by the log's clock and by the ids, which
grow. A record that cannot be read is skipped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from loadmanager.cluster.journal import LOOKED_THROUGH, Found, Journal
from loadmanager.decisions.codec import BadDecision, decode, encode
from loadmanager.decisions.record import DecisionRecord, Summary, ordinal, summary_of
from statechannel.errors import RecordTooLarge
from statechannel.ports import Log, TopicSpec
from statechannel.runtime.tasks import Blocking, at_once

T = TypeVar("T")

DECISIONS_TOPIC = "decisions"
DECISIONS = TopicSpec(DECISIONS_TOPIC, partitions=1)
RETENTION_S = 604_800.0
"""Younger decisions are kept: a week, as the channel's log, since an explanation needs both."""
PLACES_KEPT = 10_000
LISTED_AT_MOST = 1_000
READ_AT_ONCE = 50
"""How many records are read at once if nothing is kept of them."""

LARGE_BYTES = 100_000
LARGE_EVERY_S = 600.0
"""How often rounds without moves keep a large model: else a thousand brokers would write 5 GB a week."""

OUT_OF_ORDER = 8
"""By how many offsets ids may be out of order: a deposed leader's last records may be among its successor's."""


class DecisionLog:
    """The log of decisions; call `open()` first, and all methods on the log's loop."""

    def __init__(
        self,
        log: Log,
        now_ms: Callable[[], int | None],
        run_blocking: Blocking = at_once,
        topic: str = DECISIONS_TOPIC,
        retention_s: float = RETENTION_S,
    ) -> None:
        self._journal: Journal[DecisionRecord] = Journal(
            log,
            topic,
            _readable,
            retention_s=lambda: retention_s,
            now_ms=now_ms,
            run_blocking=run_blocking,
            seen=self._keep_place,
        )
        self._run_blocking = run_blocking
        self._large_s: float | None = None
        """When a large model was kept last."""
        self._places: OrderedDict[str, int] = OrderedDict()

    async def open(self) -> None:
        """Create the topic, or check it. Raises LogUnavailable, TopicMismatch."""
        await self._journal.open()

    async def append(self, record: DecisionRecord) -> None:
        """Keep a record; returns when it is durable. Trims old records from time to time.

        Raises LogUnavailable, at the latest after APPEND_TIMEOUT_S, when the record may be there or not; ValueError if
        the record is too large.
        """
        data = await self._run_blocking(partial(self._encoded, record, asyncio.get_running_loop().time()))
        try:
            await self._journal.append(record.id.encode(), data)
        except RecordTooLarge:
            data = await self._run_blocking(partial(encode, record, len(data) // 2))
            await self._journal.append(record.id.encode(), data)

    def _encoded(self, record: DecisionRecord, now_s: float) -> bytes:
        data = encode(record)
        if record.model is None or len(data) <= LARGE_BYTES:
            return data
        kept_s = self._large_s
        if not record.decision.moves and kept_s is not None and now_s - kept_s < LARGE_EVERY_S:
            why = f"nothing was moved, and then so large a model is kept only every {LARGE_EVERY_S / 60:g} min"
            return encode(msgspec.structs.replace(record, model=None, without_model=why))
        self._large_s = now_s
        return data

    async def trim(self, now_ms: int) -> int:
        """Trim what the log took more than the retention ago; the new begin of the topic. Raises LogUnavailable."""
        return await self._journal.trim(now_ms)

    # --- reading; each raises LogUnavailable, at the latest after READ_TIMEOUT_S

    async def newest(self, count: int, before: int | None = None) -> list[Summary]:
        """The newest `count` records, below the offset `before` if it is given, newest first."""
        found = await self._journal.backwards(before, min(count, LISTED_AT_MOST), _any)
        return [summary_of(each.record, each.offset) for each in found]

    async def get(self, decision_id: str) -> Found[DecisionRecord] | None:
        """The record with this id, None if there is none (any more). Raises ValueError for an invalid id."""
        wanted = ordinal(decision_id)
        async with self._journal.reading():
            begin, end = await self._journal.begin(), await self._journal.end()
            place = self._places.get(decision_id)
            if place is None or place < begin:
                place = await self._place_of(wanted, begin, end)
            window = await self._journal.window(max(begin, place - OUT_OF_ORDER), min(end, place + OUT_OF_ORDER + 1))
            return next((found for found in window if found.record.id == decision_id), None)

    async def at(self, at_ms: int) -> Found[DecisionRecord] | None:
        """The last record decided at or before this time, as far as clocks agree."""
        before = await self._behind(at_ms)
        found = await self._journal.backwards(before, 1, _any)
        return found[0] if found else None

    async def with_model(self, at_ms: int | None = None) -> Found[DecisionRecord] | None:
        """The last record with a model at or before this time, among the last LOOKED_THROUGH."""
        before = None if at_ms is None else await self._behind(at_ms)
        found = await self._journal.backwards(before, 1, lambda found: found.record.model is not None)
        return found[0] if found else None

    async def between(self, begin_ms: int, end_ms: int, read: Callable[[DecisionRecord], T | None]) -> list[T]:
        """What `read` returns for the records of this period, oldest first, without None; of the last LOOKED_THROUGH.

        `read` runs off the loop, and nothing else of a record is kept: its model may be large.
        """
        async with self._journal.reading():
            end = await self._journal.end()
            first = await self._journal.offset_at(begin_ms)
            low = max(await self._journal.begin(), first - OUT_OF_ORDER, end - LOOKED_THROUGH)
            kept: list[T] = []
            while low < end:
                high = min(end, low + READ_AT_ONCE)
                records = [found.record for found in await self._journal.window(low, high)]
                inside = [record for record in records if begin_ms <= record.at_ms < end_ms]
                kept += [value for value in await self._run_blocking(partial(_each, read, inside)) if value is not None]
                if records and not inside and records[-1].at_ms >= end_ms:
                    break
                low = high
            return kept

    async def _behind(self, at_ms: int) -> int:
        """The offset after the last record up to this time; the log took it a little after it was decided."""
        async with self._journal.reading():
            before = await self._journal.offset_at(at_ms + 1)
            window = await self._journal.window(before, min(before + OUT_OF_ORDER, await self._journal.end()))
            return max((found.offset + 1 for found in window if found.record.at_ms <= at_ms), default=before)

    async def _place_of(self, wanted: tuple[int, int], begin: int, end: int) -> int:
        """The approximate offset of an id: ids grow along the log."""
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            there = await self._journal.window(middle, middle + 1) or await self._journal.window(
                middle, min(high, middle + 50)
            )
            if not there or ordinal(there[0].record.id) >= wanted:
                high = middle
            else:
                low = there[0].offset + 1
        return low

    def _keep_place(self, found: Found[DecisionRecord]) -> None:
        self._places[found.record.id] = found.offset
        self._places.move_to_end(found.record.id)
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)


def _readable(value: bytes | None) -> DecisionRecord | None:
    try:
        return decode(value)
    except BadDecision:
        return None


def _each(read: Callable[[DecisionRecord], T | None], records: Sequence[DecisionRecord]) -> list[T | None]:
    return [read(record) for record in records]


def _any(_: Found[DecisionRecord]) -> bool:
    return True
