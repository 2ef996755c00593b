"""Counts what the members of a group read: losses, repetitions, overlaps, silences, moves. Pure.

A member's *tenure* of a partition begins when its client tells it that the partition is its own, and ends when that is
told again, or with the process. It is known by the member and by when it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive records of one partition, read by one member in one tenure. Times in seconds since 1970."""

    member: int
    since_s: float
    """When the tenure began."""
    offset: int
    records: int
    first_s: float
    last_s: float


class Commit(NamedTuple):
    """Kafka stored that the group goes on at `offset`."""

    at_s: float
    offset: int


class Covered:
    """Offsets that were read, as few intervals."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> int:
        """Offsets from `begin` to before `end`; how many of them are new."""
        before = self.size()
        joined, apart = (begin, end), list[tuple[int, int]]()
        for span in self.spans:
            if span[1] < joined[0] or joined[1] < span[0]:
                apart.append(span)
            else:
                joined = (min(span[0], joined[0]), max(span[1], joined[1]))
        self.spans = sorted([*apart, joined])
        return self.size() - before

    def size(self) -> int:
        """How many offsets these are."""
        return sum(end - begin for begin, end in self.spans)


class Counts(NamedTuple):
    """What became of the records of a topic."""

    lost: int
    """Records that no member read."""
    duplicates: int
    """Readings of a record that had been read before."""
    not_in_flight: int
    """Of these, records for which Kafka had a commit above them when the tenure began that read them again, and records
    that were read twice in one tenure. A reset takes what was committed before it back."""
    overlaps: int
    """Pairs of tenures of one partition by different members, one of which began to read before the other had read its
    last record."""
    overlap_s: float
    """The longest of these."""
    silence_s: float
    """The longest time in which nothing was read of a partition, between two records that were."""
    moved: int
    """How often a partition got another reader."""
    read_s: float
    """When the last of the records was read for the first time."""


def count(
    read: Mapping[int, Sequence[Run]],
    sent: Mapping[int, int],
    commits: Mapping[int, Sequence[Commit]],
    since_s: float = 0.0,
    resets: Mapping[int, Sequence[Commit]] | None = None,
) -> Counts:
    """Runs of all members by partition, how many records each partition has, what was committed, and by resets, oldest
    first.

    Duplicates, silences and moves count from `since_s`.
    """
    shared = [overlaps_s(runs) for runs in read.values()]
    return Counts(
        lost(read, sent),
        sum(duplicates(runs, since_s) for runs in read.values()),
        sum(
            not_in_flight(runs, commits.get(partition, ()), (resets or {}).get(partition, ()))
            for partition, runs in read.items()
        ),
        sum(map(len, shared)),
        max((most for each in shared for most in each), default=0.0),
        max((silence_s(runs, since_s) for runs in read.values()), default=0.0),
        sum(moved(runs, since_s) for runs in read.values()),
        max((read_s(runs) for runs in read.values()), default=0.0),
    )


def lost(read: Mapping[int, Iterable[Run]], sent: Mapping[int, int]) -> int:
    """Records of each partition that no member read."""
    found = 0
    for partition, size in sent.items():
        covered = Covered()
        for run in read.get(partition, ()):
            covered.add(run.offset, run.offset + run.records)
        found += size - covered.size()
    return found


def duplicates(runs: Iterable[Run], since_s: float = 0.0) -> int:
    """Readings of a record of one partition since then that had been read before."""
    covered, found = Covered(), 0
    for run in sorted(runs, key=lambda run: run.first_s):
        repeated = run.records - covered.add(run.offset, run.offset + run.records)
        found += repeated if run.first_s >= since_s else 0
    return found


def read_s(runs: Iterable[Run]) -> float:
    """When the last record of one partition was read that had not been read before."""
    covered, found_s = Covered(), 0.0
    for run in sorted(runs, key=lambda run: run.last_s):
        if covered.add(run.offset, run.offset + run.records):
            found_s = run.last_s
    return found_s


def tenures(runs: Iterable[Run]) -> dict[tuple[int, float], list[Run]]:
    """The runs of one partition by member and begin."""
    found: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        found.setdefault((run.member, run.since_s), []).append(run)
    return found


def not_in_flight(runs: Iterable[Run], commits: Sequence[Commit], resets: Sequence[Commit] = ()) -> int:
    """Records of one partition that were read again for no reason, as `Counts` says."""
    found = 0
    for (_, since_s), its in tenures(runs).items():
        reset_s = max((reset.at_s for reset in resets if reset.at_s < since_s), default=0.0)
        floor = max((commit.offset for commit in commits if reset_s <= commit.at_s < since_s), default=0)
        covered = Covered()
        for run in its:
            below = min(max(floor - run.offset, 0), run.records)
            begin, end = run.offset + below, run.offset + run.records
            found += below + (end - begin - covered.add(begin, end) if begin < end else 0)
    return found


def overlaps_s(runs: Iterable[Run]) -> list[float]:
    """For each pair of tenures of one partition that read it at the same time: for how long."""
    spans = [
        (member, min(run.first_s for run in its), max(run.last_s for run in its))
        for (member, _), its in tenures(runs).items()
    ]
    shared = [
        (min(last_s, other_last_s) - max(first_s, other_first_s), member != other)
        for (member, first_s, last_s), (other, other_first_s, other_last_s) in combinations(spans, 2)
    ]
    return [common_s for common_s, is_other in shared if is_other and common_s > 0]


def silence_s(runs: Iterable[Run], since_s: float = 0.0) -> float:
    """The longest time in which nothing was read of one partition, between two records that were."""
    longest_s, last_s = 0.0, None
    for run in sorted(runs, key=lambda run: run.first_s):
        if last_s is not None and run.first_s >= since_s:
            longest_s = max(longest_s, run.first_s - last_s)
        last_s = run.last_s if last_s is None else max(last_s, run.last_s)
    return longest_s


def moved(runs: Iterable[Run], since_s: float = 0.0) -> int:
    """How often one partition got another reader since then."""
    begins = sorted((its[0].first_s, member) for (member, _), its in tenures(runs).items())
    return sum(1 for (_, one), (at_s, other) in pairwise(begins) if one != other and at_s >= since_s)
