"""What becomes of a group's offsets: they go back by a reset only, and a reset holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.group_reads import Commit, Run


class Reset(NamedTuple):
    """The group was told to go on at `offset` in a partition, and the answer was that it does. Times in seconds since
    1970."""

    partition: int
    offset: int
    asked_s: float
    answered_s: float


def backward(commits: Mapping[int, Sequence[Commit]], resets: Iterable[Reset]) -> int:
    """How often an offset went back though no reset put it there. Commits in the order of Kafka's log."""
    found = 0
    left = list(resets)
    for partition, its in commits.items():
        for before, after in pairwise(its):
            if after.offset >= before.offset:
                continue
            by = [each for each in left if each.partition == partition and _explains(each, after)]
            if by:
                left.remove(by[0])
            else:
                found += 1
    return found


def stored(commits: Mapping[int, Sequence[Commit]], resets: Iterable[Reset]) -> dict[int, list[Commit]]:
    """The commits that resets made, by partition, in the order of the resets."""
    found: dict[int, list[Commit]] = {}
    for reset in sorted(resets, key=lambda each: each.asked_s):
        its = next((each for each in commits.get(reset.partition, ()) if _explains(reset, each)), None)
        if its is not None:
            found.setdefault(reset.partition, []).append(its)
    return found


def undone(read: Mapping[int, Iterable[Run]], commits: Mapping[int, Sequence[Commit]], resets: Sequence[Reset]) -> int:
    """How many resets did not hold: no commit has their offset, or the next record read of the partition is another
    one. Runs of one record each."""
    made = stored(commits, resets)
    found = len(resets) - sum(map(len, made.values()))
    for partition, its in made.items():
        runs = sorted(read.get(partition, ()), key=lambda each: each.first_s)
        for at, commit in enumerate(its):
            until_s = its[at + 1].at_s if at + 1 < len(its) else float("inf")
            first = next((each for each in runs if each.first_s > commit.at_s), None)
            found += first is not None and first.first_s < until_s and first.offset != commit.offset
    return found


def _explains(reset: Reset, commit: Commit) -> bool:
    return commit.offset == reset.offset and reset.asked_s <= commit.at_s <= reset.answered_s + 0.001
