"""The shell of the election: claims and vacates leases of the coordination service as `election.py` decides.

A lease gives no right: it only keeps brokers from fencing each other all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from loadmanager.channel.owner.election import (
    Claim,
    Election,
    ElectionSettings,
    Seen,
    Step,
    Vacate,
    lease_of,
    partition_of_lease,
)
from statechannel.errors import CoordinationError
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Coordination

LOOK_S = 1.0
SHOWN_WITHIN_S = 10.0
"""If the watches do not show a claimed lease as ours within this time, it is not ours."""

ABSTAIN_S = 300.0
"""How long we leave a lease to others after we failed in it."""


class Leases:
    """The leases of one incarnation. Keep `run()` running; `able` gives the names of brokers that may own one."""

    def __init__(
        self,
        me: BrokerId,
        coordination: Coordination,
        partitions: int,
        settings: ElectionSettings,
        clock_s: Callable[[], float],
        able: Callable[[], Sequence[str]],
        leaving: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._me = me
        self._coordination = coordination
        self._partitions = partitions
        self._clock_s = clock_s
        self._able = able
        self._leaving = leaving
        self._note = note
        self._election = Election(me, partitions, settings)
        self._claimed_s: dict[int, float] = {}
        self._shown: set[int] = set()
        self._abstain_until_s: dict[int, float] = {}
        self._woken = asyncio.Event()

    @property
    def held(self) -> frozenset[int]:
        """Partitions whose lease is ours, as far as we know."""
        return frozenset(self._claimed_s)

    def wake(self) -> None:
        """Look again: members or leases have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Take part in the election for ever."""
        while True:
            self._woken.clear()
            await self._look()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def confirm(self, partition: int) -> bool:
        """Claim a lease again, to be sure that it is ours; forget it if it is not. False without an answer.

        Call it before fencing: with the last seen values alone, two owners could fence each other in turn.
        """
        try:
            ours = await self._coordination.claim(lease_of(partition), self._me)
        except CoordinationError:
            return False
        if ours:
            self._claimed_s.setdefault(partition, self._clock_s())
        else:
            self._forget(partition)
        return ours

    async def abstain(self, partition: int) -> None:
        """Leave a lease to others for a while, since we fail in it."""
        if set(self._able()) <= {self._me.name}:
            return  # there is no other broker
        self._abstain_until_s[partition] = self._clock_s() + ABSTAIN_S
        self._note(f"gives up the channel's partition {partition}: another broker may succeed")
        try:
            await self._coordination.vacate(lease_of(partition), self._me)
        except CoordinationError:
            return  # we keep it and try again
        self._forget(partition)

    async def _look(self) -> None:
        if self._coordination.connection is not Connection.CONNECTED:
            return  # nothing can be concluded; a lease's holder goes on until the log fences it
        seen = holders(self._coordination.leases)
        self._forget_lost(seen)
        before = self.held
        try:
            for step in self._election.due(Seen(self._clock_s(), self._able(), seen, self._leaving())):
                await self._take(step)
        except CoordinationError:
            pass  # the next look tries again
        if taken := self.held - before:
            self._note(f"owns the channel's {_partitions(taken)} from now on")

    async def _take(self, step: Step) -> None:
        match step:
            case Claim(partition):
                if self._may_claim(partition) and await self._coordination.claim(lease_of(partition), self._me):
                    self._claimed_s[partition] = self._clock_s()
            case Vacate(partition, holder, reason):
                if partition in self._claimed_s:
                    self._forget(partition)
                    self._note(f"gives up the channel's partition {partition}: {reason}")
                await self._coordination.vacate(lease_of(partition), holder)

    def _may_claim(self, partition: int) -> bool:
        return partition not in self._claimed_s and self._clock_s() >= self._abstain_until_s.get(partition, 0.0)

    def _forget_lost(self, seen: Mapping[int, BrokerId]) -> None:
        """Forget leases that ended with a session. Right after a claim the watches may not show it yet."""
        for partition, claimed_s in tuple(self._claimed_s.items()):
            if seen.get(partition) == self._me:
                self._shown.add(partition)
            elif partition in self._shown or self._clock_s() - claimed_s > SHOWN_WITHIN_S:
                self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._claimed_s.pop(partition, None)
        self._shown.discard(partition)


def holders(leases: Mapping[str, BrokerId]) -> dict[int, BrokerId]:
    """Who owns which partition of the channel, as last seen."""
    found = ((partition_of_lease(lease), holder) for lease, holder in leases.items())
    return {partition: holder for partition, holder in found if partition is not None}


def _partitions(partitions: Iterable[int]) -> str:
    numbers = ", ".join(str(p) for p in sorted(partitions))
    return f"partitions {numbers}" if "," in numbers else f"partition {numbers}"
