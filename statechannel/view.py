"""Table views: a compacted topic as a read-only mapping with listeners, writes by key, and a time to live.

Decides nothing: what is shown, and what is too old, says `view_fold.py`. Load data, policies, dynamic settings and
advice are such views; ownership is not (its topic must keep the first valid record, not the last one).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

from statechannel.errors import InvariantError, LogError, LogUnavailable
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.view_fold import Changed, Skipped, ViewFold, partition_of

T = TypeVar("T")
R = TypeVar("R")
Listener = Callable[[str, T | None, T | None], None]

_SETTLED_S = 0.5
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
_log = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """The clock that is compared with the log's own, for the age of what was there before us."""
    return time.time_ns() // 1_000_000


class TableView(Mapping[str, T]):
    """The newest value of each key of a compacted topic, as far as it has been read.

    `start()`, then `run()` for as long as the view is needed. Reads never fail and never wait: while the log does not
    answer the view shows what it has, less what grows older than `ttl_s` meanwhile. The age of entries from before
    the start is the log's time against `clock_ms`; that of later ones counts from their receipt, on the loop's clock.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        ttl_s: float | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        partitions: int | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.topic = topic
        self.skipped = 0
        """Entries that could not be read, since the start."""
        self._log = log
        self._spec = TopicSpec(topic, partitions, compacted=True)
        self._decode, self._encode = decode, encode
        self._ttl_ms = None if ttl_s is None else round(ttl_s * 1000)
        self._clock_ms = clock_ms
        self._timeout_s = timeout_s
        self._listeners: list[Listener[T]] = []
        self._fold: ViewFold[T] | None = None
        self._now_s: Callable[[], float] = time.monotonic
        self._starts: tuple[int, ...] = ()
        self._next: list[int] = []
        self._arrived = asyncio.Event()
        self._ready = asyncio.Event()

    # --- reading

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topic at the start has been read."""
        return self._ready.is_set()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the view is ready, at most `timeout_s`; whether it is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    def on_change(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener(key, old, new)` on the loop for each entry read, and when a value grows too old (new is None).

        Returns what ends it. A listener that raises is logged and does not stop the view.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def __getitem__(self, key: str) -> T:
        value = None if self._fold is None else self._fold.get(key, self._now_ms())
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(()) if self._fold is None else self._fold.shown(self._now_ms())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # --- writing

    async def put(self, key: str, value: T) -> None:
        """Set a key; returns when it is durable, which may be before or after this view shows it.

        Raises LogUnavailable (it may or may not be written) or RecordTooLarge.
        """
        await self._append(key, [Payload(key.encode(), self._encode(value))])

    async def delete(self, key: str) -> None:
        """Delete a key (idempotent). Raises LogUnavailable."""
        await self._append(key, [Payload(key.encode(), None)])

    async def sweep(self) -> tuple[str, ...]:
        """Delete from the topic, for everybody, the keys that are older than `ttl_s`; which. One process should do it.

        First reads up to the topic's present end, so as to judge by the newest entries. A key that is put at the same
        moment may still be lost: who puts it and no longer sees it should put it again. Raises LogUnavailable.
        """
        if self._fold is None or self._ttl_ms is None or not self.ready:
            return ()
        await self._catch_up(await self._answer(self._log.ends(self.topic)))
        keys = sorted(self._fold.overdue(self._now_ms()))
        for key in keys:
            await self.delete(key)
        return tuple(keys)

    async def _append(self, key: str, payloads: Sequence[Payload]) -> None:
        if not self._next:
            raise InvariantError(f"start() the view of {self.topic} before writing to it")
        if not key:
            raise InvariantError(f"a key of {self.topic} must not be empty")
        partition = partition_of(key, len(self._next))
        await self._answer(self._log.append(self.topic, partition, payloads))

    async def _answer(self, question: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except TimeoutError:
            raise LogUnavailable(f"topic {self.topic}: no answer from the log within {self._timeout_s} s") from None

    # --- running

    async def start(self) -> None:
        """Create or check the topic and note its ends. Raises LogUnavailable or TopicMismatch; may be tried again."""
        partitions = await self._answer(self._log.open_topic(self._spec))
        self._starts = await self._answer(self._log.ends(self.topic))
        self._now_s = asyncio.get_running_loop().time
        self._fold = ViewFold(self._decode, partitions, self._ttl_ms)
        self._next = [0] * partitions

    async def run(self) -> None:
        """Read until cancelled. Starts the view if that has not been done."""
        if self._fold is None:
            await self.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._become_ready())
            if self._ttl_ms is not None:
                group.create_task(self._expire())

    async def _read(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                tail = cast("AsyncGenerator[Sequence[LogEntry], None]", self._log.tail(self.topic, tuple(self._next)))
                async with aclosing(tail):
                    async for entries in tail:
                        retry_s = _FIRST_RETRY_S
                        self._apply(entries)
            except LogError as error:
                _log.warning("view of %s goes on with what it has: %s", self.topic, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _apply(self, entries: Sequence[LogEntry]) -> None:
        assert self._fold is not None
        now_ms, wall_ms = self._now_ms(), self._clock_ms()
        for entry in entries:
            old = entry.offset < self._starts[entry.partition]
            outcome = self._fold.apply(entry, now_ms, wall_ms - entry.appended_ms if old else 0)
            self._next[entry.partition] = entry.offset + 1
            if isinstance(outcome, Skipped):
                self.skipped += 1
                _log.warning("%s[%d] offset %d skipped: %s", self.topic, entry.partition, entry.offset, outcome.detail)
            else:
                self._tell(outcome)
        self._arrived.set()

    def _tell(self, change: Changed[T]) -> None:
        if change.old is None and change.new is None:
            return
        for listener in tuple(self._listeners):
            try:
                listener(change.key, change.old, change.new)
            except Exception:  # noqa: BLE001 - a listener's bug is its own; the others and the view go on
                _log.exception("a listener of %s failed on %r", self.topic, change.key)

    async def _become_ready(self) -> None:
        while not self.ready:
            try:
                await self._catch_up(self._starts)
                self._ready.set()
            except LogUnavailable:
                await asyncio.sleep(_SETTLED_S)

    async def _catch_up(self, ends: Sequence[int]) -> None:
        """Return once everything before these offsets has been read.

        The last offsets of a compacted topic may be gaps: where nothing comes for a while although the log answers,
        there is nothing more.
        """
        while any(read < end for read, end in zip(self._next, ends, strict=True)):
            self._arrived.clear()
            try:
                async with asyncio.timeout(_SETTLED_S):
                    await self._arrived.wait()
            except TimeoutError:
                await self._answer(self._log.ends(self.topic))
                if not self._arrived.is_set():
                    return

    async def _expire(self) -> None:
        assert self._fold is not None
        while True:
            for change in self._fold.expire(self._now_ms()):
                self._tell(change)
            await self._sleep_until(self._fold.next_deadline_ms())

    async def _sleep_until(self, deadline_ms: int | None) -> None:
        assert self._ttl_ms is not None
        # What comes later grows too old later; only what is from before the start may come with little life left.
        at_most_ms = max(1, self._ttl_ms // 4) if self.ready else 50
        wait_ms = at_most_ms if deadline_ms is None else min(at_most_ms, max(1, deadline_ms - self._now_ms()))
        await asyncio.sleep(wait_ms / 1000)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
