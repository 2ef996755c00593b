"""All services of one incarnation of a broker: its proofs, agent, leader candidacy, lookups.

When the incarnation is fenced all of them end at once; the next incarnation starts from the table alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from loadmanager.broker.agent.service import Agent, HookTimeouts
from loadmanager.broker.drain import Drain
from loadmanager.broker.hosting import HostRunner
from loadmanager.broker.lookup import Lookup
from loadmanager.broker.placing import Placing
from loadmanager.broker.proof_clock import ProofClock
from loadmanager.broker.proving import Prover
from loadmanager.broker.serving import Serving
from loadmanager.broker.telemetry.observations import Observations
from loadmanager.channel.agreement import Agreeing
from loadmanager.channel.operations import Operations
from loadmanager.channel.owner.service import ChannelOwner, OwnerDependencies
from loadmanager.cluster.agreed_time import AgreedTime
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.fitness import Fitness
from loadmanager.cluster.load_reports import LoadService
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.suspicion import Suspicion
from loadmanager.cluster.views import Views
from loadmanager.decisions.log import DecisionLog
from loadmanager.leader.advice.leading import follow_advice
from loadmanager.leader.core import LeaderSettings
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.quarantine.evidence import Quarantine
from loadmanager.leader.quarantine.keeper import Keeper, Processes
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.rebalancing.rounds import Rebalancer, Round
from loadmanager.leader.service import Leader, Term, TermSettings
from loadmanager.leader.splitting.service import Splitting
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.history import MoveHistory
from loadmanager.model.host import BundleHost, BundleLoad, Destination, KeyRate
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from loadmanager.settings.dynamic.live import LiveSettings
from loadmanager.strategies.placement.registry import SwitchedPlacement
from statechannel.errors import CoordinationError, LogError
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.ports import Leadership
from statechannel.runtime.channel import Channel
from statechannel.runtime.proofs import Proofs
from statechannel.runtime.tasks import first_of, kept_running

SEEN_WITHIN_S = 2.0
REST_TIMES_KEPT = 4
"""Planned moves matter for this many rest times."""


class IncarnationDependencies(Protocol):
    """What an incarnation uses but does not own: the parts of the process that outlive it. `Node` implements it."""

    live: LiveSettings
    host: BundleHost
    runner: HostRunner
    world: Dependencies
    channel: Channel
    proof_clock: ProofClock
    time: AgreedTime
    membership: Membership
    fitness: Fitness
    views: Views
    policies: PolicyStore
    quarantine: Quarantine
    processes: Processes
    plans: PlanStore
    decisions: DecisionLog
    agreeing: Agreeing
    seen: Observations

    @property
    def settings(self) -> Settings:
        """The present settings: ask again whenever one is needed."""
        ...

    def peers(self) -> dict[str, Peer]:
        """Registered brokers by name."""
        ...

    def note(self, text: str) -> None:
        """Keep and log a text for people."""
        ...

    async def tell_behind(self, me: BrokerId) -> None:
        """Tell the other brokers that this incarnation cannot read the log."""
        ...


class Incarnation:
    """The services of `me`, wired to the channel, views and membership of the process."""

    def __init__(self, me: BrokerId, deps: IncarnationDependencies, proofs: Proofs, serving: Serving) -> None:
        self.me = me
        self._deps = deps
        self._proofs = proofs
        self._over = asyncio.Event()
        self._seen = asyncio.Event()
        self.splitting = Splitting(me, deps, lambda: self.load, self._ask_keys)
        self.placing = self._make_placing()
        self.lookup = self._make_lookup()
        self.operations = self._make_operations()
        self.drain = Drain(me, deps.channel, self.placing)
        self.agent = self._make_agent(serving)
        self._history = MoveHistory(deps.channel.table, _memory_s(deps.settings))
        self.rebalancer = self._make_rebalancer()
        self.leader = self._make_leader()
        deps.seen.leading = lambda: self.leader.leading is not None
        self.load = self._make_load()
        self.channel_owner = self._make_channel_owner()
        self.prover = self._make_prover()
        self._suspicion = self._make_suspicion()

    def _make_placing(self) -> Placing:
        deps = self._deps
        placement = SwitchedPlacement(lambda: deps.settings)
        return Placing(
            self.me,
            deps.channel.table,
            deps.membership,
            deps.views,
            placement,
            deps.policies.current,
            lambda: deps.settings,
            self._is_drawn,
            lambda: [each.bundle for each in deps.quarantine.rows()],
            deps.fitness,
        )

    def _make_lookup(self) -> Lookup:
        deps, placing = self._deps, self.placing
        return Lookup(
            self.me,
            deps.channel,
            deps.membership,
            placing.place_all,
            deps.world.clock_s,
            placing.quarantine,
            placing.why_nowhere,
            placing.look,
            placing.cause,
        )

    def _make_operations(self) -> Operations:
        deps, timeout_s = self._deps, self._deps.settings.in_flight_timeout_s
        clock_s, forbids = deps.world.clock_s, self.placing.forbids
        return Operations(self.me, deps.channel, deps.membership, clock_s, timeout_s, forbids)

    def _make_agent(self, serving: Serving) -> Agent:
        deps, timeouts = self._deps, _hook_timeouts(self._deps.settings)
        return Agent(
            self.me,
            deps.channel,
            serving,
            deps.host,
            deps.runner,
            timeouts,
            self._destination,
            deps.note,
            lambda bundle: self.load.loads.get(bundle, BundleLoad()),
            self.splitting.bounds_of,
            deps.seen.hook_ended,
            deps.seen.fields_of_hook,
        )

    def _make_prover(self) -> Prover:
        deps, table = self._deps, self._deps.channel.table
        return Prover(
            self.me,
            deps.world.coordination,
            deps.channel,
            self._proofs,
            deps.proof_clock,
            lambda: table.partitions_held_by(self.me),
            self.fence,
            self.agent.lapsed,
            self.agent.renewed,
            deps.note,
        )

    def _make_rebalancer(self) -> Rebalancer:
        deps = self._deps
        deciding = Deciding(
            deps.channel.table,
            deps.membership,
            deps.views,
            self._history,
            lambda: deps.settings,
            deps.policies.current,
            deps.world.wall_ms,
            deps.world.run_blocking,
            self.placing.forbids,
            deps.fitness,
        )
        return Rebalancer(
            deciding,
            deps.views,
            deps.plans,
            deps.decisions,
            deps.world.clock_s,
            deps.note,
            self._decided,
            deps.seen.fields_of_round,
        )

    def _decided(self, done: Round, took_s: float) -> None:
        decision = done.decision
        if decision.moves:
            about = {"loadmanager.moves": len(decision.moves), "loadmanager.reason": decision.reason}
            self._deps.seen.round_ended(done.id, took_s, about | {"loadmanager.leader": self.me.name})

    def _make_leader(self) -> Leader:
        deps = self._deps
        return Leader(
            self.me,
            deps.channel,
            deps.world.coordination,
            deps.membership,
            _term_settings(deps.settings),
            self.placing,
            deps.world.clock_s,
            deps.note,
            self._rebalance,
            deps.agreeing.root,
            lambda: deps.tell_behind(self.me),
            lambda: tuple(name for name, each in deps.policies.current().namespaces.items() if each.eager),
        )

    async def _rebalance(self, term: Term) -> None:
        """A leader's further work while a term lasts: rebalancing, advice, splits, quarantine."""
        with self._deps.views.bundles.need():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.rebalancer.rebalance(term))
                tasks.create_task(follow_advice(self._deps, self.rebalancer, self.operations, term))
                tasks.create_task(self.splitting.tending(self.rebalancer.deciding).tend(term))
                tasks.create_task(self._make_keeper().keep(term))

    def _make_keeper(self) -> Keeper:
        deps, splitting = self._deps, self.splitting
        return Keeper(
            self.rebalancer.deciding,
            deps.policies,
            deps.quarantine,
            deps.processes,
            self.placing.draw_unlocked,
            splitting.ruling,
            splitting.safe_mode,
            splitting.journal,
            deps.note,
        )

    def _is_drawn(self, bundle: Bundle) -> bool:
        """Returns True if the bundle goes to a broker drawn at random, because brokers were lost with it."""
        is_drawn = self._deps.quarantine.is_drawn(bundle)
        return is_drawn and self.splitting.ruling().settings_of(bundle).quarantine_deaths > 0

    def _make_suspicion(self) -> Suspicion:
        deps, settings = self._deps, self._deps.settings
        return Suspicion(
            self.me,
            deps.peers,
            deps.views.suspicions,
            deps.world.probe,
            interval_s=settings.probe_interval_s,
            refusals=settings.probe_refusals,
        )

    def _make_load(self) -> LoadService:
        deps = self._deps
        return LoadService(
            self.me,
            deps.settings,
            host_load=self._host_load,
            held=self._held,
            sensors=deps.world.sensors,
            brokers=deps.views.brokers,
            bundles=deps.views.bundles,
            wall_ms=deps.world.wall_ms,
            spread=self.splitting.reshaper.spread,
            run_blocking=deps.world.run_blocking,
        )

    def _make_channel_owner(self) -> ChannelOwner:
        deps, world = self._deps, self._deps.world
        return ChannelOwner(
            self.me,
            OwnerDependencies(
                deps.channel,
                world.log,
                world.coordination,
                deps.membership,
                deps.views.readers,
                world.clock_s,
                world.wall_ms,
                deps.time.now_ms,
                world.nonce,
                deps.note,
                world.chunk_bundles,
            ),
            deps.settings,
        )

    async def run(self, ready: asyncio.Event, stopping: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> bool:
        """Run until fenced or, once `stopping` is set, until `leave` has returned; whether it was fenced."""
        unfollow = self._deps.live.on_change(lambda _old, new: self._follow(new))
        async with asyncio.TaskGroup() as tasks, self.agent.running():
            leading = tasks.create_task(self._kept_running("the leader's candidacy", self.leader.run))
            duties = [
                tasks.create_task(self.prover.run()),
                tasks.create_task(self._kept_running("the look at other brokers", self._suspicion.run)),
                tasks.create_task(self._kept_running("splitting and merging", self.splitting.reshaper.run)),
                tasks.create_task(self._kept_running("the channel owner", self.channel_owner.run)),
            ]
            try:
                await self._until_seen(stopping)
                ready.set()
                # after `ready`: it calls the service, and a hook that blocks our loop must not delay `ready`
                duties.append(tasks.create_task(self._kept_running("the load report", self.load.run)))
                await first_of(self._over.wait(), stopping.wait())
                if not self._over.is_set():
                    await first_of(self._over.wait(), leave())
                if not self._over.is_set():
                    leadership = self.leader.leading
                    leading.cancel()
                    await self._withdraw(leadership)
            finally:
                unfollow()
                for duty in (leading, *duties):
                    duty.cancel()
                self.lookup.close()
        return self._over.is_set()

    async def _until_seen(self, stopping: asyncio.Event) -> None:
        """Wait until we read our own registration: before that nobody can place a bundle here, or move one here.

        At most for `SEEN_WITHIN_S`, since bundles that we already have need no registration.
        """
        if not self._seen.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SEEN_WITHIN_S):
                    await first_of(self._seen.wait(), self._over.wait(), stopping.wait())

    def members_changed(self) -> None:
        """Membership or suspicions changed; wake the waiters."""
        if self._deps.membership.peer(self.me) is not None:
            self._seen.set()
        self.leader.wake()
        self.channel_owner.wake()

    async def _kept_running(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Ownership does not depend on this service, so its bugs must not end this broker."""
        await kept_running(what, run, self._deps.note)

    def _follow(self, settings: Settings) -> None:
        """Hand changed settings to the services that do not ask for them each time."""
        self.load.set(settings)
        self.agent.hooks.set(_hook_timeouts(settings))
        self._history.set_memory(_memory_s(settings))

    def fence(self) -> None:
        """Stop serving at once; `run` ends."""
        self._proofs.fence()
        self.agent.fence()
        self._over.set()

    async def _withdraw(self, leadership: Leadership | None) -> None:
        try:
            if leadership is not None:
                await self._deps.world.coordination.resign(leadership)
            await self._deps.world.coordination.unregister(self.me)
            await self.load.withdraw()
        except (CoordinationError, LogError):
            return  # the session ends with the process

    def _held(self) -> tuple[Bundle, ...]:
        """The bundles that we hold, found through the host's bundles, without a walk of the table. Any thread."""
        entries = (self._deps.channel.table.get(bundle) for bundle in self.agent.core.hosted())
        return tuple(entry.bundle for entry in entries if entry is not None and entry.holder == self.me)

    async def _host_load(self) -> Mapping[Bundle, BundleLoad]:
        deps = self._deps
        measured = await deps.runner.call(deps.host.load, timeout_s=deps.settings.host_load_timeout_s)
        return self.splitting.reshaper.inherited(measured)

    async def _ask_keys(self, bundle: Bundle, algorithm: str, load: BundleLoad) -> list[KeyRate] | NoCuts:
        return await self.agent.hooks.keys(bundle, algorithm, load)

    def _destination(self, broker: BrokerId) -> Destination:
        peer = self._deps.membership.peer(broker)
        return Destination(broker.name, dict(peer.registration.urls) if peer else {})


def _memory_s(settings: Settings) -> float:
    """How long a planned move is remembered."""
    return REST_TIMES_KEPT * max(settings.bundle_rest_s, 60.0)


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
    return TermSettings(core, settings.monitor_interval_s, settings.publish_timeout_s, settings.lead_timeout_s)
