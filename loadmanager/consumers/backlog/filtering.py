"""Estimates how much of a group's backlog passes a filter, by looking at records of it. `sampling.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from loadmanager.consumers.backlog.figures import GroupBacklog, in_order
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.backlog.reading import translated
from loadmanager.consumers.backlog.sampling import Estimate, Limits, Sample, Scan, estimate, places_of
from loadmanager.errors import Invalid
from statechannel.runtime.tasks import Blocking

PIECES = 20
LIMITS = Limits()


class Record(NamedTuple):
    """What a filter may look at."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class Filter(NamedTuple):
    """Which records pass: all that is given must hold. `header` is a name and a value."""

    key: str | None = None
    header: tuple[str, str] | None = None
    contains: str | None = None

    @classmethod
    def parse(cls, key: str | None, header: str | None, contains: str | None) -> Filter:
        """`header` is NAME=VALUE. Raises Invalid."""
        if key is None and header is None and contains is None:
            raise Invalid("say which records pass: key, header (NAME=VALUE), contains (in the value), or several")
        name, equals, value = (header or "").partition("=")
        if header is not None and not (name and equals):
            raise Invalid(f"header is {header!r}: give NAME=VALUE")
        return cls(key, (name, value) if header is not None else None, contains)

    def passes(self, record: Record) -> bool:
        """Whether a record passes; texts are compared as UTF-8."""
        return (
            (self.key is None or record.key == self.key.encode())
            and (self.header is None or record.headers.get(self.header[0]) == self.header[1].encode())
            and (self.contains is None or self.contains.encode() in (record.value or b""))
        )


class FilteredBacklog:
    """Looks at records of backlogs. `run_blocking` runs slow work off the loop."""

    def __init__(self, offsets: GroupOffsets, run_blocking: Blocking) -> None:
        self._offsets = offsets
        self._run_blocking = run_blocking

    async def estimate(
        self, known: GroupBacklog, topic: str, matches: Callable[[Record], bool], *, limits: Limits = LIMITS
    ) -> Estimate:
        """How many records of the group's lag in this topic match; at most `limits` are looked at, in PIECES places.

        `matches` runs on another thread. Raises Invalid for limits below 1, and Unavailable.
        """
        if limits.scanned < 1 or limits.matched < 1:
            raise Invalid("look at one record at least: limits are counts of records from 1 on")
        places: Sequence[tuple[str, int, int, int]] = await self._run_blocking(lambda: _places(known, topic, limits))
        looking = Scan(matches, limits)
        lag = sum(queue.lag for _, offsets in known.offsets_of(topic) if (queue := in_order(offsets)) is not None)
        if not places:
            return estimate(Sample(0, 0), 0)
        with translated():
            complete = await self._offsets.look(
                places, lambda key, value, headers: looking.see(Record(key, value, headers))
            )
        sample, covered = looking.sample, sum(end - first for _, _, first, end in places)
        stopped = sample.scanned >= limits.scanned or sample.matched >= limits.matched
        everything = complete and covered == lag and (not stopped or sample.scanned == lag)
        return estimate(sample, sample.scanned if everything else lag)  # offsets without a record are no backlog


def _places(known: GroupBacklog, topic: str, limits: Limits) -> Sequence[tuple[str, int, int, int]]:
    late = [
        (number, queue.consumer, queue.end)
        for number, offsets in known.offsets_of(topic)
        if (queue := in_order(offsets)) is not None and queue.lag
    ]
    found = places_of([(first, end) for _, first, end in late], PIECES, limits)
    return [(topic, late[index][0], first, end) for index, first, end in found]
