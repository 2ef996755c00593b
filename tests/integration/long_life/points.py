"""Where a broker of the long life can be made to die, and how it is told: lines of JSON on its standard input."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Point(StrEnum):
    """An instant in the middle of something. The process that was told to die there gets no further."""

    ASK_KEYS = "ask keys"
    """A split is in the log, its owner asks the service where the keys are: the cuts are not known yet."""
    RELEASE = "release"
    """A bundle is gone from the table (split, merge), the service is about to flush it."""
    ACQUIRE = "acquire"
    """What came in its place is in the table, the service is about to raise its token."""
    SNAPSHOT_OPEN = "snapshot-open"
    """All pieces and the new list of a snapshot are written, the transaction is not committed."""
    SNAPSHOT_COMMITTED = "snapshot-committed"
    """It is committed, and was not read back."""
    TRIM_ASKED = "trim-asked"
    """The older snapshots are dropped, the log that only they needed is still there."""
    TRIM_UNSWEPT = "trim-unswept"
    """The log begins later, what lies below is still in the file (SQLite only)."""


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """Die at this point: for what overlaps `bundle`, or in this partition of the channel.

    With `pause` only stop there (SIGSTOP), until somebody lets the process go on.
    """

    point: Point
    bundle: str = ""
    partition: int = -1
    pause: bool = False


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a broker says on its standard output.

    `kind`: `ready` (with the offset that the snapshot of each partition covered, -1 without one), `armed`, `hit` (its
    last words, or those before its pause), `refused` (the store refused a write: `detail`), `left`.
    """

    kind: str
    name: str = ""
    detail: str = ""
    loaded: tuple[int, ...] = ()


class Start(msgspec.Struct, frozen=True):
    """How to run a broker; its only argument, as JSON."""

    settings: dict[str, object]
    store: str
