"""Gathers records into batches, within a budget of bytes: when a batch is ready, and which callers must wait for room.

Pure: `accumulator.py` has the lock, the timer and the callers. A batch has one key (a partition, and whatever else its
records must have in common). It is ready when it is full, when it is old, or when a caller waits for room. The bytes of
a record are taken when it is put into a batch, and given back with the whole batch. A record that is refused, or that
waits for room, has taken nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec

from statechannel.errors import InvariantError, LogError, LogUnavailable, RecordTooLarge
from statechannel.ports import Payload

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MAX_DELAY_MS = 30_000
MAX_BATCH_BYTES = 2 << 20
SHARED_MAX_BYTES = (1 << 20) - 1024
"""A larger record is a batch by itself: no log refuses a batch because of one record that shares it with others."""
RECORD_OVERHEAD_BYTES = 64
"""About what a record costs beside its key and value."""


class BatchSettings(msgspec.Struct, frozen=True):
    """How records are gathered; names, bounds and defaults are those of RocketMQ's AutoBatch, all sizes in bytes.

    Raises LogError if a value is out of its bounds.
    """

    batch_max_bytes: int = 32 << 10
    """The largest batch, unless a single record is larger."""
    batch_max_delay_ms: int = 10
    """How old a batch may get before the timer sends it, at its next turn."""
    total_batch_max_bytes: int = 32 << 20
    """Limit of all batches together, open or being sent. Callers wait while there is no room."""

    def __post_init__(self) -> None:
        _check("batch_max_bytes", self.batch_max_bytes, MAX_BATCH_BYTES, "bytes")
        _check("batch_max_delay_ms", self.batch_max_delay_ms, MAX_DELAY_MS, "ms")
        _check("total_batch_max_bytes", self.total_batch_max_bytes, None, "bytes")

    @property
    def timer_period_ms(self) -> float:
        """The timer's period: half of the delay. So no batch gets older than one and a half delays."""
        return self.batch_max_delay_ms / 2


def _check(name: str, value: int, most: int | None, unit: str) -> None:
    if value < 1 or (most is not None and value > most):
        wanted = f"from 1 to {most:,} {unit}" if most is not None else f"at least 1 {unit.removesuffix('s')}"
        raise LogError(f"{name} must be {wanted}, not {value:,}: correct it")


def record_bytes(payload: Payload) -> int:
    """What a payload counts: key, value, and what is kept for it beside them."""
    return len(payload.key or b"") + len(payload.value or b"") + RECORD_OVERHEAD_BYTES


class Item(msgspec.Struct, Generic[K, T], eq=False):
    """One record, and the caller that waits for its result."""

    key: K
    record: T
    size_bytes: int
    waiter: Any = None
    """The core never looks at it."""


class Batch(msgspec.Struct, Generic[K, T], eq=False):
    """Records of one key, in the order in which they were put in."""

    key: K
    opened_ms: float
    items: list[Item[K, T]]
    size_bytes: int = 0


class BatchCore(Generic[K, T]):
    """Each method returns the batches to send now, in this order; each must come back once, by `give_back`.

    `now_ms` is of any clock that does not go back. Batches of a key are returned in the order of their records, and
    callers that wait for room get it in order of arrival, regardless of their keys.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self.settings = settings
        self.held_bytes = 0
        """Bytes of all batches, open or being sent; never more than `total_batch_max_bytes`."""
        self.closed = False
        self._open: dict[K, Batch[K, T]] = {}  # in the order in which they were opened
        self._open_bytes = 0
        self._under_way: dict[Batch[K, T], None] = {}
        self._waiting: dict[Item[K, T], None] = {}
        self._waiting_bytes = 0

    @property
    def has_open(self) -> bool:
        """Whether a batch waits for more records, so that the timer is needed."""
        return bool(self._open)

    @property
    def under_way(self) -> list[Batch[K, T]]:
        """The batches that were returned and have not come back."""
        return list(self._under_way)

    def is_under_way(self, batch: Batch[K, T]) -> bool:
        """Whether it was returned and has not come back."""
        return batch in self._under_way

    def must_wait(self, size_bytes: int) -> bool:
        """Whether a record of this size would have to wait for room now."""
        return bool(self._waiting) or self.held_bytes + size_bytes > self.settings.total_batch_max_bytes

    def check(self, size_bytes: int) -> None:
        """Raises LogUnavailable once closed, RecordTooLarge if there can never be room for such a record."""
        if self.closed:
            raise closed_error()
        total_bytes = self.settings.total_batch_max_bytes
        if size_bytes > total_bytes:
            raise RecordTooLarge(
                f"a record that takes {size_bytes} bytes never fits into total_batch_max_bytes ({total_bytes}), "
                "and was not written: write smaller records, or raise it"
            )

    def add(self, item: Item[K, T], now_ms: float) -> list[Batch[K, T]]:
        """Put a record into its batch, or let it wait for room. Raises what `check` raises, and has taken nothing."""
        self.check(item.size_bytes)
        if self.must_wait(item.size_bytes):
            self._waiting[item] = None
            self._waiting_bytes += item.size_bytes
            return self._pressed()
        return self._put(item, now_ms)

    def withdraw(self, item: Item[K, T], now_ms: float) -> list[Batch[K, T]] | None:
        """Forget a record whose caller gave up; None if it is in a batch already, and will be written."""
        if item not in self._waiting:
            return None
        self._take_from_waiting(item)
        return self._admit(now_ms)

    def due(self, now_ms: float) -> list[Batch[K, T]]:
        """The batches that are old enough; costs nothing for the others."""
        ready: list[Batch[K, T]] = []
        while self._open:
            oldest = next(iter(self._open.values()))
            if now_ms - oldest.opened_ms < self.settings.batch_max_delay_ms:
                break
            ready.append(self._closed(oldest))
        return ready

    def give_back(self, batch: Batch[K, T], now_ms: float) -> list[Batch[K, T]]:
        """Take a batch back, sent or failed, and let in records that there is now room for. Idempotent."""
        if batch not in self._under_way:
            return []
        del self._under_way[batch]
        self.held_bytes -= batch.size_bytes
        return self._admit(now_ms)

    def close(self) -> tuple[list[Batch[K, T]], list[Item[K, T]]]:
        """Take no more records: the open batches, to send, and the records that waited and will not be written."""
        self.closed = True
        refused, self._waiting, self._waiting_bytes = list(self._waiting), {}, 0
        return [self._closed(batch) for batch in list(self._open.values())], refused

    def check_invariants(self) -> None:
        """Raises InvariantError if a byte was lost or taken twice, or a caller waits in vain."""
        open_bytes = sum(batch.size_bytes for batch in self._open.values())
        sent_bytes = sum(batch.size_bytes for batch in self._under_way)
        if (open_bytes, open_bytes + sent_bytes) != (self._open_bytes, self.held_bytes):
            raise InvariantError(f"{self.held_bytes} bytes are held, the batches have {open_bytes} + {sent_bytes}")
        if not 0 <= self.held_bytes <= self.settings.total_batch_max_bytes:
            raise InvariantError(f"{self.held_bytes} bytes are held, beyond the budget")
        if self._waiting and not self._under_way:
            raise InvariantError("records wait for room that no batch will give back")

    # --- steps
    def _put(self, item: Item[K, T], now_ms: float) -> list[Batch[K, T]]:
        most_bytes = self.settings.batch_max_bytes
        ready: list[Batch[K, T]] = []
        batch = self._open.get(item.key)
        alone = item.size_bytes > SHARED_MAX_BYTES
        if batch is not None and (alone or batch.size_bytes + item.size_bytes > most_bytes):
            ready.append(self._closed(batch))
            batch = None
        if batch is None:
            batch = self._open[item.key] = Batch(item.key, now_ms, [])
        batch.items.append(item)
        batch.size_bytes += item.size_bytes
        self._open_bytes += item.size_bytes
        self.held_bytes += item.size_bytes
        if alone or batch.size_bytes >= most_bytes:
            ready.append(self._closed(batch))
        return ready

    def _closed(self, batch: Batch[K, T]) -> Batch[K, T]:
        del self._open[batch.key]
        self._open_bytes -= batch.size_bytes
        self._under_way[batch] = None
        return batch

    def _take_from_waiting(self, item: Item[K, T]) -> None:
        del self._waiting[item]
        self._waiting_bytes -= item.size_bytes

    def _admit(self, now_ms: float) -> list[Batch[K, T]]:
        ready: list[Batch[K, T]] = []
        while self._waiting:
            item = next(iter(self._waiting))
            if self.held_bytes + item.size_bytes > self.settings.total_batch_max_bytes:
                break
            self._take_from_waiting(item)
            ready += self._put(item, now_ms)
        return ready + self._pressed()

    def _pressed(self) -> list[Batch[K, T]]:
        """While records wait for room, batches do not wait for time: the oldest go until enough is on its way back."""
        ready: list[Batch[K, T]] = []
        while self._open and self.settings.total_batch_max_bytes - self._open_bytes < self._waiting_bytes:
            ready.append(self._closed(next(iter(self._open.values()))))
        return ready


def closed_error() -> LogUnavailable:
    """For a caller whose record was not taken."""
    return LogUnavailable("this accumulator is closed, and the record was not written: make a new one")
