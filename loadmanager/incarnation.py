"""Everything that lives and dies with one incarnation of a broker: its proofs, agent, leader candidacy, lookups.

When the incarnation is fenced all of it ends at once; the next one starts from nothing but the table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from loadmanager.agent.service import Agent, HookTimeouts
from loadmanager.assignment.registry import PLACEMENTS
from loadmanager.balancing.history import MoveHistory
from loadmanager.balancing.registry import STRATEGIES
from loadmanager.drain import Drain
from loadmanager.governing import Governor
from loadmanager.host import BundleHost, BundleLoad, Destination
from loadmanager.hosting import HostRunner
from loadmanager.leader.core import LeaderSettings
from loadmanager.leader.service import Leader, TermSettings
from loadmanager.load.service import LoadService
from loadmanager.lookup import Lookup
from loadmanager.membership import Membership
from loadmanager.operations import Operations
from loadmanager.placing import Placing
from loadmanager.proving import Prover
from loadmanager.registration import Peer
from loadmanager.serving import Serving
from loadmanager.settings import Settings
from loadmanager.surroundings import Surroundings
from loadmanager.suspicion import Suspicion
from loadmanager.views import Views
from statechannel.bundle import Bundle
from statechannel.errors import CoordinationError, LogError
from statechannel.ports import Leadership
from statechannel.proofs import Proofs
from statechannel.record import Broker
from statechannel.service import Channel

BEGIN_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


class Grounds(Protocol):
    """What an incarnation stands on and does not own: everything of the process that outlives it. `Node` is one."""

    settings: Settings
    host: BundleHost
    runner: HostRunner
    world: Surroundings
    channel: Channel
    membership: Membership
    views: Views
    history: MoveHistory

    def peers(self) -> dict[str, Peer]:
        """Registered brokers by name."""
        ...

    def note(self, text: str) -> None:
        """Keep and log something that people want to know."""
        ...


class Incarnation:
    """The services of `me`, wired to the channel, views and membership of the process."""

    def __init__(self, me: Broker, grounds: Grounds, proofs: Proofs, serving: Serving) -> None:
        self.me = me
        self._grounds = grounds
        self._proofs = proofs
        self._over = asyncio.Event()
        self.placing = self._make_placing()
        self.lookup = Lookup(me, grounds.channel, grounds.membership, self.placing.place, grounds.world.clock_s)
        self.operations = self._make_operations()
        self.drain = Drain(me, grounds.channel, self.placing.place_elsewhere)
        self.agent = self._make_agent(serving)
        self.governor = self._make_governor()
        self.leader = self._make_leader()
        self.load = self._make_load()
        self._prover = self._make_prover()
        self._suspicion = self._make_suspicion()

    def _make_placing(self) -> Placing:
        grounds, placement = self._grounds, PLACEMENTS.make(self._grounds.settings.placement)
        return Placing(self.me, grounds.channel.table, grounds.membership, grounds.views, placement)

    def _make_operations(self) -> Operations:
        grounds, timeout_s = self._grounds, self._grounds.settings.in_flight_timeout_s
        return Operations(self.me, grounds.channel, grounds.membership, grounds.world.clock_s, timeout_s)

    def _make_agent(self, serving: Serving) -> Agent:
        grounds, timeouts = self._grounds, _hook_timeouts(self._grounds.settings)
        return Agent(
            self.me,
            grounds.channel,
            serving,
            grounds.host,
            grounds.runner,
            timeouts,
            self._destination,
            grounds.note,
        )

    def _make_prover(self) -> Prover:
        grounds, table = self._grounds, self._grounds.channel.table
        return Prover(
            self.me,
            grounds.world.coordination,
            grounds.channel,
            self._proofs,
            grounds.world.clock_s,
            lambda: {table.partition_of(bundle.namespace) for bundle in table.held_by(self.me)},
            self.fence,
            self.agent.lapsed,
            self.agent.renewed,
        )

    def _make_governor(self) -> Governor:
        grounds, settings = self._grounds, self._grounds.settings
        return Governor(
            grounds.channel.table,
            grounds.membership,
            grounds.views,
            grounds.history,
            STRATEGIES.make(settings.balancing_strategy),
            settings,
            (grounds.world.clock_s, grounds.world.wall_ms),
            grounds.note,
        )

    def _make_leader(self) -> Leader:
        grounds = self._grounds
        return Leader(
            self.me,
            grounds.channel,
            grounds.world.coordination,
            grounds.membership,
            _term_settings(grounds.settings),
            self.placing.place_preferring,
            grounds.world.clock_s,
            grounds.note,
            self.governor.govern,
        )

    def _make_suspicion(self) -> Suspicion:
        grounds, settings = self._grounds, self._grounds.settings
        return Suspicion(
            self.me,
            grounds.peers,
            grounds.views.accusations,
            grounds.world.probe,
            interval_s=settings.probe_interval_s,
            refusals=settings.probe_refusals,
        )

    def _make_load(self) -> LoadService:
        grounds = self._grounds
        return LoadService(
            self.me,
            grounds.settings,
            host_load=self._host_load,
            held=lambda: grounds.channel.table.held_by(self.me),
            sensors=grounds.world.sensors,
            brokers=grounds.views.brokers,
            bundles=grounds.views.bundles,
            wall_ms=grounds.world.wall_ms,
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
                self._grounds.note(f"{what} failed, and begins again: {error!r}")
                await asyncio.sleep(BEGIN_AGAIN_S)

    def fence(self) -> None:
        """Stop serving from this instant; `run` ends."""
        self._proofs.fence()
        self.agent.fence()
        self._over.set()

    async def _withdraw(self, leadership: Leadership | None) -> None:
        try:
            if leadership is not None:
                await self._grounds.world.coordination.resign(leadership)
            await self._grounds.world.coordination.unregister(self.me)
            await self.load.withdraw()
        except (CoordinationError, LogError):
            return  # the session ends with the process

    async def _host_load(self) -> Mapping[Bundle, BundleLoad]:
        grounds = self._grounds
        return await grounds.runner.call(grounds.host.load, timeout_s=grounds.settings.host_load_timeout_s)

    def _destination(self, broker: Broker) -> Destination:
        peer = self._grounds.membership.peer(broker)
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
