"""Keeps this incarnation's proofs fresh: writes its liveness node, and no-ops to the channel when that does not answer.
Where both fail, tells the agent, so that the host stops: the broker fences itself until a proof is fresh again.

The two run side by side, so that a coordination service that hangs holds up no channel proof. What a proof is worth is
decided in `statechannel.proofs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from statechannel.errors import CoordinationUnavailable, Fenced
from statechannel.ports import Coordination
from statechannel.proofs import Proofs
from statechannel.record import Broker
from statechannel.service import Channel


class Prover:
    """Run `run()`; it calls `fenced` at once, and returns, when the incarnation is not current any more."""

    def __init__(
        self,
        me: Broker,
        coordination: Coordination,
        channel: Channel,
        proofs: Proofs,
        clock_s: Callable[[], float],
        held_partitions: Callable[[], Iterable[int]],
        fenced: Callable[[], None],
        lapsed: Callable[[Collection[int]], None],
        renewed: Callable[[Collection[int]], None],
    ) -> None:
        self._me = me
        self._coordination = coordination
        self._channel = channel
        self._proofs = proofs
        self._clock_s = clock_s
        self._held_partitions = held_partitions
        self._fenced = fenced
        self._tell_lapsed = lapsed
        self._tell_renewed = renewed
        self._lapsed: set[int] = set()
        self._asking: set[int] = set()

    async def run(self) -> None:
        """Prove until the coordination service says that this incarnation is not current any more."""
        async with asyncio.TaskGroup() as tasks:
            channel = tasks.create_task(self._prove_by_channel(tasks))
            await self._prove_by_coordination()
            channel.cancel()

    async def _prove_by_coordination(self) -> None:
        interval_s = self._proofs.validity_s / 4
        while True:
            asked_s = self._clock_s()
            try:
                await self._coordination.prove(self._me)
                self._proofs.coordination_proved(asked_s)
                self._look()
            except Fenced:
                self._fenced()
                return
            except CoordinationUnavailable:
                await asyncio.sleep(interval_s / 4)
                continue
            await asyncio.sleep(max(0.0, interval_s - (self._clock_s() - asked_s)))

    async def _prove_by_channel(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            if self._proofs.wants_channel_proof(self._clock_s()):
                for partition in self._held_partitions():
                    if partition not in self._asking:
                        self._asking.add(partition)
                        tasks.create_task(self._read_back(partition))
            self._look()
            await asyncio.sleep(self._proofs.validity_s / 8)

    def _look(self) -> None:
        """Tell which partitions' proofs have run out, as long as they are, and which are fresh again."""
        now_s = self._clock_s()
        lapsed = {p for p in range(len(self._proofs.until_s)) if not self._proofs.fresh(p, now_s)}
        renewed, self._lapsed = self._lapsed - lapsed, lapsed
        if lapsed:
            self._tell_lapsed(lapsed)
        if renewed:
            self._tell_renewed(renewed)

    async def _read_back(self, partition: int) -> None:
        asked_s = self._clock_s()
        try:
            if await self._channel.read_back(partition, self._me):
                self._proofs.channel_proved(partition, asked_s)
                self._look()
        finally:
            self._asking.discard(partition)
