"""The state of a table view: the newest readable value of each key of a compacted topic, with its age.

Pure: decides what is shown at a given time, and which keys are so old that `view.py` should delete them. Times are
milliseconds on one monotonic clock; the caller says how old an entry already was when it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

from statechannel.ports import LogEntry

T = TypeVar("T")


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """A key's value before and after; None where it was or is not shown."""

    key: str
    old: T | None
    new: T | None


class Skipped(msgspec.Struct, frozen=True):
    """An entry that is not shown, and why."""

    partition: int
    offset: int
    detail: str


class _Held(msgspec.Struct, Generic[T], frozen=True):
    """The newest readable value (None once expired, or if there never was one), and when the key's entries came.

    `value_ms` is the time of that value, `entry_ms` that of the newest entry, readable or not. `appended_ms` is the
    log's time of the value's entry.
    """

    value: T | None
    value_ms: int
    entry_ms: int
    appended_ms: int


def partition_of(key: str, partitions: int) -> int:
    """The partition that has all entries of a key: the CRC-32 of its UTF-8 form, modulo `partitions`."""
    return crc32(key.encode()) % partitions


class ViewFold(Generic[T]):
    """The mapping after the entries applied so far. With `ttl_ms` None no value expires."""

    def __init__(self, decode: Callable[[bytes], T], partitions: int, ttl_ms: int | None = None) -> None:
        self._decode = decode
        self._partitions = partitions
        self.ttl_ms = ttl_ms
        """May be changed; values that have expired do not come back."""
        self._held: dict[str, _Held[T]] = {}

    def apply(self, entry: LogEntry, now_ms: int, age_ms: int = 0) -> Changed[T] | Skipped:
        """Take the next entry, which was `age_ms` old when it came (negative counts as 0).

        An unreadable entry leaves the key's older value in place. A value that is already too old is not shown, but
        replaces the key's older value.
        """
        key = self._key(entry)
        if key is None:
            return Skipped(entry.partition, entry.offset, "its key is not a key of this partition")
        old = self.get(key, now_ms)
        if entry.value is None:
            self._held.pop(key, None)
            return Changed(key, old, None)
        since_ms = now_ms - max(0, age_ms)
        try:
            value = self._decode(entry.value)
        except Exception as error:  # noqa: BLE001 - whatever a foreign value does to the decoder, the view goes on
            held = self._held.get(key)
            kept = held or _Held(None, since_ms, since_ms, 0)
            self._held[key] = msgspec.structs.replace(kept, entry_ms=since_ms)
            return Skipped(entry.partition, entry.offset, f"the value of {key!r} cannot be read: {error}")
        self._held[key] = _Held(value, since_ms, since_ms, entry.appended_ms)
        return Changed(key, old, self.get(key, now_ms))

    def _key(self, entry: LogEntry) -> str | None:
        try:
            key = (entry.key or b"").decode()
        except UnicodeDecodeError:
            return None
        # An entry in the wrong partition has no order with the others of its key: readers would differ.
        return key if key and partition_of(key, self._partitions) == entry.partition else None

    def get(self, key: str, now_ms: int) -> T | None:
        """The value shown for a key at this time, None if none is."""
        held = self._held.get(key)
        return None if held is None or self._too_old(held.value_ms, now_ms) else held.value

    def appended_ms(self, key: str) -> int:
        """The log's time of a shown key's value."""
        return self._held[key].appended_ms

    def shown(self, now_ms: int) -> Iterator[str]:
        """The keys that have a value at this time, as of the call."""
        return (key for key in tuple(self._held) if self.get(key, now_ms) is not None)

    def expire(self, now_ms: int) -> list[Changed[T]]:
        """Drop the values that have grown too old; reports each once."""
        gone: list[Changed[T]] = []
        for key, held in tuple(self._held.items()):
            if held.value is not None and self._too_old(held.value_ms, now_ms):
                self._held[key] = msgspec.structs.replace(held, value=None)
                gone.append(Changed(key, held.value, None))
        return gone

    def overdue(self, now_ms: int) -> list[str]:
        """Keys to delete from the topic: their newest entry, readable or not, is too old."""
        return [key for key, held in self._held.items() if self._too_old(held.entry_ms, now_ms)]

    def next_deadline_ms(self) -> int | None:
        """When the next value grows too old; None if none will."""
        if self.ttl_ms is None:
            return None
        times = [held.value_ms for held in self._held.values() if held.value is not None]
        return min(times) + self.ttl_ms + 1 if times else None

    def _too_old(self, since_ms: int, now_ms: int) -> bool:
        return self.ttl_ms is not None and now_ms - since_ms > self.ttl_ms
