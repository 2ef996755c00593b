"""One broker's control plane: wires all services of one process together, over the ports that it is given.

`Node` runs the process's life: connect, catch up with the channel, start an incarnation, run it until it is fenced
(then start the next) or stopped (then drain and leave). It decides nothing itself. An `Incarnation` has the services
that end all at once when it is fenced: its proofs, agent, leader candidacy, lookups; the next one starts from the table
alone. `wiring.py` chooses the adapters behind the ports; the simulator gives simulated ones. Call all methods on the
loop that runs `run()`, except those of `serving`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec
from structlog.contextvars import bind_contextvars

from loadmanager.broker.agent import Agent, HookTimeouts
from loadmanager.broker.drain import Drain, DrainProgress
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.lookup import Lookup
from loadmanager.broker.observations import Observations
from loadmanager.broker.placing import Placing
from loadmanager.broker.proving import Prover
from loadmanager.broker.registrar import LogWatch, yield_to_namesake
from loadmanager.broker.serving import Serving
from loadmanager.channel.agreement import Agreeing
from loadmanager.channel.operations import Operations
from loadmanager.channel.owner.service import ChannelOwner, OwnerDependencies
from loadmanager.cluster.agreed_time import AgreedTime
from loadmanager.cluster.audit_log import AuditLog
from loadmanager.cluster.clocks import ProofClock
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.fitness import Fitness
from loadmanager.cluster.load_reports import LoadService
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.operation_log import OperationLog
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.cluster.suspicion import PROBE_INTERVAL_S, PROBE_REFUSALS, Suspicion
from loadmanager.cluster.told_topics import ToldTopics
from loadmanager.cluster.usage_history import UsageHistory
from loadmanager.cluster.views import Views
from loadmanager.decisions.log import DecisionLog
from loadmanager.diagnostics.redaction import redact_and_shorten
from loadmanager.errors import Conflict
from loadmanager.leader.advice.leading import follow_advice
from loadmanager.leader.core import LeaderSettings
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.quarantine.keeper import Keeper, Processes, collect_evidence
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.rebalancing.rounds import Rebalancer, Round
from loadmanager.leader.service import Leader, Term, TermSettings
from loadmanager.leader.splitting.service import Splitting
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import BundleHost, BundleLoad, Destination, KeyRate
from loadmanager.model.observation import MoveHistory
from loadmanager.model.policies.model import Policies
from loadmanager.model.policies.validation import Known
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from loadmanager.strategies.registry import SwitchedPlacement
from statechannel.errors import (
    CoordinationError,
    CoordinationUnavailable,
    Fenced,
    ForeignRoot,
    LogError,
    LogUnavailable,
)
from statechannel.law.bundle import Bundle
from statechannel.law.codec import AGREEING_VERSION, OLDEST_VERSION
from statechannel.law.record import Action, BrokerId
from statechannel.law.verdict import Change
from statechannel.ports import Leadership
from statechannel.runtime.channel import Channel, ChannelSettings
from statechannel.runtime.proofs import Proofs
from statechannel.runtime.tasks import all_or_first_failure, first_of, kept_running, retried

T = TypeVar("T")
Step = Callable[[], Coroutine[Any, Any, T]]

UNANSWERED = (LogUnavailable, CoordinationUnavailable)
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
LAST_STEP_S = 0.1
"""The least time for a step of the start, so that it can find out what it waits for."""


class StartRetries:
    """One deadline for all steps of a start. Construct it on the loop when the start begins."""

    def __init__(self, start_timeout_s: float, note: Callable[[str], None]) -> None:
        self._limit_s = start_timeout_s
        self._until_s = asyncio.get_running_loop().time() + start_timeout_s
        self._note = note

    @property
    def left_s(self) -> float:
        """Seconds that a step may take."""
        return max(LAST_STEP_S, self._until_s - asyncio.get_running_loop().time())

    async def of(self, step: Step[T]) -> T:
        """Repeat the step; returns its result. Raises LogUnavailable or CoordinationUnavailable at the deadline."""
        return await retried(step, UNANSWERED, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S, failed=self._failed)

    def _failed(self, error: Exception, pause_s: float) -> None:
        if asyncio.get_running_loop().time() + pause_s >= self._until_s:
            raise type(error)(f"not started within {self._limit_s:g} s (start_timeout_s): {error}") from None
        self._note(f"starting: {error}; trying again")


async def until_answered(step: Step[T], stopping: asyncio.Event, note: Callable[[str], None]) -> T:
    """Repeat the step; returns its result. Raises its last error only once `stopping` is set."""
    told = ""

    def failed(error: Exception, _: float) -> None:
        nonlocal told
        if stopping.is_set():
            raise error
        if str(error) != told:
            told = str(error)
            note(told)

    async def pause(pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stopping.wait()

    return await retried(step, UNANSWERED, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S, failed=failed, pause=pause)


SEEN_WITHIN_S = 2.0
REST_TIMES_KEPT = 4
"""Planned moves matter for this many rest times."""


class Incarnation:
    """The services of `me`, wired to the channel, views and membership of the process."""

    def __init__(self, me: BrokerId, deps: Node, proofs: Proofs, serving: Serving) -> None:
        self.me = me
        self._deps = deps
        self._proofs = proofs
        self._over = asyncio.Event()
        self._seen = asyncio.Event()
        settings, world, table = deps.settings, deps.world, deps.channel.table
        self.splitting = Splitting(me, deps, lambda: self.load, self._ask_keys)
        self.placing = Placing(
            me,
            table,
            deps.membership,
            deps.views,
            SwitchedPlacement(lambda: deps.settings),
            deps.policies.current,
            lambda: deps.settings,
            self._is_drawn,
            lambda: [each.bundle for each in deps.quarantine.rows()],
            deps.fitness,
        )
        self.lookup = Lookup(
            me,
            deps.channel,
            deps.membership,
            self.placing.place_all,
            world.clock_s,
            self.placing.quarantine,
            self.placing.why_nowhere,
            self.placing.look,
            self.placing.cause,
        )
        self.operations = Operations(
            me, deps.channel, deps.membership, world.clock_s, settings.in_flight_timeout_s, self.placing.forbids
        )
        self.drain = Drain(me, deps.channel, self.placing)
        self.agent = Agent(
            me,
            deps.channel,
            serving,
            deps.host,
            deps.runner,
            _hook_timeouts(settings),
            self._destination,
            deps.note,
            lambda bundle: self.load.loads.get(bundle, BundleLoad()),
            self.splitting.bounds_of,
            deps.seen.hook_ended,
            deps.seen.fields_of_hook,
        )
        self._history = MoveHistory(table, _memory_s(settings))
        self.rebalancer = Rebalancer(
            Decider(
                table,
                deps.membership,
                deps.views,
                self._history,
                lambda: deps.settings,
                deps.policies.current,
                world.wall_ms,
                world.run_blocking,
                self.placing.forbids,
                deps.fitness,
            ),
            deps.views,
            deps.plans,
            deps.decisions,
            world.clock_s,
            deps.note,
            self._decided,
            deps.seen.fields_of_round,
        )
        self.leader = Leader(
            me,
            deps.channel,
            world.coordination,
            deps.membership,
            _term_settings(settings),
            self.placing,
            world.clock_s,
            deps.note,
            self._rebalance,
            deps.agreeing.root,
            lambda: deps.tell_behind(me),
            lambda: tuple(name for name, each in deps.policies.current().namespaces.items() if each.eager),
        )
        deps.seen.leading = lambda: self.leader.leading is not None
        self.load = LoadService(
            me,
            settings,
            host_load=self._host_load,
            held=self._held,
            sensors=world.sensors,
            brokers=deps.views.brokers,
            bundles=deps.views.bundles,
            wall_ms=world.wall_ms,
            spread=self.splitting.reshaper.spread,
            run_blocking=world.run_blocking,
        )
        self.channel_owner = ChannelOwner(
            me,
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
            settings,
        )
        self.prover = Prover(
            me,
            world.coordination,
            deps.channel,
            proofs,
            deps.proof_clock,
            lambda: table.partitions_held_by(me),
            self.fence,
            self.agent.lapsed,
            self.agent.renewed,
            deps.note,
        )
        self._suspicion = Suspicion(
            me,
            deps.peers,
            deps.views.suspicions,
            world.probe,
            interval_s=PROBE_INTERVAL_S,
            refusals=PROBE_REFUSALS,
        )

    def _decided(self, done: Round, took_s: float) -> None:
        decision = done.decision
        if decision.moves:
            about = {"loadmanager.moves": len(decision.moves), "loadmanager.reason": decision.reason}
            self._deps.seen.round_ended(done.id, took_s, about | {"loadmanager.leader": self.me.name})

    async def _rebalance(self, term: Term) -> None:
        """A leader's further work while a term lasts: rebalancing, advice, splits, quarantine."""
        deps, splitting = self._deps, self.splitting
        quarantine = Keeper(
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
        with deps.views.bundles.need():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.rebalancer.rebalance(term))
                tasks.create_task(follow_advice(deps, self.rebalancer, self.operations, term))
                tasks.create_task(splitting.tending(self.rebalancer.deciding).tend(term))
                tasks.create_task(quarantine.keep(term))

    def _is_drawn(self, bundle: Bundle) -> bool:
        """Returns True if the bundle goes to a broker drawn at random, because brokers were lost with it."""
        is_drawn = self._deps.quarantine.is_drawn(bundle)
        return is_drawn and self.splitting.ruling().settings_of(bundle).quarantine_deaths > 0

    async def run(self, ready: asyncio.Event, stopping: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> bool:
        """Run until fenced or, once `stopping` is set, until `leave` has returned. Returns True if fenced."""
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
        """Wait until we read our own registration: before that no broker can place or move a bundle here.

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


REGISTER_AGAIN_S = 0.5
_log = logging.getLogger("loadmanager")


class Note(msgspec.Struct, frozen=True):
    """An event of this broker, as text for people. `number` counts them since the start."""

    number: int
    at_ms: int
    text: str


class Node:
    """A broker. Keep `run()` running; `stop()` ends it gracefully."""

    def __init__(self, settings: Settings, host: BundleHost, runner: HostRunner, world: Dependencies) -> None:
        self.live = LiveSettings(settings, world.log, wall_ms=world.wall_ms, nonce=world.nonce, note=self.note)
        self.host = host
        self.runner = runner
        self.world = world
        self.registration = Registration(
            codec=world.newest_version,
            capacity=dict(settings.capacity),
            failure_domain=settings.failure_domain,
            properties=dict(settings.properties),
            started_ms=world.wall_ms(),
        )
        self.proof_clock = ProofClock(world.clock_s, world.outside)
        self.seen = Observations(
            settings.advertised, world.clock_s, world.wall_ms, lambda: str(self.channel.table.cluster_identity)
        )
        self.channel = Channel(
            world.log,
            ChannelSettings(partitions=settings.partitions, publish_timeout_s=settings.publish_timeout_s),
            nonce=world.nonce,
            wall_ms=world.wall_ms,
            newest_version=world.newest_version,
        )
        self.membership = Membership(
            validity_s=settings.proof_validity_s,
            recovery_grace_s=settings.recovery_grace_s,
            now_s=world.clock_s(),
        )
        self.time = AgreedTime(settings.advertised, world.clock_s, world.wall_ms)
        self.channel.listen(self.time.take)
        self.views = Views(world.log, settings, world.wall_ms)
        self.live.on_change(lambda _old, new: self.views.follow(new))
        self.policies = PolicyStore(world.log, self._known, world.wall_ms, world.nonce, world.run_blocking)
        self.usage_history = UsageHistory(lambda: self.settings, self.policies.current, world.wall_ms)
        self.views.brokers.on_change(self.usage_history.take)
        self.agreeing = Agreeing(self.channel, world.coordination, self.live, self.note)
        self.decisions = DecisionLog(world.log, self.time.now_ms, world.run_blocking)
        self.audit = AuditLog(world.log, lambda: self.settings.audit_retention_s, self.time.now_ms, world.nonce)
        self.operation_log = OperationLog(world.log, world.wall_ms, world.nonce)
        self.told_topics = ToldTopics(world.log, world.wall_ms, world.nonce)
        self.quarantine = collect_evidence(self.channel, self.policies, lambda: self.settings)
        self.processes = Processes()
        self.fitness = Fitness(world.clock_s)
        self.channel.listen(self.fitness.observe)
        self.plans = PlanStore(world.log, lambda: self.channel.table, world.wall_ms, world.nonce)
        self.plans.documents.on_change(self.seen.plan_changed)
        self.incarnation: Incarnation | None = None
        self.notes: deque[Note] = deque(maxlen=500)
        self.serving: Serving | None = None
        self.ready = asyncio.Event()
        """Set while an incarnation is registered and acts."""
        self._stopping, self._registration_pending = asyncio.Event(), asyncio.Event()
        self._drain_timeout_s: float | None = None
        self._judging = False

    # --- life

    async def run(self) -> None:
        """Run until `stop()`. Raises the errors of `statechannel.errors` for which an operator must act."""
        try:
            retries = await self._connect()
            async with (
                self.channel.running(),
                self._background(self.views.run()),
                self._background(self.live.run()),
                self._background(self.policies.run()),
                self._background(self.plans.documents.run()),
                self._background(self.told_topics.documents.run()),
                self._background(self.operation_log.run()),
                self._background(self._watch_replica()),
                self._background(self._say_agreement()),
            ):
                await self._begin(retries)
                while not self._stopping.is_set():
                    await self._live()
            if self.channel.stopped_by is not None:
                raise self.channel.stopped_by
        finally:
            self.runner.close()
            await self.world.coordination.close()
            await self.world.log.close()

    def abandoned(self, why: str) -> None:
        """Our session was ended because this loop hung: others take over, and we go on as the next incarnation."""
        if self.incarnation is not None:
            self.incarnation.fence()
        self.note(f"{why}: our session was ended")

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Leave gracefully: first move bundles away, for at most `drain_timeout_s` (default: the setting)."""
        self._drain_timeout_s = self.settings.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        self._stopping.set()

    async def _connect(self) -> StartRetries:
        retries = StartRetries(self.settings.start_timeout_s, self.note)
        await self.world.log.start(retries.left_s)
        await self.world.coordination.start(retries.left_s)
        await retries.of(self.agreeing.check_there)
        await retries.of(self.channel.open)
        others = [*self.views.opening, self.live.open, self.policies.start, self.plans.documents.start]
        others += [self.decisions.open, self.audit.open, self.told_topics.documents.start, self.operation_log.start]
        await all_or_first_failure(retries.of(step) for step in others)
        return retries

    async def _begin(self, retries: StartRetries) -> None:
        await retries.of(lambda: self.channel.catch_up(retries.left_s))
        self.time.begin(found.at_ms for found in self.channel.loaded if found is not None)
        if not await self.live.wait_ready(retries.left_s):
            self.note("the cluster's settings are not read yet: until then the settings of the start apply")
        await retries.of(lambda: self.policies.wait_ready(retries.left_s))
        await retries.of(self.agreeing.claim_log)
        self.channel.listen(self._saw_change)
        self.channel.replica.on_reload(self._missed_changes)
        self.world.coordination.on_change(self._members_changed)
        self.views.suspicions.on_change(lambda _key, _old, _new: self._judge_soon())
        self._members_changed()
        await self.policies.match_brokers()
        await retries.of(self._settle)

    async def _live(self) -> None:
        """One incarnation, from its registration to its end."""
        try:
            if self.incarnation is not None:  # for the first incarnation the start has settled
                await self._until_answered(self._settle)
            me = await self._until_answered(self._start_incarnation)
        except (CoordinationUnavailable, LogUnavailable):
            return  # `stop()` was called meanwhile
        proofs = Proofs(self.channel.table.partitions, self.settings.proof_validity_s)
        if self.serving is None:
            self.serving = Serving(self.channel.table, proofs, self.proof_clock.now_s)
            self.serving.listen(self.seen.moves.served)
            self.policies.on_change(self._share)
            self.policies.on_change(lambda _: self._wake())
        else:
            self.serving.adopt(proofs)
        bind_contextvars(incarnation=me.incarnation)
        self.incarnation = Incarnation(me, self, proofs, self.serving)
        self._watch_agreement()  # it may have changed since it was settled
        try:
            await self._until_answered(lambda: self.world.coordination.register(me, self.registration.encode()))
            self.note(f"started as {me}")
            async with self._background(self._keep_registered(me)), self._background(self._watch_channel(me)):
                fenced = await self.incarnation.run(self.ready, self._stopping, self._leave)
        except Fenced:  # before the incarnation had begun
            fenced = True
        except CoordinationUnavailable:  # `stop()` was called before the incarnation had begun
            fenced = False
        finally:
            self.ready.clear()
        if fenced:
            self.note(f"{me} was fenced")
            world, validity_s = self.world, self.settings.proof_validity_s
            await yield_to_namesake(me, self.membership, world.coordination, world.clock_s, validity_s, self._stopping)

    async def _start_incarnation(self) -> BrokerId:
        name = self.settings.advertised
        return await self.world.coordination.start_incarnation(name, self.channel.table.highest_incarnation(name))

    async def _settle(self) -> None:
        cluster_identity = self.channel.table.cluster_identity
        assert cluster_identity is not None, "the cluster was claimed before"
        await self.agreeing.settle(cluster_identity)
        self.membership.validity_s = self.settings.proof_validity_s

    async def _say_agreement(self) -> None:
        """Write the agreement to a log of an earlier release, once every broker can read it."""
        await self.ready.wait()
        while not self.agreeing.is_said:
            await asyncio.sleep(self.settings.monitor_interval_s)
            with suppress(LogUnavailable):
                await self.agreeing.say()

    async def _until_answered(self, step: Step[T]) -> T:
        return await until_answered(step, self._stopping, self.note)

    async def _leave(self) -> None:
        assert self.incarnation is not None
        timeout_s = self._drain_timeout_s if self._drain_timeout_s is not None else self.settings.drain_timeout_s
        progress = await self.drain(timeout_s)
        self.note(f"leaving: {progress}")

    async def _watch_replica(self) -> None:
        """End this process when the replica stops: it must not act on a stale table."""
        await self.channel.stopped.wait()
        self.note(f"the replica has stopped: {self.channel.stopped_by}")
        self._stopping.set()
        if self.incarnation is not None:
            self.incarnation.fence()

    async def _watch_channel(self, me: BrokerId) -> None:
        """Tell the others while we cannot read the log. Otherwise we would look idle and be given all bundles."""
        watch = LogWatch(me.name, self.channel, self.membership, lambda: self.settings)
        await watch.run(lambda: self.registration.behind, lambda behind: self.tell_behind(me, behind))

    async def tell_behind(self, me: BrokerId, behind: bool = True) -> None:
        """Tell the other brokers whether we can read the log, if that has changed."""
        if behind != self.registration.behind:
            self.note("the log does not answer: this broker can get no bundles" if behind else "the log answers again")
            self.registration = msgspec.structs.replace(self.registration, behind=behind)
            await self._register_again(me)

    async def _keep_registered(self, me: BrokerId) -> None:
        """Register again after no answer, and if other data is shown at two looks: others act on what is shown."""
        others_data = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.monitor_interval_s):
                    await self._registration_pending.wait()
                    await asyncio.sleep(REGISTER_AGAIN_S)
            before, others_data = others_data, self._shows_other_data(me)
            if self._registration_pending.is_set() or (before and others_data):
                self._registration_pending.clear()
                others_data = False
                await self._register_again(me)

    def _shows_other_data(self, me: BrokerId) -> bool:
        """Returns True if the coordination service shows this incarnation with other data than was registered last."""
        shown = self.world.coordination.members.get(me.name)
        return shown is not None and shown.broker == me and shown.data != self.registration.encode()

    @asynccontextmanager
    async def _background(self, work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work)
            try:
                yield
            finally:
                task.cancel()

    # --- what others ask

    @property
    def settings(self) -> Settings:
        """The present settings: ask again whenever one is needed."""
        return self.live.current

    async def drain(self, timeout_s: float) -> DrainProgress:
        """Take no more bundles, and move all bundles away."""
        incarnation = self.current
        self.registration = msgspec.structs.replace(self.registration, draining=True)
        await self._register_again(incarnation.me)
        return await incarnation.drain.run(timeout_s)

    async def undrain(self) -> None:
        """Take bundles again. Raises Conflict when this broker leaves for good."""
        if self._stopping.is_set():
            raise Conflict(f"{self.settings.advertised} is stopping, and its bundles move away: start it again")
        self.current.drain.end()
        self.registration = msgspec.structs.replace(self.registration, draining=False)
        await self._register_again(self.current.me)

    async def _register_again(self, me: BrokerId) -> None:
        try:
            await self.world.coordination.register(me, self.registration.encode())
        except CoordinationUnavailable:
            self.note("the coordination service did not answer: the other brokers learn later what changed here")
            self._registration_pending.set()
        except (Fenced, ForeignRoot):
            self.note(f"{me} was fenced meanwhile: the next incarnation registers it")

    @property
    def current(self) -> Incarnation:
        """The running incarnation; there is one while `ready` is set."""
        assert self.incarnation is not None, "wait for `ready` first"
        return self.incarnation

    def peers(self) -> dict[str, Peer]:
        """Registered brokers by name."""
        return dict(self.membership.peers)

    def note(self, text: str) -> None:
        """Keep and log a text for people."""
        text = redact_and_shorten(text)
        self.notes.append(Note(self.notes[-1].number + 1 if self.notes else 0, self.world.wall_ms(), text))
        _log.info("%s: %s", self.settings.advertised, text)

    def _share(self, policies: Policies) -> None:
        assert self.serving is not None
        self.serving.share(frozenset(name for name, each in policies.namespaces.items() if not each.exclusive))

    def _known(self) -> Known:
        """The names and settings that policies are checked against."""
        table = self.channel.table

        def bundles_of(name: str) -> tuple[Bundle, ...]:
            namespace = table.namespace(name)
            return () if namespace is None else namespace.bundles

        return Known(self.membership.peers.keys(), table.namespaces(), bundles_of, self.settings)

    # --- events

    def _saw_change(self, change: Change) -> None:
        self.membership.saw_change(change, self.world.clock_s())
        if change.record.actor in self.membership.suspected:
            self._judge_soon()
        self.seen.moves.saw(change)
        if change.record.action in (Action.AMEND, Action.AGREE):
            self._members_changed()
            self._watch_agreement()

    def _watch_agreement(self) -> None:
        """End the incarnation if the agreement has changed, before any later record can prove anything."""
        if self.incarnation is not None and (why := self.agreeing.broken()) is not None:
            self.note(f"{self.incarnation.me} ends: {why}")
            self.incarnation.fence()

    def _missed_changes(self, partition: int) -> None:
        self.note(f"fell behind the trimmed log: partition {partition} was loaded from a snapshot")
        self.membership.missed_changes(self.world.clock_s())
        self.seen.moves.missed(partition)
        self._watch_agreement()

    def _members_changed(self) -> None:
        coordination = self.world.coordination
        self.membership.saw_members(coordination.members, coordination.connection, self.world.clock_s())
        self.processes.saw(self.membership.peers, self.world.wall_ms())
        codecs = [peer.registration.codec for peer in self.membership.peers.values()]
        oldest = AGREEING_VERSION if self.agreeing.has_begun else OLDEST_VERSION
        self.channel.write_version = max(oldest, min([self.registration.codec, *codecs]))
        self._judge()

    def _judge_soon(self) -> None:
        """Judge once for all suspicions that were read together: when a rack dies there are hundreds."""
        if not self._judging:
            self._judging = True
            asyncio.get_running_loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._judging = False
        suspicions = [(a.observer, a.suspect) for a in self.views.suspicions.values()]
        self.membership.judge(suspicions, self.world.clock_s())
        self._wake()

    def _wake(self) -> None:
        if self.incarnation is not None:
            self.incarnation.members_changed()
