"""Judges what members of a group read under faults: nothing lost, repeated only what was in flight. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.groups import Read, Run


class Verdict(NamedTuple):
    """Records that nobody read; that were read again; of these, the ones whose commit was long due (`late`).

    `stale`: read on by a former reader although another one had begun. `silence_s`: the longest time in which nobody
    read a partition. `pause_s`: the longest one from the last record of a reader to the first of the next. `moves`: how
    often a partition got another reader.
    """

    lost: int
    repeated: int
    late: int
    stale: int
    silence_s: float
    pause_s: float
    moves: int


def judge(members: Sequence[Read], sent: Mapping[int, int], in_flight_s: float, until_s: float) -> Verdict:
    """What `members` read of the `sent` records, whose offsets begin with 0 in each partition.

    A repeated record is late if its first reader read on in that partition for more than `in_flight_s` after it: it
    had the time to commit it. A stale one is not: it was in the hands of its reader. Silence counts until `until_s`,
    when the last record was sent.
    """
    partitions = [_judge_one(_in_time(members, each), count, in_flight_s, until_s) for each, count in sent.items()]
    return Verdict(
        sum(each.lost for each in partitions),
        sum(each.repeated for each in partitions),
        sum(each.late for each in partitions),
        sum(each.stale for each in partitions),
        max((each.silence_s for each in partitions), default=0.0),
        max((each.pause_s for each in partitions), default=0.0),
        sum(each.moves for each in partitions),
    )


def _in_time(members: Sequence[Read], partition: int) -> list[tuple[Run, int]]:
    runs = [(run, number) for number, read in enumerate(members) for run in read.get(partition, ())]
    return sorted(runs)


def _judge_one(runs: Sequence[tuple[Run, int]], sent: int, in_flight_s: float, until_s: float) -> Verdict:
    first: dict[int, int] = {}
    """By offset: in which run it was read first."""
    again = set[int]()
    stale = _stale(runs)
    for at, (run, _) in enumerate(runs):
        met = {offset for offset in range(run.first, run.first + run.size) if first.setdefault(offset, at) != at}
        again |= met if at not in stale else set()
    ends_s = _ends_of_stretches(runs)
    seen = [run.at_s for run, _ in runs]
    if seen and seen[-1] < until_s:
        seen.append(until_s)
    moves = [later.at_s - run.at_s for (run, member), (later, after) in pairwise(runs) if member != after]
    return Verdict(
        lost=sum(1 for offset in range(sent) if offset not in first),
        repeated=sum(run.size for run, _ in runs) - len(first),
        late=sum(1 for offset in again if ends_s[first[offset]] - runs[first[offset]][0].at_s > in_flight_s),
        stale=sum(runs[at][0].size for at in stale),
        silence_s=max((later - earlier for earlier, later in pairwise(seen)), default=0.0),
        pause_s=max(moves, default=0.0),
        moves=len(moves),
    )


def _ends_of_stretches(runs: Sequence[tuple[Run, int]]) -> list[float]:
    """For each run: when its member read for the last time before another one did."""
    ends_s = [run.at_s for run, _ in runs]
    for at in reversed(range(len(runs) - 1)):
        if runs[at][1] == runs[at + 1][1]:
            ends_s[at] = ends_s[at + 1]
    return ends_s


def _stale(runs: Sequence[tuple[Run, int]]) -> set[int]:
    """Runs with which a member went on where it had stopped, although another one had read further since."""
    ends: dict[int, tuple[int, int]] = {}
    """By member: the offset after its last record, and how many runs there were when it last read rightly."""
    stale = set[int]()
    for at, (run, member) in enumerate(runs):
        end, place = ends.get(member, (-1, at))
        if run.first == end and any(who != member and other.first + other.size > end for other, who in runs[place:at]):
            stale.add(at)
        else:
            place = at + 1
        ends[member] = run.first + run.size, place
    return stale
