"""Where a group shall go on reading: what an administrator writes, and the offsets that it means. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from enum import Enum

import msgspec

from loadmanager.consumers.backlog.port import ByQueue, GroupOffsets
from loadmanager.errors import Invalid, Unavailable

FORMS = (
    "earliest, latest, an offset (42), a number of records forward or back (+10, -10), or a time with its zone "
    "(2030-01-31T12:00:00Z)"
)
MOST = 2**63 - 1
_OFFSET, _SHIFT = re.compile(r"\d{1,19}", re.ASCII), re.compile(r"[+-]\d{1,19}", re.ASCII)


class Kind(Enum):
    """How a position is meant; `number` is an offset, a number of records, or milliseconds since 1970."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


class Position(msgspec.Struct, frozen=True):
    """One position, for any number of queues."""

    kind: Kind
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """A position in one of FORMS. Raises Invalid."""
        if text in (Kind.EARLIEST.value, Kind.LATEST.value):
            return cls(Kind(text))
        if _OFFSET.fullmatch(text) and int(text) <= MOST:
            return cls(Kind.OFFSET, int(text))
        if _SHIFT.fullmatch(text):
            return cls(Kind.SHIFT, int(text))
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            at = None
        if at is None or at.tzinfo is None or at.timestamp() < 0:
            raise Invalid(f"{text[:100]!r} is not a position in a topic: write {FORMS}")
        return cls(Kind.TIME, int(at.timestamp() * 1000))


class Step(msgspec.Struct, frozen=True):
    """Where a group is in a queue (None: it has no offset there), and where it shall go on."""

    before: int | None
    after: int | None
    """None: as before, since a shift has no offset to count from."""


async def resolve(
    position: Position, offsets: GroupOffsets, queues: Mapping[str, Collection[int]], committed: ByQueue
) -> dict[tuple[str, int], Step]:
    """The steps of these queues, each within what the queue still has.

    A shift counts from the group's offset, a time is that of the first record stored then or later. Raises Unavailable
    if the place of one queue is not known, Invalid for a shift if the group has no offset at all; and as GroupOffsets.
    """
    begins, ends = await offsets.begins(queues), await offsets.ends(queues)
    at_time: ByQueue = {}
    if position.kind is Kind.TIME:
        at_time = await offsets.since(queues, position.number)
    found: dict[tuple[str, int], Step] = {}
    for topic, numbers in queues.items():
        for number in numbers:
            begin, end = begins.get(topic, {}).get(number), ends.get(topic, {}).get(number)
            if begin is None or end is None:
                raise Unavailable(f"{topic} partition {number} has no leader: nothing was changed, try again")
            before = committed.get(topic, {}).get(number)
            match position.kind:
                case Kind.EARLIEST:
                    wanted = begin
                case Kind.LATEST:
                    wanted = end
                case Kind.OFFSET:
                    wanted = position.number
                case Kind.SHIFT:
                    wanted = None if before is None else before + position.number
                case Kind.TIME:
                    wanted = at_time.get(topic, {}).get(number, end)
            found[topic, number] = Step(before, None if wanted is None else min(max(wanted, begin), end))
    if found and all(step.after is None for step in found.values()):
        (topic, number), more = next(iter(found)), f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise Invalid(f"the group has no offset in {topic} partition {number}{more} to count from: name one")
    return found
