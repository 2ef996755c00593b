"""Which channel owner leases one broker should claim or vacate now. Pure; every broker decides for itself.

There is one lease for each partition of the channel. Rendezvous hashing gives each partition a preferred broker, and
each broker as many partitions; the next in rank stands in for a preferred broker that does not come. Brokers that see
the same members agree. A wrong view costs only time, since the log fences owners (see `keeper.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec

from statechannel.law.record import BrokerId

LEASE = "channel-owner-"


class ElectionSettings(msgspec.Struct, frozen=True):
    """In seconds. `stand_in_s`: how long the second in rank waits at a vacant lease; the third waits twice as long.

    `settle_s`: how long members and our lease must be unchanged before we leave the lease to a preferred broker.
    """

    stand_in_s: float = 2.0
    settle_s: float = 30.0


class Seen(msgspec.Struct, frozen=True):
    """The election's input. `able`: names of the brokers that may own a channel partition."""

    now_s: float
    able: Sequence[str]
    leases: Mapping[int, BrokerId]
    leaving: bool = False


class Claim(msgspec.Struct, frozen=True):
    """Try to take this partition's lease."""

    partition: int


class Vacate(msgspec.Struct, frozen=True):
    """Give up this partition's lease; `holder` is this incarnation or an earlier one of this broker."""

    partition: int
    holder: BrokerId
    reason: str


Step = Claim | Vacate


def lease_of(partition: int) -> str:
    """The name of the lease in the coordination service."""
    return f"{LEASE}{partition}"


def partition_of_lease(lease: str) -> int | None:
    """The partition of a channel owner's lease, None for other leases."""
    number = lease.removeprefix(LEASE)
    return int(number) if number != lease and number.isascii() and number.isdigit() else None


class Election:
    """One broker's part in the election. Call `due` again and again, with a growing `now_s`."""

    def __init__(self, me: BrokerId, partitions: int, settings: ElectionSettings) -> None:
        self._me = me
        self._partitions = partitions
        self._settings = settings
        self._able: tuple[str, ...] = ()
        self._ranks = ranking((), partitions)
        self._same_since_s = 0.0
        self._vacant_since_s: dict[int, float] = {}
        self._ours_since_s: dict[int, float] = {}

    def due(self, seen: Seen) -> list[Step]:
        """The steps to take now, by partition."""
        able = tuple(sorted(seen.able))
        if able != self._able:
            self._able, self._same_since_s = able, seen.now_s
            self._ranks = ranking(able, self._partitions)
        steps = (self._step(partition, self._ranks[partition], seen) for partition in range(self._partitions))
        return [step for step in steps if step is not None]

    def _step(self, partition: int, ranked: Sequence[str], seen: Seen) -> Step | None:
        holder = seen.leases.get(partition)
        if holder is None:
            return self._stand(partition, ranked, seen)
        self._vacant_since_s.pop(partition, None)
        if holder != self._me:
            self._ours_since_s.pop(partition, None)
            return Vacate(partition, holder, f"{holder} has ended") if holder.name == self._me.name else None
        ours_since_s = self._ours_since_s.setdefault(partition, seen.now_s)
        if seen.leaving:
            return Vacate(partition, holder, "this broker takes part in nothing new")
        preferred = ranked[0] if ranked else self._me.name
        settled_s = seen.now_s - max(self._same_since_s, ours_since_s)
        if preferred != self._me.name and settled_s >= self._settings.settle_s:
            return Vacate(partition, holder, f"{preferred} is preferred and present")
        return None

    def _stand(self, partition: int, ranked: Sequence[str], seen: Seen) -> Claim | None:
        self._ours_since_s.pop(partition, None)
        vacant_s = seen.now_s - self._vacant_since_s.setdefault(partition, seen.now_s)
        if seen.leaving or self._me.name not in ranked:
            return None
        return Claim(partition) if vacant_s >= ranked.index(self._me.name) * self._settings.stand_in_s else None


def ranking(able: Sequence[str], partitions: int) -> list[list[str]]:
    """For each partition all of `able`, in the order in which they should own it.

    Rendezvous hashing, so that a broker that comes or goes moves few partitions. But each is first equally often, give
    or take one: with few partitions, chance alone would give one broker most of them.
    """
    if not able:
        return [[] for _ in range(partitions)]
    share, one_more = divmod(partitions, len(able))
    firsts = dict.fromkeys(able, 0)
    ranks: list[list[str]] = []
    for partition in range(partitions):
        ranked = sorted(able, key=lambda name: (-_weight(name, partition), name))
        first = next(name for name in ranked if firsts[name] < share + (one_more > 0))
        one_more -= firsts[first] == share
        firsts[first] += 1
        ranked.remove(first)
        ranks.append([first, *ranked])
    return ranks


def _weight(name: str, partition: int) -> int:
    """A hash that is the same in every process, as Python's own is not."""
    return int.from_bytes(blake2b(f"{partition}/{name}".encode(), digest_size=8).digest())
