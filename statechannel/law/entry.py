"""What a log takes and gives: payloads to append, entries to read."""

from __future__ import annotations

import msgspec


class Payload(msgspec.Struct, frozen=True, gc=False):
    """One append: an optional key, and a value (None deletes the key of a compacted topic)."""

    key: bytes | None
    value: bytes | None


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry read: the payload, its partition and offset, and when the log took it (the log's wall clock, ms)."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_ms: int
