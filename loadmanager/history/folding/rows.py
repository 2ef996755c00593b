"""How a record and its verdict look as rows of `schemas.CHANNEL`, `TRANSITION` and `QUARANTINE`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from loadmanager.history.folding.lists import Row, lists_of
from loadmanager.history.schemas import CHANNEL, CHANNEL_STATE, QUARANTINE, TRANSITION
from statechannel.law.bundle import Bundle
from statechannel.law.record import Record
from statechannel.law.verdict import Change, Refusal, Transition

KINDS = {"channel": CHANNEL, "transition": TRANSITION, "state": CHANNEL_STATE, "unreadable": QUARANTINE}
LISTS = lists_of(KINDS)
"""What a fold yields."""

ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"

_US_A_DAY = 86_400_000_000
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999: Spark has no later time."""

_REFUSED_SHOWN = 10


class Origin(NamedTuple):
    """A record's position, and when the log took it."""

    partition: int
    offset: int
    appended_us: int


def written_us(record: Record, origin: Origin) -> int:
    """When the record was written by its author's clock, or by the log's where the author's time is impossible."""
    return record.at_ms * 1_000 if 0 < record.at_ms <= _LAST_MS else origin.appended_us


@lru_cache(maxsize=65_536)
def named(bundle: Bundle) -> str:
    """A bundle's name."""
    return str(bundle)


def channel_row(origin: Origin, record: Record, version: int, verdict: Change | Refusal | str) -> Row:
    """A record with its verdict; a text as verdict says why it is unknown."""
    at_us, to = written_us(record, origin), record.to
    subjects = record.subjects
    return (
        *origin,
        at_us,
        record.id,
        record.action,
        record.actor.name,
        record.actor.incarnation,
        record.role,
        record.epoch,
        [named(subject.bundle) for subject in subjects],
        [subject.seen for subject in subjects],
        to.name if to is not None else None,
        to.incarnation if to is not None else None,
        record.namespace or (subjects[0].bundle.namespace if subjects else None),
        record.cause,
        record.reason,
        version,
        *_verdict(verdict),
        at_us // _US_A_DAY,
    )


def _verdict(verdict: Change | Refusal | str) -> tuple[str, str | None, str | None]:
    if isinstance(verdict, str):
        return UNKNOWN, None, verdict
    if isinstance(verdict, Refusal):
        return REFUSED, verdict.reason, verdict.detail
    return ACCEPTED, None, _partly(verdict.refused) if verdict.refused else None


def _partly(refused: Sequence[Refusal]) -> str:
    shown = "; ".join(f"not {each.bundle}: {each.reason}" for each in refused[:_REFUSED_SHOWN])
    return f"{shown}; and {len(refused) - _REFUSED_SHOWN} more" if len(refused) > _REFUSED_SHOWN else shown


def transition_rows(origin: Origin, change: Change) -> Iterator[Row]:
    """One row for each bundle that an accepted record changed."""
    at_us = written_us(change.record, origin)
    for ordinal, transition in enumerate(change.transitions):
        yield _transition_row(origin, ordinal, at_us, change.record, transition)


def _transition_row(origin: Origin, ordinal: int, at_us: int, record: Record, transition: Transition) -> Row:
    before, after = transition.before, transition.after
    left = before.holder if before is not None else None
    holder, target = (after.holder, after.target) if after is not None else (None, None)
    bundle = transition.bundle
    return (
        *origin,
        ordinal,
        at_us,
        record.id,
        record.action,
        named(bundle),
        bundle.namespace,
        before.state if before is not None else None,
        after.state if after is not None else None,
        left.name if left is not None else None,
        left.incarnation if left is not None else None,
        holder.name if holder is not None else None,
        holder.incarnation if holder is not None else None,
        target.name if target is not None else None,
        target.incarnation if target is not None else None,
        before.revision if before is not None else None,
        after.token if after is not None else None,
        record.actor.name,
        record.role,
        record.cause,
        at_us // _US_A_DAY,
    )


def unreadable_row(topic: str, origin: Origin, key: bytes | None, value: bytes | None, kind: str, reason: str) -> Row:
    """A record that could not be read."""
    day = origin.appended_us // _US_A_DAY
    return (topic, origin.partition, origin.offset, key, value, origin.appended_us, kind, reason, day)
