"""The invariants of a channel's log, and how a broken one is reported."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from statechannel.law.record import Record

_BUNDLES_SHOWN = 5


class Invariant(StrEnum):
    """What must hold of a channel's log."""

    ENTRY = "entry"
    """Holder and target fit the state, the revision is the record's offset, tokens don't go back, nothing was lost."""
    OWNER = "owner"
    """Exactly one owner: the owner changes only by accepted records, from itself or after it was revoked.

    The next owner is the one that the record names; a revoked owner does not come back.
    """
    TOKEN = "token"
    """A new owner, or a new bundle, has a higher token than there was."""
    ONCE = "once"
    """At most one copy of a record is accepted."""
    HAND_OFF = "hand-off"
    """A hand-off reaches only the direct successor, and is at most 64 KiB."""
    SEEN = "seen"
    """The author of a change to a bundle, or of making or deleting a namespace, had seen its last revision."""
    AUTHOR = "author"
    """Only those who may act do: the holder, the target, the leader, an administrator."""
    EPOCH = "epoch"
    """Epochs grow, and a leader's records are of the present one."""
    TILING = "tiling"
    """The bundles of a namespace cover the ring, without a hole or an overlap; new bundles are as the record says."""
    PLACE = "place"
    """A namespace's records are in its own partition; a log belongs to one cluster, as partition 0 says; nothing is
    accepted behind the end of a closed log."""
    SNAPSHOT = "snapshot"
    """A snapshot, or a state of the ingest, equals the replay at its offset."""
    RECORDED = "recorded"
    """The lakehouse's rows of a record equal the replay's."""
    LOG = "log"
    """The replay reads the whole log; no offset has two records, and none is missing."""


class Broken(NamedTuple):
    """A promise that was not kept, and how."""

    invariant: Invariant
    detail: str


def words(record: Record) -> str:
    """A record in words."""
    about = [f"{s.bundle} (seen {s.seen})" for s in record.subjects[:_BUNDLES_SHOWN]]
    if len(record.subjects) > _BUNDLES_SHOWN:
        about.append(f"{len(record.subjects) - _BUNDLES_SHOWN} more")
    if record.namespace is not None:
        about.append(record.namespace)
    to = f" to {record.to}" if record.to is not None else ""
    epoch = f" of epoch {record.epoch}" if record.epoch else ""
    return f"{record.role} {record.actor}{epoch}: {record.action} {', '.join(about)}{to}".rstrip()
