"""The agent: feeds accepted changes to its core and performs the effects, in order, each within its time-out.

`Serve` and `Stop` take effect in the loop iteration in which the record was read. Hooks and publishes run in tasks of
their own, so one slow bundle delays no other. Hooks of one bundle, and of overlapping ranges (bundles before and after
a split or merge), run one after the other. A record is published until it is accepted or the bundle has changed, one
at a time for each bundle and revision; asking twice is the same as asking once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, assert_never

import msgspec
from structlog.contextvars import bind_contextvars

from loadmanager.broker.agent_core import (
    Abandon,
    Acquire,
    AgentCore,
    AskKeys,
    Effect,
    Prepare,
    Publish,
    Release,
    Serve,
    Stand,
    Stop,
    in_order,
)
from loadmanager.broker.hooks import HookEnded, Hooks, HookTimeouts, HostRunner, not_told
from loadmanager.broker.serving import Serving
from loadmanager.model.host import BundleHost, BundleLoad, Destination
from loadmanager.strategies.splitting.cuts import UNBOUNDED, Bounds
from statechannel.errors import RecordTooLarge
from statechannel.law.bundle import Bundle
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Subject, Token
from statechannel.law.verdict import Change, Ownership, Unknown, Verdict
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import Turnstile

Task = asyncio.Task[None]


class Turns:
    """The running and waiting hooks by bundle. `exists` tells whether the table has a bundle at this moment."""

    def __init__(self, exists: Callable[[Bundle], bool]) -> None:
        self._exists = exists
        self._hooks: dict[Bundle, list[Task]] = {}
        self._gone: dict[str, set[Bundle]] = {}
        """By namespace, bundles with hooks that are not in the table any more."""

    def of(self, bundle: Bundle) -> tuple[Task, ...]:
        """Hooks of exactly this bundle that have not ended."""
        return tuple(self._hooks.get(bundle, ()))

    def bundles(self) -> tuple[Bundle, ...]:
        """The bundles with hooks that have not ended."""
        return tuple(self._hooks)

    def before(self, bundle: Bundle) -> tuple[Task, ...]:
        """Hooks that have not ended, of this bundle and of bundles that are gone and overlap it."""
        gone = self._gone.get(bundle.namespace, ())
        overlapping = (b for b in gone if b != bundle and b.lo < bundle.hi and bundle.lo < b.hi)
        return (*self.of(bundle), *(hook for b in overlapping for hook in self._hooks[b]))

    def add(self, bundle: Bundle, hook: Task) -> None:
        """Note a hook until it ends."""
        self._hooks.setdefault(bundle, []).append(hook)
        if not self._exists(bundle):
            self.went(bundle)
        hook.add_done_callback(lambda done: self._ended(bundle, done))

    def went(self, bundle: Bundle) -> None:
        """The bundle is not in the table any more."""
        if bundle in self._hooks:
            self._gone.setdefault(bundle.namespace, set()).add(bundle)

    def _ended(self, bundle: Bundle, hook: Task) -> None:
        hooks = self._hooks[bundle]
        hooks.remove(hook)
        if hooks:
            return
        del self._hooks[bundle]
        gone = self._gone.get(bundle.namespace, set())
        gone.discard(bundle)
        if not gone:
            self._gone.pop(bundle.namespace, None)


REPUBLISH_S = 0.2
TOGETHER = frozenset({Action.RETURN, Action.READY, Action.RELEASE})
"""Actions that one record may carry for many bundles."""

TURNS = 4
"""How many turns a record waits for more bundles while hooks wait to begin."""

Gathered = tuple[Publish, asyncio.Future[Verdict]]
"""What to publish about a bundle, and the waiter for the verdict."""


class Publisher:
    """Writes for one incarnation, until `over()`; a `release` only once `vacated` says that the service has stopped.

    `spawn` runs work until the incarnation has ended, as it does the calls of `publish`; None: it ends already.
    """

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        over: Callable[[], bool],
        note: Callable[[str], None],
        vacated: Callable[[Bundle], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        more_follow: Callable[[], bool] = lambda: False,
    ) -> None:
        self._me = me
        self._vacated = vacated
        self._spawn = spawn
        self._more_follow = more_follow
        self._channel = channel
        self._over = over
        self._note = note
        self._publishing: set[tuple[Bundle, int]] = set()
        self._gathered: dict[tuple[Action, int], list[Gathered]] = {}
        """What goes into one record at the end of this turn, by action and partition."""

    def is_at(self, bundle: Bundle, seen: int) -> bool:
        """Whether a record for the bundle at revision `seen` is being published."""
        return (bundle, seen) in self._publishing

    async def publish(self, effect: Publish) -> None:
        """Publish until there is a verdict, or another record has changed the bundle."""
        duty = (effect.bundle, effect.seen)
        if duty in self._publishing:
            return
        self._publishing.add(duty)
        try:
            while not self._over() and self._is_present(effect):
                if effect.action is Action.RELEASE and not await self._vacated(effect.bundle):
                    await asyncio.sleep(REPUBLISH_S)
                    continue
                try:
                    verdict = await self._verdict(effect)
                except RecordTooLarge as error:
                    self._note(f"{effect.bundle}: {error}")
                    effect = msgspec.structs.replace(effect, hand_off=None)
                    continue
                if not isinstance(verdict, Unknown):
                    return
                await asyncio.sleep(REPUBLISH_S)
        finally:
            self._publishing.discard(duty)

    async def _verdict(self, effect: Publish) -> Verdict:
        """The verdict of the record that carries it, perhaps with other bundles; raises as `Channel.publish`."""
        if effect.action not in TOGETHER or effect.hand_off is not None or effect.boundaries or effect.reason:
            return await self._channel.publish(self._record([effect]))
        loop = asyncio.get_running_loop()
        key = effect.action, self._channel.table.partition_of(effect.bundle.namespace)
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = []
            loop.call_soon(self._send, key, TURNS)
        verdict: asyncio.Future[Verdict] = loop.create_future()
        gathered.append((effect, verdict))
        return await verdict

    def _send(self, key: tuple[Action, int], turns: int) -> None:
        if turns and len(self._gathered[key]) < BUNDLES_A_RECORD and self._more_follow():
            asyncio.get_running_loop().call_soon(self._send, key, turns - 1)
            return
        gathered = self._gathered.pop(key)
        for begin in range(0, len(gathered), BUNDLES_A_RECORD):
            some = gathered[begin : begin + BUNDLES_A_RECORD]
            if self._spawn(self._send_some(some)) is None:
                _settle(some, Unknown("", "this incarnation ends"))

    async def _send_some(self, some: Sequence[Gathered]) -> None:
        wanted = [(effect, verdict) for effect, verdict in some if not verdict.done()]  # else nothing waits any more
        if not wanted:
            return
        found: Verdict | Exception
        try:
            found = await self._channel.publish(self._record([effect for effect, _ in wanted]))
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            found = error
        _settle(wanted, found)

    def _record(self, effects: Sequence[Publish]) -> Record:
        """The record of one effect, or of several that differ only in their bundles."""
        first = effects[0]
        return Record(
            id="",
            action=first.action,
            actor=self._me,
            subjects=tuple(Subject(effect.bundle, effect.seen, effect.hand_off) for effect in effects),
            boundaries=first.boundaries,
            reason=first.reason,
        )

    def _is_present(self, effect: Publish) -> bool:
        entry = self._channel.table.get(effect.bundle)
        return entry is not None and entry.revision == effect.seen


def _settle(some: Sequence[Gathered], found: Verdict | Exception) -> None:
    for _, verdict in some:
        if verdict.done():
            continue
        if isinstance(found, Exception):
            verdict.set_exception(found)
        else:
            verdict.set_result(found)


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
