"""What a log takes and gives: the payloads that are appended, the entries that are read."""

from __future__ import annotations

import msgspec


class Payload(msgspec.Struct, frozen=True, gc=False):
    """What is appended: an optional key, and a value (None deletes the key of a compacted topic)."""

    key: bytes | None
    value: bytes | None


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """What is read: the payload, where it stands, and when the log took it (the log's wall clock, ms)."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_ms: int
