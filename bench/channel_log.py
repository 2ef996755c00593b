"""A channel's log of any length for benches: bundles that are moved on and on, and now and then a record that does not
count. Each entry follows from its partition and offset alone, so any part of it can be made anywhere.
"""

from __future__ import annotations

import itertools

import msgspec

from statechannel.law import codec
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle, even_boundaries, tile
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.runtime.core import ChannelCore

BROKERS = tuple(BrokerId(f"broker-{number}:6650", 1) for number in range(10))
LEADER = BrokerId("broker-0:6650", 1)
BEGIN_MS = 1_767_225_600_000
APART_MS = 10
"""Entries are written so far apart."""

_OTHERS = 3
"""Of each round: a no-op, a copy that comes late, and bytes that are no record."""


class ChannelLog(msgspec.Struct, frozen=True):
    """The log of a channel of so many partitions, with one namespace of so many bundles in each."""

    partitions: int
    bundles: int

    def namespace(self, partition: int) -> str:
        """The name of a partition's namespace."""
        table = ChannelCore(self.partitions).table
        names = (f"bench/load-{number}" for number in itertools.count())
        return next(name for name in names if table.partition_of(name) == partition)

    def part(self, partition: int) -> PartitionLog:
        """One partition's log."""
        namespace = self.namespace(partition)
        return PartitionLog(partition, namespace, tile(namespace, even_boundaries(self.bundles)))


class PartitionLog:
    """What stands at each offset."""

    def __init__(self, partition: int, namespace: str, bundles: tuple[Bundle, ...]) -> None:
        assert (bundles[0].lo, bundles[-1].hi) == (FULL_LOWER, FULL_UPPER)
        self._partition = partition
        self._namespace = namespace
        self._bundles = bundles
        self._round = len(bundles) + _OTHERS

    def value(self, offset: int) -> bytes:
        """The bytes of an entry."""
        if offset < 3:
            return codec.encode(self._beginning(offset))
        number, place = divmod(offset - 3, self._round)
        if place < len(self._bundles):
            return codec.encode(self._step(offset, number, place))
        if place == len(self._bundles):
            return codec.encode(self._record(offset, Action.NOOP, BROKERS[number % 10]))
        if place == len(self._bundles) + 1:
            late = (Subject(self._bundles[0], 2),)
            return codec.encode(self._record(offset, Action.OWN, BROKERS[1], subjects=late, to=BROKERS[2]))
        return b"no record of ours"

    def written_ms(self, offset: int) -> int:
        """When an entry was written."""
        return BEGIN_MS + offset * APART_MS

    def _record(self, offset: int, action: Action, actor: BrokerId, **more: object) -> Record:
        return Record(f"{self._partition}-{offset:x}", action, actor, at_ms=self.written_ms(offset), **more)  # type: ignore[arg-type]

    def _beginning(self, offset: int) -> Record:
        if offset == 0 and self._partition == 0:
            return self._record(offset, Action.GENESIS, LEADER, cluster="bench", epoch=1)
        if offset == 0:
            return self._record(offset, Action.NOOP, LEADER)
        if offset == 1:
            return self._record(offset, Action.LEAD, LEADER, role=Role.LEADER, epoch=1)
        edges = (FULL_LOWER, *(bundle.hi for bundle in self._bundles))
        return self._record(
            offset, Action.CREATE_NAMESPACE, LEADER, role=Role.ADMIN, namespace=self._namespace, boundaries=edges
        )

    def _step(self, offset: int, number: int, place: int) -> Record:
        """Each bundle is owned, returned, and from then on transferred from one broker to the next."""
        subjects = (Subject(self._bundles[place], 2 if number == 0 else offset - self._round),)
        move, step = divmod(number - 2, 4)
        holder, target = BROKERS[(place + move) % 10], BROKERS[(place + move + 1) % 10]
        if number < 2:
            first = BROKERS[place % 10]
            to = first if number == 0 else None
            return self._record(offset, Action.OWN if to else Action.RETURN, first, subjects=subjects, to=to)
        if step == 0:
            return self._record(
                offset, Action.TRANSFER, LEADER, role=Role.LEADER, epoch=1, subjects=subjects, to=target, cause="round"
            )
        action, actor = ((Action.READY, target), (Action.RELEASE, holder), (Action.RETURN, target))[step - 1]
        return self._record(offset, action, actor, subjects=subjects)
