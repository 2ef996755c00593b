"""Everything that lives and dies with one incarnation of a broker: its proofs, agent, leader candidacy, lookups.

When the incarnation is fenced all of it ends at once; the next one starts from nothing but the table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from loadmanager.agent.service import Agent, HookTimeouts
from loadmanager.assignment.registry import PLACEMENTS
from loadmanager.balancing.registry import STRATEGIES
from loadmanager.drain import Drain
from loadmanager.governing import Governor
from loadmanager.host import BundleLoad, Destination
from loadmanager.leader.core import LeaderSettings
from loadmanager.leader.service import Leader, TermSettings
from loadmanager.load.service import LoadService
from loadmanager.lookup import Lookup
from loadmanager.operations import Operations
from loadmanager.placing import Placing
from loadmanager.proving import Prover
from loadmanager.serving import Serving
from loadmanager.suspicion import Suspicion
from statechannel.bundle import Bundle
from statechannel.errors import CoordinationError, LogError
from statechannel.ports import Leadership
from statechannel.proofs import Proofs
from statechannel.record import Broker

if TYPE_CHECKING:
    from loadmanager.node import Node
    from loadmanager.settings import Settings


BEGIN_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


class Incarnation:
    """The services of `me`, wired to the node's channel, views and membership."""

    def __init__(self, me: Broker, node: Node, proofs: Proofs, serving: Serving) -> None:
        self.me = me
        self._node = node
        self._over = asyncio.Event()
        settings, channel, membership, world = node.settings, node.channel, node.membership, node.world
        self.placing = Placing(me, channel.table, membership, node.views, PLACEMENTS.make(settings.placement))
        self.lookup = Lookup(me, channel, membership, self.placing.place, world.clock_s)
        self.operations = Operations(me, channel, membership, world.clock_s, settings.in_flight_timeout_s)
        self.drain = Drain(me, channel, self.placing.place_elsewhere)
        self.agent = Agent(
            me,
            channel,
            serving,
            node.host,
            node.runner,
            _hook_timeouts(settings),
            self._destination,
            node.note,
        )
        self._prover = Prover(
            me,
            world.coordination,
            channel,
            proofs,
            world.clock_s,
            lambda: {channel.table.partition_of(bundle.namespace) for bundle in channel.table.held_by(me)},
            self.fence,
            self.agent.lapsed,
            self.agent.renewed,
        )
        self._proofs = proofs
        self.governor = Governor(
            channel.table,
            membership,
            node.views,
            node.history,
            STRATEGIES.make(settings.balancing_strategy),
            settings,
            (world.clock_s, world.wall_ms),
            node.note,
        )
        self.leader = Leader(
            me,
            channel,
            world.coordination,
            membership,
            _term_settings(settings),
            self.placing.place_preferring,
            world.clock_s,
            node.note,
            self.governor.govern,
        )
        self._suspicion = Suspicion(
            me,
            node.peers,
            node.views.accusations,
            world.probe,
            interval_s=settings.probe_interval_s,
            refusals=settings.probe_refusals,
        )
        self.load = LoadService(
            me,
            settings,
            host_load=self._host_load,
            held=lambda: channel.table.held_by(me),
            sensors=world.sensors,
            brokers=node.views.brokers,
            bundles=node.views.bundles,
            wall_ms=world.wall_ms,
        )

    async def run(self, ready: asyncio.Event, stopping: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> bool:
        """Act until fenced or, once `stopping` is set, until `leave` has returned; whether it was fenced."""
        async with asyncio.TaskGroup() as tasks, self.agent.running():
            leading = tasks.create_task(self._kept_running("the leader's candidacy", self.leader.run))
            duties = [
                tasks.create_task(self._prover.run()),
                tasks.create_task(self._kept_running("the look at other brokers", self._suspicion.run)),
                tasks.create_task(self._kept_running("the load report", self.load.run)),
            ]
            ready.set()
            try:
                await _first_of(self._over.wait(), stopping.wait())
                if not self._over.is_set():
                    await _first_of(self._over.wait(), leave())
                if not self._over.is_set():
                    leadership = self.leader.leading
                    leading.cancel()
                    await self._withdraw(leadership)
            finally:
                for duty in (leading, *duties):
                    duty.cancel()
                self.lookup.close()
        return self._over.is_set()

    async def _kept_running(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Begin again what failed unexpectedly: ownership does not hang on it, so its bugs must not end this broker."""
        while True:
            try:
                return await run()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not end this broker
                _log.exception("%s failed", what)
                self._node.note(f"{what} failed, and begins again: {error!r}")
                await asyncio.sleep(BEGIN_AGAIN_S)

    def fence(self) -> None:
        """Stop serving from this instant; `run` ends."""
        self._proofs.fence()
        self.agent.fence()
        self._over.set()

    async def _withdraw(self, leadership: Leadership | None) -> None:
        try:
            if leadership is not None:
                await self._node.world.coordination.resign(leadership)
            await self._node.world.coordination.unregister(self.me)
            await self.load.withdraw()
        except (CoordinationError, LogError):
            return  # the session ends with the process

    async def _host_load(self) -> Mapping[Bundle, BundleLoad]:
        node = self._node
        return await node.runner.call(node.host.load, timeout_s=node.settings.host_release_timeout_s)

    def _destination(self, broker: Broker) -> Destination:
        peer = self._node.membership.peer(broker)
        return Destination(broker.name, dict(peer.registration.urls) if peer else {})


def _hook_timeouts(settings: Settings) -> HookTimeouts:
    return HookTimeouts(
        settings.host_prepare_timeout_s, settings.host_acquire_timeout_s, settings.host_release_timeout_s
    )


def _term_settings(settings: Settings) -> TermSettings:
    core = LeaderSettings(
        validity_s=settings.proof_validity_s,
        margin_s=settings.margin_s,
        in_flight_timeout_s=settings.in_flight_timeout_s,
        recovery_grace_s=settings.recovery_grace_s,
    )
    return TermSettings(core, settings.monitor_interval_s, settings.lead_timeout_s)


async def _first_of(*works: Awaitable[object]) -> None:
    """Wait until the first one has ended, and cancel the others. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
