"""The agent's shell: feeds accepted changes to its core and performs the effects, in order, each within its time-out.

`Serve` and `Stop` take effect in the loop iteration in which the record was read. Hooks and publishes run in tasks of
their own, so one slow bundle delays no other. Hooks of one bundle, and of overlapping ranges (bundles before and after
a split or merge), run one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, assert_never

from structlog.contextvars import bind_contextvars

from loadmanager.broker.agent.core import AgentCore, in_order
from loadmanager.broker.agent.effects import (
    Abandon,
    Acquire,
    AskKeys,
    Effect,
    Prepare,
    Publish,
    Release,
    Serve,
    Stand,
    Stop,
)
from loadmanager.broker.agent.hooks import HookEnded, Hooks, HookTimeouts, not_told
from loadmanager.broker.agent.publishing import Publisher
from loadmanager.broker.agent.turns import Turns
from loadmanager.broker.hosting import HostRunner
from loadmanager.broker.serving import Serving
from loadmanager.model.host import BundleHost, BundleLoad, Destination
from loadmanager.strategies.splitting.cutting import UNBOUNDED, Bounds
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId, Token
from statechannel.law.verdict import Change, Ownership
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import Turnstile

HOOKS_AT_ONCE = 25
"""Hooks that begin in one turn of the loop."""

H = TypeVar("H", Prepare, Acquire, Release, Abandon)


class Agent:
    """Acts for one incarnation. Keep `running()` open; `fence()` when the incarnation is over."""

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        serving: Serving,
        host: BundleHost,
        runner: HostRunner,
        timeouts: HookTimeouts,
        destination: Callable[[BrokerId], Destination],
        note: Callable[[str], None],
        load_of: Callable[[Bundle], BundleLoad] = lambda _: BundleLoad(),
        bounds_of: Callable[[Bundle], Bounds] = lambda _: UNBOUNDED,
        hook_ended: HookEnded = not_told,
        fields_of: Callable[[Bundle], Mapping[str, str]] = lambda bundle: {"bundle": str(bundle)},
    ) -> None:
        self.core = AgentCore(me)
        self._channel = channel
        self._serving = serving
        self.hooks = self._hooks = Hooks(host, runner, timeouts, destination, note, hook_ended)
        self._load_of, self._bounds_of = load_of, bounds_of
        self._fields_of = fields_of
        self._tasks: asyncio.TaskGroup | None = None
        self._asking_keys: set[tuple[Bundle, int]] = set()
        self._turns = Turns(lambda bundle: channel.table.get(bundle) is not None)
        self._over = False
        self._turnstile = turnstile = Turnstile(HOOKS_AT_ONCE)
        self._publisher = Publisher(
            me, channel, lambda: self._over, note, self._hooks.vacated, self._spawn, lambda: bool(turnstile.waiting)
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Agent]:
        """Act on every record that names us: first those in the table, then new ones."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._channel.listen(self._changed)
            self._channel.replica.on_reload(self._reloaded)
            self._look_again(range(self._channel.table.partitions))
            try:
                yield self
            finally:
                self._over = True
                self._channel.unlisten(self._changed)
                self._channel.replica.off_reload(self._reloaded)
                self._serving.end_all()
                self._perform(self.core.fence())  # bundles still here after the drain's time-out
                self._tasks = None

    def fence(self) -> None:
        """This incarnation is not current any more: stop serving at once, and tell the host to abandon."""
        self._over = True
        self._serving.end_all()
        self._perform(self.core.fence())

    def lapsed(self, partitions: Collection[int]) -> None:
        """Our proofs for these partitions have run out: the host must stop serving their exclusive bundles."""
        exclusive = self._serving.exclusive
        self._each_hosted(partitions, lambda bundle: self.core.suspend(bundle) if exclusive(bundle.namespace) else [])

    def renewed(self, partitions: Collection[int]) -> None:
        """Our proofs for these partitions are fresh again: the host acquires the bundles that are still ours."""
        self._each_hosted(partitions, lambda bundle: self.core.resume(bundle, self._channel.table.get(bundle)))

    def _each_hosted(self, partitions: Collection[int], decide: Callable[[Bundle], list[Effect]]) -> None:
        for bundle in self.core.hosted():
            if not self._over and self._channel.table.partition_of(bundle.namespace) in partitions:
                self._perform(decide(bundle))

    # --- events

    def _changed(self, change: Change) -> None:
        if self._over:
            return
        if change.whole is not None:
            self._came_or_went(change)
            return
        for transition in in_order(change.transitions):
            if transition.after is None:
                self._turns.went(transition.bundle)
            self._reconcile(transition.bundle)

    def _came_or_went(self, change: Change) -> None:
        """A whole namespace was created or deleted: its bundles have no holder, so only those at the host matter."""
        for bundle in change.bundles([*self.core.hosted(), *self._turns.bundles()]):
            if self._channel.table.get(bundle) is None:
                self._turns.went(bundle)
            self._reconcile(bundle)

    def _reloaded(self, partition: int) -> None:
        if not self._over:
            self._look_again({partition})

    def _look_again(self, partitions: Collection[int]) -> None:
        """Reconcile all bundles that name us or are at our host, after changes that were not announced singly."""
        table, me = self._channel.table, self.core.me
        hosted = sorted(self.core.hosted(), key=lambda b: table.get(b) is not None)  # bundles that are gone come first
        named = [*table.held_by(me, partitions), *(e.bundle for e in table.in_flight() if e.target == me)]
        for bundle in dict.fromkeys([*hosted, *named]):
            if table.partition_of(bundle.namespace) not in partitions:
                continue
            if table.get(bundle) is None:
                self._turns.went(bundle)
            self._reconcile(bundle)

    def _reconcile(self, bundle: Bundle) -> None:
        if not self._over:
            entry = self._channel.table.get(bundle)
            instead = () if entry is not None else self._in_place_of(bundle)
            self._perform(self.core.reconcile(bundle, entry, instead))

    def _in_place_of(self, gone: Bundle) -> list[Ownership]:
        """The table's entries in the range of a bundle that is gone."""
        table = self._channel.table
        namespace = table.namespace(gone.namespace)
        found: list[Ownership] = []
        position = gone.lo
        while namespace is not None and namespace.exists and position < gone.hi:
            bundle = namespace.bundle_at(position)
            entry = table.get(bundle)
            found += [] if entry is None else [entry]
            position = bundle.hi
        return found

    # --- effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Serve():
                    self._serving.begin(effect.bundle, self._token(effect.bundle, effect.token))
                case Stop():
                    self._serving.end(effect.bundle)
                case Prepare():
                    self._in_turn(effect, self._prepare)
                case Acquire():
                    self._in_turn(effect, self._acquire)
                case Release():
                    self._in_turn(effect, self._release)
                case Abandon():
                    self._abandon_over_others(effect)
                case Publish():
                    self._spawn(self._publisher.publish(effect))
                case AskKeys():
                    self._begin_asking_keys(effect)
                case _:
                    assert_never(effect)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._tasks is not None:
            try:
                return self._tasks.create_task(work)
            except RuntimeError:  # the group is ending
                self._tasks = None
        work.close()
        return None

    def _in_turn(self, effect: H, hook: Callable[[H], Coroutine[Any, Any, None]]) -> None:
        """Call a hook after all earlier hooks of the same range."""
        self._hook(effect.bundle, self._after(self._turns.before(effect.bundle), hook, effect))

    async def _after(
        self, earlier: tuple[asyncio.Task[None], ...], hook: Callable[[H], Coroutine[Any, Any, None]], effect: H
    ) -> None:
        bind_contextvars(**self._fields_of(effect.bundle))  # for what this task logs, the service's own lines too
        if earlier:
            await asyncio.wait(earlier)  # each of them has its time-out
        await self._turnstile.passed()
        await hook(effect)

    def _abandon_over_others(self, effect: Abandon) -> None:
        """Call `abandon` at once, beside a hook that runs or hangs, and again after that hook has ended."""
        ending = asyncio.current_task()  # a hook that failed, and reports it here
        if any(hook is not ending for hook in self._turns.of(effect.bundle)):
            self._hook(effect.bundle, self._abandon(effect))
        self._in_turn(effect, self._abandon)

    def _hook(self, bundle: Bundle, hook: Coroutine[Any, Any, None]) -> None:
        task = self._spawn(hook)
        if task is not None:
            self._turns.add(bundle, task)

    def _token(self, bundle: Bundle, offset: int) -> Token:
        return self._channel.table.token_at(bundle, offset)

    async def _prepare(self, effect: Prepare) -> None:
        if self.core.stands(effect.bundle, Stand.PREPARING, effect.token):  # else it moved on before its turn came
            well = await self._hooks.prepare(effect.bundle)
            self._ended(effect.bundle, lambda: self.core.prepared(effect.bundle, effect.token, not well))

    async def _acquire(self, effect: Acquire) -> None:
        if self.core.stands(effect.bundle, Stand.ACQUIRING, effect.token):
            well = await self._hooks.acquire(effect.bundle, self._token(effect.bundle, effect.token), effect.hand_off)
            self._ended(effect.bundle, lambda: self.core.acquired(effect.bundle, effect.token, not well))

    async def _release(self, effect: Release) -> None:
        if self.core.stands(effect.bundle, Stand.RELEASING, effect.token):
            well, hand_off = await self._hooks.release(effect.bundle, effect.to)
            self._ended(effect.bundle, lambda: self.core.released(effect.bundle, effect.token, hand_off, not well))

    async def _abandon(self, effect: Abandon) -> None:
        await self._hooks.abandon(effect.bundle)

    def _ended(self, bundle: Bundle, report: Callable[[], list[Effect]]) -> None:
        """A hook has ended; `report` tells the core."""
        if self._over:
            return
        self._perform(report())
        self._reconcile(bundle)
        if self._channel.table.get(bundle) is None:
            for entry in self._in_place_of(bundle):  # these may have waited for this bundle
                self._reconcile(entry.bundle)

    def _begin_asking_keys(self, effect: AskKeys) -> None:
        duty = (effect.bundle, effect.seen)
        if duty not in self._asking_keys and not self._publisher.is_at(*duty):
            self._asking_keys.add(duty)
            self._spawn(self._ask_keys(effect))

    async def _ask_keys(self, effect: AskKeys) -> None:
        keys = await self._hooks.keys(effect.bundle, effect.algorithm, self._load_of(effect.bundle))
        self._asking_keys.discard((effect.bundle, effect.seen))
        if not self._over:
            entry = self._channel.table.get(effect.bundle)
            bounds = self._bounds_of(effect.bundle)
            self._perform(self.core.keys_answered(effect.bundle, effect.seen, entry, keys, bounds))
