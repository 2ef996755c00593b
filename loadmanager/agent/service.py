"""The agent's shell: feeds accepted changes to its core and performs the effects, in order, each within its time-out.

`Serve` and `Stop` take effect in the same loop iteration in which the record was read; everything that waits (hooks,
publishes) runs in tasks of its own, so one slow bundle holds up no other. Hooks of one bundle run one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, assert_never

import msgspec

from loadmanager.agent.core import Abandon, Acquire, AgentCore, Effect, Prepare, Publish, Release, Serve, Stand, Stop
from loadmanager.host import BundleHost, Destination
from loadmanager.hosting import HookFailed, HostRunner
from loadmanager.serving import Serving
from statechannel.bundle import Bundle
from statechannel.errors import RecordTooLarge
from statechannel.record import MAX_HAND_OFF_BYTES, Broker, Record, Subject, Token
from statechannel.service import Channel
from statechannel.verdict import Change, Unknown

H = TypeVar("H", Prepare, Acquire, Release, Abandon)

REPUBLISH_S = 0.2
NOTES_KEPT = 200


class HookTimeouts(msgspec.Struct, frozen=True):
    """How long each hook may take."""

    prepare_s: float
    acquire_s: float
    release_s: float


class Agent:
    """Acts for one incarnation. Keep `running()` open; `fence()` when the incarnation is over."""

    def __init__(
        self,
        me: Broker,
        channel: Channel,
        serving: Serving,
        host: BundleHost,
        runner: HostRunner,
        timeouts: HookTimeouts,
        destination: Callable[[Broker], Destination],
        note: Callable[[str], None],
    ) -> None:
        self.core = AgentCore(me)
        self._channel = channel
        self._serving = serving
        self._host = host
        self._runner = runner
        self._timeouts = timeouts
        self._destination = destination
        self._note = note
        self._tasks: asyncio.TaskGroup | None = None
        self._publishing: set[tuple[Bundle, int]] = set()
        self._hooks: dict[Bundle, list[asyncio.Task[None]]] = {}
        self._over = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Agent]:
        """Act on every record that names us: first those that are already in the table, then as they come."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._channel.listen(self._changed)
            for entry in self._channel.table:
                if self.core.me in (entry.holder, entry.target):
                    self._reconcile(entry.bundle)
            try:
                yield self
            finally:
                self._over = True
                self._channel.unlisten(self._changed)
                self._serving.end_all()
                self._perform(self.core.fence())  # what is still here when a drain ran out of time
                self._tasks = None

    def fence(self) -> None:
        """This incarnation is not current any more: serve nothing from this instant, tell the host."""
        self._over = True
        self._serving.end_all()
        self._perform(self.core.fence())

    def lapsed(self, partitions: Collection[int]) -> None:
        """Our proofs for these partitions have run out: the host stops what it serves of them."""
        self._each_hosted(partitions, self.core.suspend)

    def renewed(self, partitions: Collection[int]) -> None:
        """Our proofs for these partitions are fresh again: the host takes up what is still ours."""
        self._each_hosted(partitions, lambda bundle: self.core.resume(bundle, self._channel.table.get(bundle)))

    def _each_hosted(self, partitions: Collection[int], decide: Callable[[Bundle], list[Effect]]) -> None:
        for bundle in self.core.hosted():
            if not self._over and self._channel.table.partition_of(bundle.namespace) in partitions:
                self._perform(decide(bundle))

    # --- events

    def _changed(self, change: Change) -> None:
        if self._over:
            return
        for transition in change.transitions:
            self._reconcile(transition.bundle)

    def _reconcile(self, bundle: Bundle) -> None:
        if not self._over:
            self._perform(self.core.reconcile(bundle, self._channel.table.get(bundle)))

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
                    self._publish(effect)
                case _:
                    assert_never(effect)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._tasks is not None:
            try:
                return self._tasks.create_task(work)
            except RuntimeError:  # the group is breaking down
                self._tasks = None
        work.close()
        return None

    def _in_turn(self, effect: H, hook: Callable[[H], Coroutine[Any, Any, None]]) -> None:
        """Call a hook when all earlier ones of the same bundle have ended."""
        self._hook(effect.bundle, _after(tuple(self._hooks.get(effect.bundle, ())), hook, effect))

    def _abandon_over_others(self, effect: Abandon) -> None:
        """At once, over a hook that runs or hangs; and again when that one has ended, for what it did in the end."""
        ending = asyncio.current_task()  # a hook that failed, and reports it here
        if any(hook is not ending for hook in self._hooks.get(effect.bundle, ())):
            self._hook(effect.bundle, self._abandon(effect))
        self._in_turn(effect, self._abandon)

    def _hook(self, bundle: Bundle, hook: Coroutine[Any, Any, None]) -> None:
        task = self._spawn(hook)
        if task is not None:
            self._hooks.setdefault(bundle, []).append(task)
            task.add_done_callback(lambda done: self._hook_ended(bundle, done))

    def _hook_ended(self, bundle: Bundle, hook: asyncio.Task[None]) -> None:
        hooks = self._hooks[bundle]
        hooks.remove(hook)
        if not hooks:
            del self._hooks[bundle]

    def _token(self, bundle: Bundle, offset: int) -> Token:
        table = self._channel.table
        generation = table.genesis.generation if table.genesis else 0
        return Token(generation, table.partition_of(bundle.namespace), offset)

    async def _prepare(self, effect: Prepare) -> None:
        if not self.core.stands(effect.bundle, Stand.PREPARING, effect.token):
            return  # the bundle moved on before its turn came
        failed = await self._failed(self._host.prepare, effect.bundle, timeout_s=self._timeouts.prepare_s)
        if not self._over:
            self._perform(self.core.prepared(effect.bundle, effect.token, failed))
        self._reconcile(effect.bundle)

    async def _acquire(self, effect: Acquire) -> None:
        if not self.core.stands(effect.bundle, Stand.ACQUIRING, effect.token):
            return
        token = self._token(effect.bundle, effect.token)
        failed = await self._failed(
            self._host.acquire, effect.bundle, token, effect.hand_off, timeout_s=self._timeouts.acquire_s
        )
        if not self._over:
            self._perform(self.core.acquired(effect.bundle, effect.token, failed))
        self._reconcile(effect.bundle)

    async def _release(self, effect: Release) -> None:
        if not self.core.stands(effect.bundle, Stand.RELEASING, effect.token):
            return
        to = self._destination(effect.to) if effect.to is not None else None
        hand_off: bytes | None = None
        failed = False
        try:
            answer: object = await self._runner.call(
                self._host.release, effect.bundle, to, timeout_s=self._timeouts.release_s
            )
            hand_off = self._checked(effect.bundle, answer)
        except HookFailed as error:
            failed = True
            self._note(f"{effect.bundle}: {error}; told to abandon, moved on without a hand-off")
        if not self._over:
            self._perform(self.core.released(effect.bundle, effect.token, hand_off, failed))
        self._reconcile(effect.bundle)

    def _checked(self, bundle: Bundle, hand_off: object) -> bytes | None:
        if hand_off is None:
            return None
        if isinstance(hand_off, bytes) and len(hand_off) <= MAX_HAND_OFF_BYTES:
            return hand_off
        self._note(f"{bundle}: release must return None or at most {MAX_HAND_OFF_BYTES} bytes; hand-off dropped")
        return None

    async def _abandon(self, effect: Abandon) -> None:
        await self._failed(self._host.abandon, effect.bundle, timeout_s=self._timeouts.release_s)

    async def _failed(self, hook: Callable[..., object], bundle: Bundle, *args: object, timeout_s: float) -> bool:
        try:
            await self._runner.call(hook, bundle, *args, timeout_s=timeout_s)
        except HookFailed as error:
            self._note(f"{bundle}: {error}")
            return True
        return False

    def _publish(self, effect: Publish) -> None:
        duty = (effect.bundle, effect.seen)
        if duty not in self._publishing:
            self._publishing.add(duty)
            self._spawn(self._publish_until_moved_on(effect))

    async def _publish_until_moved_on(self, effect: Publish) -> None:
        """A verdict, of this record or of one that came first, moves the bundle on; without one, try again."""
        try:
            while not self._over and self._is_present(effect):
                record = Record(
                    id="",
                    action=effect.action,
                    actor=self.core.me,
                    subjects=(Subject(effect.bundle, effect.seen, effect.hand_off),),
                    reason=effect.reason,
                )
                try:
                    verdict = await self._channel.publish(record)
                except RecordTooLarge as error:
                    self._note(f"{effect.bundle}: {error}")
                    effect = msgspec.structs.replace(effect, hand_off=None)
                    continue
                if not isinstance(verdict, Unknown):
                    return
                await asyncio.sleep(REPUBLISH_S)
        finally:
            self._publishing.discard((effect.bundle, effect.seen))

    def _is_present(self, effect: Publish) -> bool:
        entry = self._channel.table.get(effect.bundle)
        return entry is not None and entry.revision == effect.seen


async def _after(
    earlier: tuple[asyncio.Task[None], ...], hook: Callable[[H], Coroutine[Any, Any, None]], effect: H
) -> None:
    if earlier:
        await asyncio.wait(earlier)  # each of them has its time-out
    await hook(effect)
