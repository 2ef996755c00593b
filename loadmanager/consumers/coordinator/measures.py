"""Measures every rebalance: why it began, what moved, how even it left the group, and how long partitions paused. Pure.

A rebalance begins when an input of the assignment changes. Each partition that gets its first or another reader belongs
to the rebalance until that reader was told, or until a later rebalance decides about it again. With its last partition
the rebalance is settled. All work is in proportion to what changes.

A pause is the time from when the former reader stopped (a dead one: its last heartbeat) until the next one was told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import pstdev

import msgspec

from loadmanager.consumers.coordinator.records import Partition, Rebalance

KEPT = 100
STORED = 20
"""So many of the last ones a later coordinator knows, too."""
NAME_CHARACTERS = 40


class _Running(msgspec.Struct):
    """A rebalance so far. `left`: its partitions whose readers were not told yet. `is_open`: more of them may come."""

    began: Rebalance
    began_ms: int
    is_open: bool = True
    moved: int = 0
    first: int = 0
    left: set[Partition] = set()
    pauses: int = 0
    total_ms: int = 0
    longest_ms: int = -1
    worst: Partition | None = None

    def pause(self, partition: Partition, pause_ms: int) -> None:
        self.pauses += 1
        self.total_ms += pause_ms
        if pause_ms > self.longest_ms:
            self.longest_ms, self.worst = pause_ms, partition

    def shown(self, degree: float, settled_ms: int | None) -> Rebalance:
        return msgspec.structs.replace(
            self.began,
            moved=self.moved,
            kept=self.began.partitions - self.moved - self.first,
            balance_degree=round(degree, 6),
            settled_ms=settled_ms,
            pause_max_ms=self.longest_ms if self.pauses else None,
            pause_mean_ms=round(self.total_ms / self.pauses, 3) if self.pauses else None,
            worst=self.worst,
        )


class Measures:
    """The rebalances of one group. `counts` gives how many partitions each member has; `past` are settled ones. All
    times are of one steady clock, to which `wall_offset_ms` is added in what is shown."""

    def __init__(
        self, counts: Callable[[], Iterable[int]], wall_offset_ms: int = 0, past: Sequence[Rebalance] = ()
    ) -> None:
        self._counts = counts
        self._wall_offset_ms = wall_offset_ms
        self._settled = deque(past, maxlen=KEPT)
        self._next = max((each.number for each in past), default=0) + 1
        self._running: dict[int, _Running] = {}
        """By number, so oldest first."""
        self._of: dict[Partition, _Running] = {}
        self._stopped_ms: dict[Partition, int] = {}
        """When an assigned partition lost its reader."""
        self._untold: dict[str, set[Partition]] = {}

    def begin(self, generation: int, why: str, members: int, partitions: int, now_ms: int) -> int:
        """It has changed who of so many should read what of so many; returns the number of this rebalance. It takes
        partitions in (`include`) until `complete`."""
        number, self._next = self._next, self._next + 1
        began = Rebalance(number, generation, why, now_ms + self._wall_offset_ms, members, partitions, 0, 0)
        self._running[number] = _Running(began, now_ms)
        return number

    def include(self, number: int, partition: Partition, now_ms: int, *, holder: str | None, is_there: bool) -> None:
        """A rebalance has decided about this partition: another member than its holder, if there is one, reads it from
        now on. `is_there`: the holder is that other one already."""
        running, former = self._running[number], self._of.get(partition)
        if holder is not None or partition in self._stopped_ms:
            running.moved += 1
        else:
            running.first += 1
        is_told = is_there and partition not in self._untold.get(holder or "", ())
        if not is_told and (former is None or former.began.number < number):
            self._of[partition] = running
            running.left.add(partition)
            if former is not None:
                former.left.discard(partition)
                self._settle(former, now_ms)

    def complete(self, number: int, now_ms: int) -> None:
        """A rebalance has all its partitions."""
        self._running[number].is_open = False
        self._settle(self._running[number], now_ms)

    def stopped(self, partition: Partition, at_ms: int) -> None:
        """Its reader has stopped."""
        self._stopped_ms.setdefault(partition, at_ms)

    def gone(self, member: str) -> None:
        """The member left, or its session ended."""
        self._untold.pop(member, None)

    def granted(self, partition: Partition, member: str) -> None:
        """The member may read it as soon as it is told."""
        self._untold.setdefault(member, set()).add(partition)

    def revoked(self, partition: Partition, member: str) -> None:
        """The member is to give it up; perhaps before it was told that it may read it."""
        self._untold.get(member, set()).discard(partition)

    def abandoned(self, partition: Partition, now_ms: int) -> None:
        """It is not assigned to any member now."""
        self._stopped_ms.pop(partition, None)
        self._end(partition, now_ms)

    def told(self, member: str, granted: Mapping[Partition, int], revision: int, now_ms: int) -> bool:
        """The member knows what it was granted up to a revision. Whether a rebalance is settled by that."""
        before, untold = len(self._running), self._untold.get(member, set())
        known = {each for each in untold if granted.get(each, revision + 1) <= revision}
        untold -= known
        for partition in known:
            running, stopped_ms = self._of.get(partition), self._stopped_ms.pop(partition, None)
            if running is not None and stopped_ms is not None:
                running.pause(partition, now_ms - stopped_ms)
            self._end(partition, now_ms)
        return len(self._running) < before

    def rebalances(self) -> list[Rebalance]:
        """The last ones, newest first."""
        degree = self._degree()
        going_on = [each.shown(degree, None) for each in self._running.values()]
        return sorted((*self._settled, *going_on), key=lambda each: each.number, reverse=True)[:KEPT]

    def stored(self) -> tuple[Rebalance, ...]:
        """The settled ones for the group's record."""
        return tuple(self._settled)[-STORED:]

    def _end(self, partition: Partition, now_ms: int) -> None:
        running = self._of.pop(partition, None)
        if running is not None:
            running.left.discard(partition)
            self._settle(running, now_ms)

    def _settle(self, running: _Running, now_ms: int) -> None:
        if not (running.left or running.is_open) and self._running.pop(running.began.number, None) is not None:
            self._settled.append(running.shown(self._degree(), max(0, now_ms - running.began_ms)))

    def _degree(self) -> float:
        counts = list(self._counts())
        return pstdev(counts) if counts else 0.0


def named(members: Collection[str]) -> str:
    """One or more members in a sentence."""
    first, *others = members
    short = first if len(first) <= NAME_CHARACTERS else f"{first[: NAME_CHARACTERS - 1]}…"
    return f"{short} and {len(others)} more" if others else short
