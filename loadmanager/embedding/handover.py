"""Hands work from a broker's endpoints to its control loop, and results back: two threads, with bounded queues.

An endpoint may read `node` as other threads may: the ownership table, `serving`, `ready`, the frozen values. For
everything else it asks the control loop. Any amount of work wakes that loop only once and begins in small portions, so
that proofs are renewed in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar, cast

from loadmanager.broker.node import Node
from loadmanager.errors import Unavailable
from statechannel.runtime.tasks import Turnstile

T = TypeVar("T")

HANDED_AT_MOST = 4_096
"""Requests that may wait to begin; further ones get Unavailable."""

LIGHT_A_TURN = 64
"""Light requests that begin in one turn of the control loop; of others one does."""

ANSWERED_A_TURN = 1
"""Answers of other requests that the endpoints' loop gets in one of its turns: encoding one may take milliseconds."""

BEGUN_WITHIN_S = 5.0
LAST_WORDS_S = 0.3
PIECES_AHEAD = 16
LEAVING = "this broker is leaving, or has left: ask another one"


class _Asked(Generic[T]):
    """One request. `answer` belongs to the endpoints' loop, the rest to the control loop."""

    __slots__ = ("answer", "context", "light", "task", "told", "unwanted", "work")

    def __init__(self, work: Callable[[], Awaitable[T]], answer: asyncio.Future[T], light: bool) -> None:
        self.work = work
        self.answer = answer
        self.light = light
        self.context = copy_context()
        """The context of the request's log lines; the loop would run its tasks in that of the call that woke it."""
        self.task: asyncio.Task[Any] | None = None
        self.told = False
        self.unwanted = False

    def give_up(self) -> None:
        """On the control loop: cancel it, since no caller waits for it any more."""
        self.unwanted = True
        if self.task is not None:
            self.task.cancel()


class Handover:
    """Construct, end and close it on the control loop; `open`, `ask` and `stream` on the endpoints' loop."""

    def __init__(self, node: Node, bind: str = "", handed_at_most: int = HANDED_AT_MOST) -> None:
        self.node = node
        self.bind = bind
        """The address on which the endpoint listens, as it was given: `host:port`, or "" if unknown."""
        self.control = asyncio.get_running_loop()
        self._endpoints: asyncio.AbstractEventLoop | None = None
        self._handed_at_most = handed_at_most
        self._inbox: deque[_Asked[Any]] = deque()
        self._outbox: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._taking = self._telling = self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pumps: set[_Pump[Any]] = set()
        self._less = asyncio.Event()
        self._answered = Turnstile(ANSWERED_A_TURN)
        self._endings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.refused = 0
        """The number of requests that found no room, or did not begin in time."""

    # --- on the endpoints' loop

    @property
    def waiting(self) -> int:
        """The number of requests that have not begun."""
        return len(self._inbox)

    def open(self) -> None:
        """Allow `ask` and `stream` on the running loop."""
        self._endpoints = asyncio.get_running_loop()

    async def ask(self, work: Callable[[], Awaitable[T]], *, light: bool = False, first: bool = False) -> T:
        """Run `work()` on the control loop; returns or raises as it does. Cancelling the call cancels the work.

        `light`: it takes a fraction of a millisecond. `first`: it goes before all waiting requests, even without room.
        Raises Unavailable if too many requests wait, the control loop does not turn, or this broker leaves.
        """
        if self._closed:
            raise Unavailable(LEAVING)
        if len(self._inbox) >= self._handed_at_most and not first:
            self.refused += 1
            raise Unavailable(f"{self._handed_at_most} requests wait here for their turn already; try again")
        assert self._endpoints is not None, "open it first"
        asked = _Asked(work, cast("asyncio.Future[T]", self._endpoints.create_future()), light)
        late = self._endpoints.call_later(BEGUN_WITHIN_S, self._late, asked)
        (self._inbox.appendleft if first else self._inbox.append)(asked)
        if not self._taking:
            self._taking = True
            self._wake_control(self._take)
        try:
            answer = await asked.answer
        except asyncio.CancelledError:
            with suppress(Unavailable):
                self._wake_control(asked.give_up)
            raise
        finally:
            late.cancel()
        if not light:
            await self._answered.passed()
        return answer

    async def stream(self, source: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """The items of an async generator that runs on the control loop, at most `PIECES_AHEAD` of us. Close it."""
        pump = await self.ask(lambda: self._pump(source), light=True)
        try:
            while pieces := await self.ask(pump.some, light=True):
                for piece in pieces:
                    yield piece
        finally:
            with suppress(Unavailable):
                self._wake_control(partial(self._stop, pump))

    def _late(self, asked: _Asked[Any]) -> None:
        if asked.task is None and not asked.answer.done():
            self.refused += 1
            why = f"this broker's control loop has not turned for {BEGUN_WITHIN_S:g} s; ask another one, or try again"
            asked.answer.set_exception(Unavailable(why))
            with suppress(Unavailable):
                self._wake_control(asked.give_up)

    def _wake_control(self, call: Callable[[], None]) -> None:
        try:
            self.control.call_soon_threadsafe(call)
        except RuntimeError:  # it is closed
            raise Unavailable(LEAVING) from None

    def _tell(self) -> None:
        self._telling = False
        while self._outbox:
            answer, result, error = self._outbox.popleft()
            if answer.done():
                continue
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

    # --- on the control loop

    def at_end(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `ending` on the control loop when the endpoints begin to close, to end work behind requests."""
        self._endings.append(ending)

    async def end(self) -> None:
        """Run the endings. Requests under way may still end by themselves."""
        while self._endings:
            await self._endings.pop()()

    async def close(self) -> None:
        """Take no more requests; those that still wait after `LAST_WORDS_S` get Unavailable."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while self._tasks or self._pumps:
                    self._less.clear()
                    await self._less.wait()
        self.abandon()

    def abandon(self) -> None:
        """As `close`, without waiting."""
        self._closed = True
        self._take()
        for task in self._tasks:
            task.cancel()

    def _take(self) -> None:
        """Begin waiting requests: some light ones, or one other. The rest follows in the next turns."""
        self._taking = False
        room = LIGHT_A_TURN
        while self._inbox and (room > 0 or self._closed):
            asked = self._inbox.popleft()
            if asked.unwanted:
                continue
            if self._closed:
                self._reply(asked, None, Unavailable(LEAVING))
                continue
            room -= 1 if asked.light else LIGHT_A_TURN
            asked.task = self.control.create_task(self._run(asked), context=asked.context)
            self._tasks.add(asked.task)
            asked.task.add_done_callback(partial(self._done, asked))
        if self._inbox and not self._taking:
            self._taking = True
            self.control.call_soon(self._take)

    async def _run(self, asked: _Asked[Any]) -> None:
        """Run the work and reply at once: a task's callback would come one turn of the loop later."""
        try:
            result = await asked.work()
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            self._reply(asked, None, error)
        else:
            self._reply(asked, result, None)

    def _done(self, asked: _Asked[Any], task: asyncio.Task[Any]) -> None:
        """Reply also for a cancelled task, perhaps one that had not begun: we close, or no caller waits any more."""
        if not asked.told:
            self._reply(asked, None, Unavailable(LEAVING))
        self._forget(task)

    def _reply(self, asked: _Asked[Any], result: Any, error: Exception | None) -> None:
        assert self._endpoints is not None
        asked.told = True
        self._outbox.append((asked.answer, result, error))
        if not self._telling:
            self._telling = True
            with suppress(RuntimeError):  # the endpoints have closed: no caller waits any more
                self._endpoints.call_soon_threadsafe(self._tell)

    async def _pump(self, source: Callable[[], AsyncGenerator[T, None]]) -> _Pump[T]:
        pump = _Pump(source())
        self._keep(pump.task)
        self._pumps.add(pump)
        return pump

    def _stop(self, pump: _Pump[Any]) -> None:
        """Stop a pump that is not read any more."""
        pump.task.cancel()
        self._pumps.discard(pump)
        self._less.set()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._less.set()


class _Pump(Generic[T]):
    """Runs an async generator on the control loop, at most `PIECES_AHEAD` ahead of its reader."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._pieces: asyncio.Queue[T | None] = asyncio.Queue(PIECES_AHEAD)
        self._failed: Exception | None = None
        self.task = asyncio.create_task(self._work(source))

    async def some(self) -> list[T]:
        """The items so far, at least one; empty at the end. Raises the generator's error."""
        pieces = [await self._pieces.get()]
        while not self._pieces.empty():
            pieces.append(self._pieces.get_nowait())
        if pieces[-1] is None and len(pieces) == 1 and self._failed is not None:
            raise self._failed
        if pieces[-1] is None and len(pieces) > 1:  # the end comes with the next call
            self._pieces.put_nowait(None)
        return [piece for piece in pieces if piece is not None]

    async def _work(self, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source):
            try:
                async for piece in source:
                    await self._pieces.put(piece)
            except Exception as error:  # noqa: BLE001 - it belongs to the reader
                self._failed = error
            await self._pieces.put(None)
