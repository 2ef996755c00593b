"""What an audit can find: the invariants, and the rows in which it says that one is broken, or that all hold."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pyspark.sql.types import DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from loadmanager.history.folding.lists import lists_of
from statechannel.law.record import Record

_BUNDLES_SHOWN = 5


class Invariant(StrEnum):
    """What must hold of a channel's log."""

    ENTRY = "entry"
    """Holder and target fit the state, the revision is the record's offset, tokens don't go back, nothing was lost."""
    OWNER = "owner"
    """Exactly one owner: it is changed by itself or after it was revoked, and by accepted records alone. The next
    one is who the record names; who was revoked does not come back."""
    TOKEN = "token"
    """Whoever comes to own a bundle, or a new bundle, has a higher token than there was."""
    ONCE = "once"
    """Of the copies of a record one is accepted."""
    HAND_OFF = "hand-off"
    """What an owner hands over reaches its direct successor alone, and is at most 64 KiB."""
    SEEN = "seen"
    """Who changes a bundle, or makes or deletes a namespace, had seen its last revision."""
    AUTHOR = "author"
    """Who acts may: the holder, the target, the leader, an administrator."""
    EPOCH = "epoch"
    """Epochs grow, and a leader's records are of the present one."""
    TILING = "tiling"
    """The bundles of a namespace cover the ring, without a hole or an overlap; what is born is as the record says."""
    PLACE = "place"
    """A namespace's records stand in its own partition; a log belongs to one cluster, as partition 0 says; nothing is
    accepted behind the end of a closed log."""
    SNAPSHOT = "snapshot"
    """A snapshot, or a state of the ingest, says what the fold says at its offset."""
    RECORDED = "recorded"
    """What the lakehouse has of a record is what the fold says."""
    LOG = "log"
    """The fold goes through; the same offset never has two records, and none is passed over."""


class Broken(NamedTuple):
    """A promise that was not kept, and how."""

    invariant: Invariant
    detail: str


def words(record: Record) -> str:
    """A record for people."""
    about = [f"{s.bundle} (seen {s.seen})" for s in record.subjects[:_BUNDLES_SHOWN]]
    if len(record.subjects) > _BUNDLES_SHOWN:
        about.append(f"{len(record.subjects) - _BUNDLES_SHOWN} more")
    if record.namespace is not None:
        about.append(record.namespace)
    to = f" to {record.to}" if record.to is not None else ""
    epoch = f" of epoch {record.epoch}" if record.epoch else ""
    return f"{record.role} {record.actor}{epoch}: {record.action} {', '.join(about)}{to}".rstrip()


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


_TEXT, _INT, _LONG = StringType(), IntegerType(), LongType()

VIOLATION = _columns(partition=_INT, offset=_LONG, id=_TEXT, invariant=_TEXT, detail=_TEXT, record=_TEXT)
"""One broken promise. `record` is the record in words, `offset` and `id` are its own; of a snapshot `offset` is that up
to which it speaks, and there is no record."""

ACCEPTED = _columns(partition=_INT, offset=_LONG, id=_TEXT, what=_TEXT)
"""What an accepted record changed, to find copies of it: a bundle, or a namespace that was made."""

COUNTS = ("records", "accepted", "refused", "corrupt", "newer", "unjudged", "compared")
COUNTED = _columns(
    partition=_INT,
    segment=_INT,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    digest=_TEXT,
)
"""What a segment held. `next_offset` is behind its last entry, `compared` counts the states that it was held against,
`unjudged` the records before the first state there is, or behind a record of a newer format."""

SUMMARY = _columns(
    partition=_INT,
    segments=_LONG,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    violations=_LONG,
    digest=_TEXT,
)
"""The same of a partition; `digest` is that of `statechannel`, at its end."""

KINDS = {"violation": VIOLATION, "accepted": ACCEPTED, "counted": COUNTED}
LISTS = lists_of(KINDS)
