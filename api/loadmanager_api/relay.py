"""One watch of the control loop for all clients that watch the same: each event is found and encoded once.

A client first has a watch of its own, up to the present. It goes on here at the position where that one ended: all
events before it were sent, and none of the later ones. What a client does not take in time is dropped, and its stream
ends. Belongs to the endpoints' loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import copy_context

import msgspec
from structlog.contextvars import unbind_contextvars

from loadmanager.channel.revision import Revision
from loadmanager.channel.watch import Piece, Watch, Watching
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager_api.watched import encode, greeting

LINGER_S, LINGER_EACH_S = 0.01, 0.00006
"""How long an event waits for further ones, and for each client: a client costs one wake-up for all of them."""

KEPT_BYTES = 32 << 20
SENT_AT_ONCE_BYTES = 256 << 10
BEGINNINGS_AT_MOST = 16
"""Clients that are brought up to the present at the same time; the next ones wait."""

SLOW = "too slow: the next changes were dropped here; go on from `resume`"


class _Event(msgspec.Struct, frozen=True, gc=False):
    position: int
    revision: Revision | None
    data: bytes


class _Part(msgspec.Struct, frozen=True, gc=False):
    """The events with these numbers in one piece of bytes; `revision` is the last one in them."""

    begin: int
    end: int
    revision: Revision | None
    data: bytes


class Relay:
    """The shared watch of one namespace, or of all. Events are numbered."""

    def __init__(self, handover: Handover, watching: Watching, namespace: str | None) -> None:
        self.clients = 0
        self._events: deque[_Event] = deque()
        self._first = self._bytes = 0
        self._end: Piece | None = None
        self.over = False
        """Whether no further events will come."""
        self._telling = False
        self._started, self._news = asyncio.Event(), asyncio.Event()
        self._part = _Part(0, 0, None, b"")
        """What a client was sent last: the others mostly get the same."""
        self._generation = watching.revision().generation
        shared = copy_context()  # what it logs is caused by no single client
        shared.run(unbind_contextvars, "principal")
        self._task = asyncio.create_task(self._run(handover, watching, namespace), context=shared)

    async def next(self) -> int:
        """The number of the next event; whatever happens from now on has that number or a later one."""
        await self._started.wait()
        return self._until

    def close(self) -> None:
        """Nobody listens any more."""
        self._task.cancel()

    async def from_(self, number: int, joining: Piece) -> AsyncGenerator[bytes, None]:
        """All from an event on, without what is before the position of `joining`; ends with an event `end`."""
        told = joining.revision
        while await self._come(number):
            if number < self._first:
                yield encode(Piece("end", why=SLOW, resume=told), self._generation)
                return
            if self._events[number - self._first].position < joining.position:
                number += 1
                continue
            part = self._part_from(number)
            number, told = part.end, part.revision or told
            yield part.data
        if self._end is not None:
            resume = told if self._end.position < joining.position else self._end.resume
            yield encode(Piece("end", why=self._end.why, resume=resume), self._generation)

    # --- inside

    @property
    def _until(self) -> int:
        return self._first + len(self._events)

    async def _come(self, number: int) -> bool:
        """Wait for the event; False if it will not come."""
        while number >= self._until and not self.over:
            await self._news.wait()
        return number < self._until

    def _part_from(self, number: int) -> _Part:
        if self._part.begin != number or self._part.end == number:
            found: list[bytes] = []
            revision, size = None, 0
            for event in (self._events[n - self._first] for n in range(number, self._until)):
                found.append(event.data)
                revision, size = event.revision or revision, size + len(event.data)
                if size >= SENT_AT_ONCE_BYTES:
                    break
            self._part = _Part(number, number + len(found), revision, b"".join(found))
        return self._part

    async def _run(self, handover: Handover, watching: Watching, namespace: str | None) -> None:
        try:
            with suppress(Unavailable):  # the broker has left
                async with aclosing(handover.stream(lambda: watching.from_now(namespace).pieces())) as pieces:
                    async for piece in pieces:
                        self._take(piece)
        finally:
            self.over = True
            self._started.set()
            self._tell()

    def _take(self, piece: Piece) -> None:
        self._started.set()  # it begins with a piece that has no kind
        if piece.kind == "end":
            self._end = piece
            return
        event = _Event(piece.position, piece.revision, encode(piece, self._generation))
        self._events.append(event)
        self._bytes += len(event.data)
        while self._bytes > KEPT_BYTES and len(self._events) > 1:
            self._bytes -= len(self._events.popleft().data)
            self._first += 1
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_later(LINGER_S + LINGER_EACH_S * self.clients, self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._news.set()
        if not self.over:
            self._news.clear()


class Relays:
    """The relays of one broker's endpoints, each kept while a watch listens to it. `limits.py` bounds the clients."""

    def __init__(self, handover: Handover, watching: Watching) -> None:
        self._handover = handover
        self._watching = watching
        self._relays: dict[str | None, Relay] = {}
        self._beginning = asyncio.Semaphore(BEGINNINGS_AT_MOST)

    async def begin(self, namespace: str | None, since: str | None) -> Watch:
        """A client's own watch. Raises Unavailable, and what `Watching.begin` raises."""
        return await self._handover.ask(lambda: self._watching.begin(namespace, since))

    async def events(self, namespace: str | None, begun: Watch) -> AsyncGenerator[bytes, None]:
        """The bytes of the whole stream: what `begun` has until the present, then what all get."""
        yield greeting()
        generation = self._watching.revision().generation
        async with self._listening(namespace) as relay:
            last = None
            async with self._beginning:
                number = await relay.next()
                async with aclosing(self._handover.stream(begun.beginning)) as pieces:
                    async for last in pieces:
                        yield encode(last, generation)
            if last is not None and last.kind is None:
                async with aclosing(relay.from_(number, last)) as events:
                    async for event in events:
                        yield event

    @asynccontextmanager
    async def _listening(self, namespace: str | None) -> AsyncGenerator[Relay]:
        relay = self._relays.get(namespace)
        if relay is None or relay.over:
            relay = self._relays[namespace] = Relay(self._handover, self._watching, namespace)
        relay.clients += 1
        try:
            yield relay
        finally:
            relay.clients -= 1
            if relay.clients == 0:
                relay.close()
                if self._relays.get(namespace) is relay:
                    del self._relays[namespace]
