"""Table views: a compacted topic as a read-only mapping with listeners, writes by key, and a time to live.

`view_fold.py` decides what is shown and what is too old. Load data, policies, dynamic settings and advice are such
views; ownership is not (its topic must keep the first valid record, not the last one).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from statechannel.errors import InvariantError
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.listeners import Listeners
from statechannel.runtime.topic_reader import TopicReader
from statechannel.runtime.view_fold import Changed, Skipped, ViewFold, partition_of

T = TypeVar("T")
Listener = Callable[[str, T | None, T | None], None]

_log = logging.getLogger(__name__)


READ_BACK = 4
"""More than 1, since clocks differ, and other processes may have been told a longer time to live."""


def wall_clock_ms() -> int:
    """Our wall clock, to compare with the log's: it gives the age of entries from before the start."""
    return time.time_ns() // 1_000_000


class TableView(Mapping[str, T]):
    """The newest value of each key of a compacted topic, as far as it has been read.

    Call `start()`, then `run()` for as long as the view is needed. Reads never fail and never wait: while the log does
    not answer, the view shows what it has, except values older than `ttl_s`. The age of entries from before the start
    is `clock_ms` minus the log's time; that of later ones counts from their receipt, on the loop's clock.

    A `followed` topic keeps replaced values. If it has a time to live, the view reads at the start only entries younger
    than `READ_BACK` times `ttl_s`; `sweep` does not know keys that have only older entries.
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
        followed: bool = False,
    ) -> None:
        self.topic = topic
        self.skipped = 0
        """Entries that could not be read, since the start."""
        self._decode, self._encode = decode, encode
        self._ttl_ms = None if ttl_s is None else round(ttl_s * 1000)
        self._clock_ms = clock_ms
        self._listeners: Listeners[[str, T | None, T | None]] = Listeners(topic)
        self._fold: ViewFold[T] | None = None
        self._now_s: Callable[[], float] = time.monotonic
        self._ttl_changed = asyncio.Event()
        spec = TopicSpec(topic, partitions, compacted=True, followed=followed)
        self._reader = TopicReader(log, spec, self._take, timeout_s, self._since_ms if followed and ttl_s else None)

    # --- reading

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topic at the start has been read."""
        return self._reader.ready

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the view is ready. Returns True if it is."""
        return await self._reader.wait_ready(timeout_s)

    async def catch_up(self) -> None:
        """Return once everything that is in the topic now has been read. Raises LogUnavailable."""
        await self._reader.catch_up()

    def on_change(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener(key, old, new)` on the loop for each entry read, and when a value grows too old (new is None).

        Returns a function that removes the listener. An exception in a listener is logged and does not stop the view.
        """
        return self._listeners.add(listener)

    def set_ttl(self, ttl_s: float) -> None:
        """Change the time to live, also of present values. Raises InvariantError if the view was made without one."""
        if self._ttl_ms is None:
            raise InvariantError(f"the view of {self.topic} was made without a time to live")
        self._ttl_ms = round(ttl_s * 1000)
        if self._fold is not None:
            self._fold.ttl_ms = self._ttl_ms
        self._ttl_changed.set()

    def __getitem__(self, key: str) -> T:
        value = None if self._fold is None else self._fold.get(key, self._now_ms())
        if value is None:
            raise KeyError(key)
        return value

    def several(self, keys: Iterable[str]) -> list[T | None]:
        """As `get` for each key, with one look at the clock."""
        fold = self._fold
        if fold is None:
            return [None for _ in keys]
        now_ms = self._now_ms()
        return [fold.get(key, now_ms) for key in keys]

    def __iter__(self) -> Iterator[str]:
        return iter(()) if self._fold is None else self._fold.shown(self._now_ms())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def appended(self) -> list[tuple[T, int]]:
        """Each value with the log's time of its entry, in ms."""
        fold = self._fold
        return [] if fold is None else [(value, fold.appended_ms(key)) for key, value in self.items()]

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
        """Delete keys older than `ttl_s` from the topic, for all processes; returns the keys. One process should do it.

        Reads up to the topic's present end first, to judge by the newest entries. A key that is put at the same moment
        may still be lost: a writer that no longer sees its key should put it again. Raises LogUnavailable.
        """
        if self._fold is None or self._ttl_ms is None or not self.ready:
            return ()
        await self._reader.catch_up()
        keys = sorted(self._fold.overdue(self._now_ms()))
        for key in keys:
            await self.delete(key)
        return tuple(keys)

    async def _append(self, key: str, payloads: Sequence[Payload]) -> None:
        if not key:
            raise InvariantError(f"a key of {self.topic} must not be empty")
        await self._reader.append(partition_of(key, max(1, self._reader.partitions)), payloads)

    # --- running

    async def start(self) -> None:
        """Create or check the topic and note its ends. Raises LogUnavailable or TopicMismatch; may be tried again."""
        partitions = await self._reader.start()
        self._now_s = asyncio.get_running_loop().time
        self._fold = ViewFold(self._decode, partitions, self._ttl_ms)

    def forget(self) -> None:
        """Drop all content, and be ready no more. Listeners are not told. Not while it runs."""
        self._reader.forget()
        self._fold = ViewFold(self._decode, self._reader.partitions, self._ttl_ms)

    async def rewind(self) -> None:
        """After `forget`: have the next `run` read the topic as it is now. Raises LogUnavailable."""
        await self._reader.rewind()

    async def run(self) -> None:
        """Read until cancelled. Starts the view if it has not been started."""
        if self._fold is None:
            await self.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reader.run())
            if self._ttl_ms is not None:
                group.create_task(self._expire())

    def _take(self, entries: Sequence[LogEntry]) -> None:
        assert self._fold is not None
        now_ms, wall_ms = self._now_ms(), self._clock_ms()
        for entry in entries:
            old = entry.offset < self._reader.starts[entry.partition]
            outcome = self._fold.apply(entry, now_ms, wall_ms - entry.appended_ms if old else 0)
            if isinstance(outcome, Skipped):
                self.skipped += 1
                _log.warning("%s[%d] offset %d skipped: %s", self.topic, entry.partition, entry.offset, outcome.detail)
            else:
                self._tell(outcome)

    def _tell(self, change: Changed[T]) -> None:
        if change.old is not None or change.new is not None:
            self._listeners.call(change.key, change.old, change.new)

    async def _expire(self) -> None:
        assert self._fold is not None
        while True:
            for change in self._fold.expire(self._now_ms()):
                self._tell(change)
            await self._sleep_until(self._fold.next_deadline_ms())

    async def _sleep_until(self, deadline_ms: int | None) -> None:
        assert self._ttl_ms is not None
        # Later entries expire later; only entries from before the start may arrive with little time left.
        at_most_ms = max(1, self._ttl_ms // 4) if self.ready else 50
        wait_ms = at_most_ms if deadline_ms is None else min(at_most_ms, max(1, deadline_ms - self._now_ms()))
        self._ttl_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._ttl_changed.wait()

    def _since_ms(self) -> int:
        assert self._ttl_ms is not None
        return self._clock_ms() - READ_BACK * self._ttl_ms

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
