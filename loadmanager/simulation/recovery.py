"""After the fault phase: everything is served again within a bound, all brokers agree, and a graceful stop drains."""

from __future__ import annotations

import asyncio
from random import Random

from loadmanager.errors import LoadManagerError
from loadmanager.model.load import BUNDLES_TOPIC
from loadmanager.simulation.checks import Checks
from loadmanager.simulation.cluster import SETTINGS, Cluster, Life
from loadmanager.simulation.loop import SimulationError
from loadmanager.simulation.storage import cells_of, topic_in
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State

BOUND_S = 60.0
ASK_EVERY_S = 0.5
STOP_BOUND_S = SETTINGS.drain_timeout_s + 5.0
LOOKUP_TIMEOUT_S = 2.0
AGREE_BOUND_S = 20.0


class Recovery:
    """Proves the recovery of one run. `took_s` is how long it took."""

    def __init__(self, cluster: Cluster, checks: Checks, random: Random) -> None:
        self.took_s = 0.0
        self._cluster = cluster
        self._checks = checks
        self._random = random
        self._world = cluster.world

    async def prove(self) -> None:
        """Raises Violation."""
        began_s = self._world.now_s
        await self._all_served()
        self.took_s = self._world.now_s - began_s
        await self._lookups_agree()
        await self._only_the_leader_reads_bundles()
        await self._one_leaves()
        await self._all_served()
        await self._only_the_leader_reads_bundles()
        await asyncio.sleep(0.5)
        self._checks.check_replicas()
        self._checks.raise_if_broken()

    # --- everything is served

    async def _all_served(self) -> None:
        deadline_s = self._world.now_s + BOUND_S
        while (missing := self._missing()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(f"not within {BOUND_S:g} s after the last fault: {missing}")
            self._checks.raise_if_broken()
            self._ask_for_unassigned()
            await asyncio.sleep(ASK_EVERY_S)

    def _missing(self) -> str | None:
        """What must still come true, and what is instead; None if all is well."""
        for name, life in self._cluster.current.items():
            if life.process.dead:
                self._cluster.start(name)
                return f"{name} runs"
            if not life.ready:
                return f"{life} is ready"
        served = self._served()
        for entry in self._checks.auditor.table:
            if entry.state is not State.ASSIGNED or entry.holder is None:
                return f"{entry.bundle} is assigned; it is {entry.state}({entry.holder}) since {entry.action}"
            if served.get(entry.bundle) != entry.holder:
                return f"{entry.bundle} is served by {entry.holder}; it is by {served.get(entry.bundle)}"
        return None if len(self._checks.auditor.table) else "there is a namespace"

    def _served(self) -> dict[Bundle, BrokerId]:
        return {
            claim.bundle: life.node.current.me
            for life in self._cluster.ready()
            if life.node is not None
            for claim in self._checks.served(life)
        }

    def _ask_for_unassigned(self) -> None:
        """Act as clients and operators do: look up bundles without an owner, and undrain brokers."""
        ready = self._cluster.ready()
        for life in ready:
            if life.node is not None and life.node.registration.draining and not life.leaving:
                life.spawn(life.node.undrain)
        for bundle in self._checks.auditor.table.in_state(State.UNASSIGNED):
            if ready:
                self._look_up(self._random.choice(ready), bundle)

    # --- lookups

    def _look_up(self, life: Life, bundle: Bundle) -> asyncio.Task[BrokerId | None]:
        async def owner() -> BrokerId | None:
            assert life.node is not None
            topic = topic_in(bundle.namespace, cells_of(bundle)[0])
            try:
                return (await life.node.current.lookup.locate(topic, LOOKUP_TIMEOUT_S)).owner
            except LoadManagerError:
                return None

        return life.spawn(owner)

    async def _lookups_agree(self) -> None:
        """Soon every broker names the same owner of each bundle, and that owner serves it."""
        deadline_s = self._world.now_s + AGREE_BOUND_S
        while (wrong := await self._disagreement()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(wrong)
            self._checks.raise_if_broken()
            await asyncio.sleep(ASK_EVERY_S)

    async def _disagreement(self) -> str | None:
        for entry in self._checks.auditor.table:
            bundle = entry.bundle
            asked = {str(life): self._look_up(life, bundle) for life in self._cluster.ready()}
            if not asked:
                return f"no broker is ready to look up {bundle}"
            await asyncio.wait(asked.values())
            serving = self._served().get(bundle)
            wrong = {name: task.result() for name, task in asked.items() if task.result() != serving}
            if wrong or serving is None:
                told = ", ".join(f"{name} says {owner}" for name, owner in wrong.items())
                return f"lookups of {bundle}, which {serving} serves: {told}"
        return None

    # --- load data

    async def _only_the_leader_reads_bundles(self) -> None:
        """Soon the leader has read the hottest bundles, and follows them; no other broker does."""
        deadline_s = self._world.now_s + AGREE_BOUND_S
        while (wrong := self._wrong_readers()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(wrong)
            self._checks.raise_if_broken()
            await asyncio.sleep(ASK_EVERY_S)

    def _wrong_readers(self) -> str | None:
        nodes = [(life, life.node) for life in self._cluster.ready() if life.node is not None]
        leading = {str(life) for life, node in nodes if node.current.leader.leading is not None}
        readers = self._world.log.readers(BUNDLES_TOPIC) & {str(life) for life, _ in nodes}
        shown = {str(life) for life, node in nodes if node.views.bundles.ready}
        if leading and leading == readers == shown:
            return None
        return f"{BUNDLES_TOPIC} is followed by {readers or 'nobody'}, read by {shown}; leading: {leading or 'nobody'}"

    # --- a graceful stop

    def _is_current(self, life: Life) -> bool:
        return life.node is not None and self._world.coordination.is_current(life.node.current.me)

    async def _one_leaves(self) -> None:
        staying = [life for life in self._cluster.ready() if not life.leaving and self._is_current(life)]
        if not staying:  # all were asked to stop, or do not know yet that they are fenced, and will end at once
            return
        life = self._random.choice(staying)
        node = life.node
        assert node is not None
        me = node.current.me
        life.leaving = True
        self._world.trace.write(str(life), "is asked to stop")
        life.process.run(node.stop)
        try:
            await self._world.until(lambda: life.process.dead, STOP_BOUND_S, f"{life} stops")
        except SimulationError as error:
            self._checks.complain(str(error))
        left = self._checks.auditor.table.count_held_by(me)
        if left and self._world.coordination.is_current(me):
            self._checks.complain(f"{life} stopped gracefully and left {left} bundles behind")
        if life.process.failure is not None:
            self._checks.complain(f"{life} was asked to stop and ended with {life.process.failure!r}")
        self._checks.raise_if_broken()
