"""Calls a service's hooks without blocking the control loop, each within its time-out.

Coroutines run on the service's own loop, plain functions on worker threads, functions marked `at_once` on the control
loop. An iterable that a hook gives is read where the hook ran: it may read a store, raise half-way or never end. A
failure of a hook is noted and returned, never raised: the agent's core decides what follows. Any worker thread may hang
without delaying others or the process's end: they are daemons, reused when idle, and a new one starts when a call has
waited for all the others.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import msgspec

from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import (
    BundleHost,
    BundleLoad,
    Destination,
    KeyRate,
    KnowsPositions,
    KnowsRates,
    ServesElsewhere,
)
from loadmanager.settings.choices import Algorithm
from loadmanager.strategies.splitting.cuts import estimated
from statechannel.law.bundle import Bundle
from statechannel.law.record import MAX_HAND_OFF_BYTES, BrokerId, Token

AT_ONCE = 16
"""Threads that start without waiting: a burst of quick calls needs no more."""

LIMIT = 256
WAITING_LIMIT = 10_000
PATIENCE_S = 0.02
"""How long a call waits for the present threads before it gets a new one."""


class WorkersExhausted(Exception):
    """Calls that do not return have taken all threads."""


class _Call:
    """One call and its outcome."""

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.work, self.args = work, args
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.begun = False
        self.result: Any = None
        self.error: BaseException | None = None


class Workers:
    """Used from one event loop. `close()` ends idle threads at once, and the others when they return."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        """Calls that have not returned, whether or not a caller still waits for them."""
        self._closed = False

    @property
    def exhausted(self) -> bool:
        """Whether a further call would have to wait for a call that does not return."""
        return self._threads >= self._limit <= self._unfinished

    async def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run `work(*args)` on a thread; returns or raises as it does. A call cancelled before it began is not run.

        Raises WorkersExhausted at once if too many calls wait, RuntimeError after `close()`.
        """
        if self._closed:
            raise RuntimeError("the broker has left, and calls no hook any more")
        if self._unfinished >= self._limit + WAITING_LIMIT:
            raise WorkersExhausted(f"{self._limit} worker threads hang, and {WAITING_LIMIT} calls wait for one")
        call = _Call(work, args)
        self._unfinished += 1
        self._waiting.put(call)
        if self._threads < self._unfinished:
            if self._threads < AT_ONCE:
                self._grow(call)
            else:
                call.loop.call_later(PATIENCE_S, self._grow, call)
        await call.ended
        if call.error is not None:
            raise call.error
        return call.result

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True
        for _ in range(self._threads):
            self._waiting.put(None)

    def _grow(self, call: _Call) -> None:
        if not call.begun and self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._work, name=f"bundle-host-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.begun = True
            if not call.ended.cancelled():
                try:
                    call.result = call.work(*call.args)
                except BaseException as error:  # noqa: BLE001 - the caller gets it; the thread lives on
                    call.error = error
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                call.loop.call_soon_threadsafe(self._finished, call)
            del call  # else an idle thread would keep its arguments alive

    def _finished(self, call: _Call) -> None:
        self._unfinished -= 1
        if not call.ended.done():
            call.ended.set_result(None)


Hook = TypeVar("Hook", bound=Callable[..., Any])

_AT_ONCE = "_loadmanager_at_once"


class HookFailed(Exception):
    """A hook raised, or did not return in time; the message names the hook and the error."""


def at_once(hook: Hook) -> Hook:
    """Mark a plain function that takes microseconds and never waits, not even for a lock.

    It is called on the control loop itself, without a time-out. Raises TypeError for a coroutine function.
    """
    if inspect.iscoroutinefunction(hook):
        raise TypeError(f"{_name(hook)} is a coroutine function; only a plain one can be called at once")
    setattr(hook, _AT_ONCE, True)
    return hook


class HostRunner:
    """Calls hooks. `loop` is the service's event loop, None for the calling loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, workers: Workers | None = None) -> None:
        self._loop = loop
        self._workers = workers or Workers()

    async def call(self, hook: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Call a hook; returns its result. Raises HookFailed."""
        if getattr(hook, _AT_ONCE, False) is True:
            return _called(hook, args)
        budget = asyncio.timeout(timeout_s)
        try:
            async with budget:
                if inspect.iscoroutinefunction(hook):
                    return await self._call_async(hook(*args))
                return await self._call_sync(hook, args)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise HookFailed(f"{_name(hook)} was cancelled by the service") from None
        except HookFailed:
            raise
        except Exception as error:
            if budget.expired() and isinstance(error, TimeoutError):
                full = "; all worker threads are taken by hooks that hang" if self._workers.exhausted else ""
                raise HookFailed(f"{_name(hook)} did not return within {timeout_s:g} s{full}") from None
            raise _raised(hook, error) from error

    async def _call_async(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await work
        if self._loop.is_closed():
            work.close()
            raise HookFailed("the service's event loop is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _call_sync(self, hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            result = await self._workers.call(hook, *args)
        except (SystemExit, KeyboardInterrupt) as error:  # raised by the service: must not end the control plane
            raise _raised(hook, error) from error
        if inspect.iscoroutine(result):  # a plain function that returns a coroutine: run it on the service's loop
            return await self._call_async(result)
        return await cast("Any", result) if inspect.isawaitable(result) else result

    def close(self) -> None:
        """End the worker threads; a hook that hangs keeps its thread until the process ends."""
        self._workers.close()


def _called(hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return hook(*args)
    except Exception as error:
        raise _raised(hook, error) from error


def _raised(hook: Callable[..., Any], error: BaseException) -> HookFailed:
    return HookFailed(f"{_name(hook)} raised {type(error).__name__}: {error}")


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))


POSITIONS_LOOKED_AT = 20_000
"""Of more positions an even sample is taken, because the cuts are computed on the control loop."""

MOST_POSITIONS = 100_000_000
"""A longer iterable is given up: nothing else would end its thread."""


def sampling(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, called in the same way, but returning a list.

    It raises what reading the positions raises, and ValidationError if they are no integers.
    """
    return _reading(hook, sampled)


def rating(hook: Callable[..., Any]) -> Callable[..., Any]:
    """As `sampling`, for a hook that gives rates of keys: the list has the busiest ones."""
    return _reading(hook, busiest)


def _reading(hook: Callable[..., Any], read: Callable[[Iterable[Any]], list[Any]]) -> Callable[..., Any]:
    @functools.wraps(hook)
    async def awaited(*args: Any) -> list[Any]:
        return read(await hook(*args))

    @functools.wraps(hook)
    def plain(*args: Any) -> Any:
        answer = hook(*args)
        return _read_later(answer, read) if inspect.isawaitable(answer) else read(answer)

    return awaited if inspect.iscoroutinefunction(hook) else plain


async def _read_later(answer: Awaitable[Iterable[Any]], read: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    return read(await answer)


def busiest(keys: Iterable[Any]) -> list[KeyRate]:
    """At most POSITIONS_LOOKED_AT keys, those with the most messages and bytes.

    Raises ValidationError, or ValueError for more than MOST_POSITIONS.
    """
    rated = (msgspec.convert(key, KeyRate) for key in _bounded(keys))
    return heapq.nlargest(POSITIONS_LOOKED_AT, rated, key=lambda key: (key.rate_msg_s, key.rate_bytes_s))


def _bounded(keys: Iterable[Any]) -> Iterator[Any]:
    for number, key in enumerate(keys):
        if number >= MOST_POSITIONS:
            raise ValueError(f"more than {MOST_POSITIONS:,} keys; give only the busiest")
        yield key


def sampled(positions: Iterable[int]) -> list[int]:
    """At most POSITIONS_LOOKED_AT positions. Raises ValidationError, or ValueError for more than MOST_POSITIONS."""
    if isinstance(positions, Sequence):
        every = max(1, -(-len(positions) // POSITIONS_LOOKED_AT))
        return msgspec.convert(list(positions[::every]), list[int])
    return msgspec.convert(_thinned(positions), list[int])


def _thinned(positions: Iterable[int]) -> list[int]:
    """Every n-th position; n doubles whenever the list is full, since their number is known only at the end."""
    kept: list[int] = []
    every = 1
    for number, position in enumerate(positions):
        if number % every == 0:
            if len(kept) == POSITIONS_LOOKED_AT:
                del kept[1::2]
                every *= 2
                if number % every:
                    continue
            kept.append(position)
        if number >= MOST_POSITIONS:
            raise ValueError(f"more than {MOST_POSITIONS:,} positions; give a sample of them")
    return kept


class HookTimeouts(msgspec.Struct, frozen=True):
    """How long each hook may take; `positions` as long as `prepare`, `abandon` as long as `release`."""

    prepare_s: float
    acquire_s: float
    release_s: float


HookEnded = Callable[[str, Bundle, float, bool], None]
"""Gets a hook's name, its bundle, the seconds that it took, and whether it succeeded."""


def not_told(_hook: str, _bundle: Bundle, _took_s: float, _well: bool) -> None:
    """Does nothing: for callers without an observer."""


class Hooks:
    """One service's hooks. `destination` gives the addresses of a broker's service; `ended` is told of each call."""

    def __init__(
        self,
        host: BundleHost,
        runner: HostRunner,
        timeouts: HookTimeouts,
        destination: Callable[[BrokerId], Destination],
        note: Callable[[str], None],
        ended: HookEnded = not_told,
    ) -> None:
        self._host = host
        self._runner = runner
        self._timeouts = timeouts
        self._destination = destination
        self._note = note
        self._ended = ended

    def set(self, timeouts: HookTimeouts) -> None:
        """Use these time-outs for hooks that begin from now on."""
        self._timeouts = timeouts

    async def prepare(self, bundle: Bundle) -> bool:
        """Call `prepare`. Returns True if it succeeded."""
        return await self._went_well("prepare", self._host.prepare, bundle, timeout_s=self._timeouts.prepare_s)

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> bool:
        """Call `acquire`. Returns True if it succeeded."""
        timeout_s = self._timeouts.acquire_s
        return await self._went_well("acquire", self._host.acquire, bundle, token, hand_off, timeout_s=timeout_s)

    async def abandon(self, bundle: Bundle) -> None:
        """Call `abandon`; its outcome does not matter."""
        await self._went_well("abandon", self._host.abandon, bundle, timeout_s=self._timeouts.release_s)

    async def release(self, bundle: Bundle, to: BrokerId | None) -> tuple[bool, bytes | None]:
        """Call `release`. Returns whether it succeeded, and the hand-off."""
        there = None if to is None else self._destination(to)
        try:
            with self._timed("release", bundle):
                answer: object = await self._runner.call(
                    self._host.release, bundle, there, timeout_s=self._timeouts.release_s
                )
        except HookFailed as error:
            self._note(f"{bundle}: {error}; its host was told to abandon it, and it moves without a hand-off")
            return False, None
        return True, self._checked(bundle, answer)

    async def vacated(self, bundle: Bundle) -> bool:
        """Whether the service has stopped serving the bundle; waits for that if it is another process."""
        if not isinstance(self._host, ServesElsewhere):
            return True
        try:
            await self._runner.call(self._host.vacated, bundle, timeout_s=self._timeouts.release_s)
        except HookFailed as error:
            self._note(f"{bundle}: {error}; it is not given up before its service has stopped")
            return False
        return True

    def _checked(self, bundle: Bundle, hand_off: object) -> bytes | None:
        if hand_off is None:
            return None
        if isinstance(hand_off, bytes) and len(hand_off) <= MAX_HAND_OFF_BYTES:
            return hand_off
        self._note(f"{bundle}: release must return None or at most {MAX_HAND_OFF_BYTES} bytes; hand-off dropped")
        return None

    async def keys(self, bundle: Bundle, algorithm: str, load: BundleLoad) -> list[KeyRate] | NoCuts:
        """The bundle's keys, for cuts by this algorithm, or why they are unknown.

        Rates that the service does not report are estimated from `load`, the bundle's.
        """
        if algorithm != Algorithm.TOPIC_COUNT and isinstance(self._host, KnowsRates):
            return await self._asked(rating(self._host.rates), bundle)
        positions = await self.positions(bundle)
        if algorithm == Algorithm.TOPIC_COUNT:
            if isinstance(positions, NoCuts) and isinstance(self._host, KnowsRates):
                return await self._asked(rating(self._host.rates), bundle)
            return positions if isinstance(positions, NoCuts) else [KeyRate(position) for position in positions]
        if isinstance(positions, NoCuts):
            return estimated(bundle, load) or positions
        return estimated(bundle, load, positions)

    async def _asked(self, hook: Callable[..., object], bundle: Bundle) -> list[KeyRate] | NoCuts:
        try:
            answer: Any = await self._runner.call(hook, bundle, timeout_s=self._timeouts.prepare_s)
        except HookFailed as error:
            return NoCuts(f"its service did not give the loads of its keys: {error}")
        return answer

    async def positions(self, bundle: Bundle) -> list[int] | NoCuts:
        """The positions of the bundle's keys, or why they are unknown."""
        if not isinstance(self._host, KnowsPositions):
            return NoCuts(
                "its service does not tell where its keys are (it has no `positions`): "
                "split into equal ranges, or at given positions"
            )
        try:
            return await self._runner.call(sampling(self._host.positions), bundle, timeout_s=self._timeouts.prepare_s)
        except HookFailed as error:
            return NoCuts(f"its service did not tell where its keys are: {error}")

    async def _went_well(
        self, name: str, hook: Callable[..., object], bundle: Bundle, *args: object, timeout_s: float
    ) -> bool:
        try:
            with self._timed(name, bundle):
                await self._runner.call(hook, bundle, *args, timeout_s=timeout_s)
        except HookFailed as error:
            self._note(f"{bundle}: {error}")
            return False
        return True

    @contextmanager
    def _timed(self, name: str, bundle: Bundle) -> Generator[None]:
        """Report how long a call took; a cancelled one has no outcome."""
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        try:
            yield
        except HookFailed:
            self._ended(name, bundle, clock_s() - began_s, False)
            raise
        self._ended(name, bundle, clock_s() - began_s, True)
