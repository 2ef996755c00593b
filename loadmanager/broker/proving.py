"""Keeps this incarnation's proofs fresh: writes its liveness node; if that gets no answer, no-ops to the channel.

If both fail, it tells the agent, and the host stops: the broker fences itself until a proof is fresh again. Both ways
run side by side, so that a hanging coordination service delays no channel proof. `statechannel.runtime.proofs` decides
how long a proof counts. If the clocks show that this machine was paused, old proofs run out at once, and a new one is
requested at once. The host must stop only if the new proof does not come, since a clock may also have been set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from loadmanager.cluster.clocks import ProofClock
from statechannel.errors import CoordinationUnavailable, Fenced, ForeignRoot, RootLost
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination
from statechannel.runtime.channel import Channel
from statechannel.runtime.proofs import NEVER_S, Proofs

LOOK_S = 0.02
"""Time between two looks at the clocks, and so the longest use of an old proof after an unnoticed pause."""


class Prover:
    """Keep `run()` running; it calls `fenced` and returns as soon as the incarnation is not current any more."""

    def __init__(
        self,
        me: BrokerId,
        coordination: Coordination,
        channel: Channel,
        proofs: Proofs,
        clock: ProofClock,
        held_partitions: Callable[[], Iterable[int]],
        fenced: Callable[[], None],
        lapsed: Callable[[Collection[int]], None],
        renewed: Callable[[Collection[int]], None],
        note: Callable[[str], None],
    ) -> None:
        self._me = me
        self._coordination = coordination
        self._channel = channel
        self._proofs = proofs
        self._clock = clock
        self._held_partitions = held_partitions
        self._fenced = fenced
        self._tell_lapsed = lapsed
        self._tell_renewed = renewed
        self._note = note
        self.lapses = 0
        """How often a partition's proof ran out before the next one came; its bundles were not served meanwhile."""
        self._root_lost = False
        self._paused = asyncio.Event()
        self._patient_until_s = 0.0
        self._lapsed: set[int] = set()
        self._asking: set[int] = set()

    async def run(self) -> None:
        """Prove until the coordination service says that this incarnation is not current any more."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._prove_by_channel(tasks))]
            if self._clock.can_tell:
                beside.append(tasks.create_task(self._watch_clock()))
            await self._prove_by_coordination()
            for work in beside:
                work.cancel()

    async def _watch_clock(self) -> None:
        while True:
            told = self._clock.look()
            if told is not None:
                self._patient_until_s = self._clock.now_s() + self._proofs.validity_s / 4
                self._paused.set()
                self._note(f"{told}: earlier proofs count for a shorter time")
            await asyncio.sleep(LOOK_S)

    async def _prove_by_coordination(self) -> None:
        interval_s = self._proofs.validity_s / 4
        while True:
            asked_s = self._clock.now_s()
            try:
                await self._coordination.prove(self._me)
                self._count_lapses(self._proofs.until_s)
                self._proofs.coordination_proved(asked_s)
                self._look()
            except (Fenced, ForeignRoot) as error:
                self._note(str(error))
                self._fenced()
                return
            except CoordinationUnavailable as error:
                self._look_at_root(error)
                await asyncio.sleep(interval_s / 4)
                continue
            self._root_lost = False
            await self._rest(interval_s - (self._clock.now_s() - asked_s))

    async def _rest(self, most_s: float) -> None:
        """Wait until the next proof is due, which is at once after a pause."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, most_s)):
                await self._paused.wait()
        self._paused.clear()

    def _look_at_root(self, error: CoordinationUnavailable) -> None:
        if isinstance(error, RootLost) and not self._root_lost:
            self._root_lost = True
            self._note(str(error))

    async def _prove_by_channel(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            if self._proofs.wants_channel_proof(self._clock.now_s()):
                for partition in self._held_partitions():
                    if partition not in self._asking:
                        self._asking.add(partition)
                        tasks.create_task(self._read_back(partition))
            self._look()
            await asyncio.sleep(self._proofs.validity_s / 8)

    def _look(self) -> None:
        """Tell the agent which partitions' proofs have run out, as long as they are, and which are fresh again."""
        now_s = self._clock.now_s()
        if now_s < self._patient_until_s:
            return  # nothing without a proof is served; the requested proof will show whether it is still ours
        lapsed = {p for p in range(len(self._proofs.until_s)) if not self._proofs.fresh(p, now_s)}
        renewed, self._lapsed = self._lapsed - lapsed, lapsed
        if lapsed:
            self._tell_lapsed(lapsed)
        if renewed:
            self._tell_renewed(renewed)

    def _count_lapses(self, until_s: Iterable[float]) -> None:
        """A proof comes in place of those that count until then."""
        now_s = self._clock.now_s()
        self.lapses += sum(NEVER_S < each <= now_s for each in until_s)

    async def _read_back(self, partition: int) -> None:
        asked_s = self._clock.now_s()
        try:
            if await self._channel.read_back(partition, self._me):
                self._count_lapses((self._proofs.until_s[partition],))
                self._proofs.channel_proved(partition, asked_s)
                self._look()
        finally:
            self._asking.discard(partition)
