"""One watch of the control loop for all clients that watch the same: each event is found and encoded once.

A client is first brought up to the present. If it resumes, it gets a watch of its own; else it gets all bundles as of
one moment, shared by all clients that connect meanwhile. It then continues here, at the position where that ended: all
events before it were sent, and none of the later ones. What a client does not take in time is dropped, and its stream
ends. Belongs to the endpoints' loop.

Events are server-sent, each with a JSON object as its data. `loadmanager/channel/watch.py` decides what a watch sends;
docs/http.md describes the events. When the endpoints close, the rest is sent quickly or dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from typing import Any

import msgspec
from starlette.responses import Response
from structlog.contextvars import unbind_contextvars

from loadmanager.channel.revision import Revision
from loadmanager.channel.watch import Piece, Watch, Watching
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from statechannel.law.record import Action, Role, Token
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.runtime.tasks import Turnstile

RETRY_MS = 1_000


class WatchedBundle(msgspec.Struct, frozen=True, gc=False):
    """One bundle as it is after a change, or was before it."""

    bundle: str
    partition: int
    state: State
    owner: str | None
    incarnation: int | None
    target: str | None
    revision: int
    token: str


class WatchedStep(msgspec.Struct, frozen=True, gc=False):
    """A bundle before and after a change; null where it did not or does not exist."""

    before: WatchedBundle | None
    after: WatchedBundle | None


class WatchedChange(msgspec.Struct, frozen=True):
    """An accepted record. `more`: its next bundles follow in the next event."""

    partition: int
    offset: int
    record_id: str
    action: Action
    actor: str
    role: Role
    epoch: int
    at_ms: int
    reason: str
    cause: str
    to: str | None
    namespace: str | None
    bundles: list[WatchedStep]
    more: bool


def greeting() -> bytes:
    """The first event: after how long a client should reconnect."""
    return f"retry: {RETRY_MS}\n\n".encode()


def encode(piece: Piece, generation: int) -> bytes:
    """The bytes of one event."""
    if piece.kind is None:
        return f"id: {piece.revision}\n: nothing new\n\n".encode()
    head = b"" if piece.revision is None else f"id: {piece.revision}\n".encode()
    data = msgspec.json.encode(_data(piece, generation))
    return b"%bevent: %b\ndata: %b\n\n" % (head, piece.kind.encode(), data)


def _data(piece: Piece, generation: int) -> object:
    match piece.kind:
        case "snapshot":
            assert piece.partition is not None
            return {"bundles": [_bundle(entry, generation, piece.partition) for entry in piece.entries]}
        case "snapshot-end":
            return {"revision": str(piece.revision)}
        case "reload":
            return {"partition": piece.partition}
        case "end":
            return {"reason": piece.why, "resume": str(piece.resume) if piece.resume is not None else None}
        case _:
            return _change(piece, generation)


def _change(piece: Piece, generation: int) -> WatchedChange:
    change = piece.change
    assert change is not None
    record = change.record
    return WatchedChange(
        partition=change.partition,
        offset=change.offset,
        record_id=record.id,
        action=record.action,
        actor=str(record.actor),
        role=record.role,
        epoch=record.epoch,
        at_ms=record.at_ms,
        reason=record.reason,
        cause=record.cause,
        to=str(record.to) if record.to is not None else None,
        namespace=record.namespace,
        bundles=[
            WatchedStep(_known(t.before, generation, change.partition), _known(t.after, generation, change.partition))
            for t in piece.transitions
        ],
        more=piece.more,
    )


def _known(entry: Ownership | None, generation: int, partition: int) -> WatchedBundle | None:
    return None if entry is None else _bundle(entry, generation, partition)


def _bundle(entry: Ownership, generation: int, partition: int) -> WatchedBundle:
    holder = entry.holder
    return WatchedBundle(
        bundle=str(entry.bundle),
        partition=partition,
        state=entry.state,
        owner=holder.name if holder is not None else None,
        incarnation=holder.incarnation if holder is not None else None,
        target=entry.target.name if entry.target is not None else None,
        revision=entry.revision,
        token=str(Token(generation, partition, entry.token)),
    )


LINGER_S, LINGER_EACH_S = 0.01, 0.00006
"""How long an event waits for further ones, and for each client: a client costs one wake-up for all of them."""

KEPT_BYTES = 32 << 20
SENT_AT_ONCE_BYTES = 256 << 10
BEGINNINGS_AT_MOST = 16
"""Clients that are brought up to the present by themselves at the same time; the next ones wait."""

SENT_A_TURN = 8
"""Events of beginnings that are sent in one turn of the loop: each has up to 60 KB, which TLS encrypts."""

SHARED_BYTES, BUNDLE_BYTES = 64 << 20, 220
"""All shared beginnings at most, and about what they have for a bundle. Beyond it each client has its own."""

SHARED_S = 1.0
"""How long a beginning without readers is kept."""

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
        self.beginning: Beginning | None = None
        self.reading = asyncio.Lock()
        """Beginnings are read one after another: clients that come meanwhile share the next one."""
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
        """Stop: no listener is left."""
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


class Beginning:
    """All bundles as they were at one moment, read and encoded once for all clients that came before that, or before
    the next change."""

    def __init__(
        self, relay: Relay, handover: Handover, watching: Watching, namespace: str | None, cost_bytes: int
    ) -> None:
        self.readers = 0
        self.closed = False
        self.cost_bytes = cost_bytes
        self.number = 0
        """The relay's event to go on with. Events before the position of `last` are in the beginning."""
        self.last: Piece | None = None
        self._relay = relay
        self._watching = watching
        self._position: int | None = None
        """The broker's next event when the table was read; None: it will be."""
        self._events: list[bytes] = []
        self._news = asyncio.Event()
        shared = copy_context()
        shared.run(unbind_contextvars, "principal")
        self._task = asyncio.create_task(self._run(handover, watching, namespace), context=shared)
        self._task.add_done_callback(lambda _: self._news.set())

    @property
    def joinable(self) -> bool:
        """Whether it has, or will have, all bundles as they are now."""
        if self.closed or (self._task.done() and (self.last is None or self.last.kind is not None)):
            return False
        return self._position is None or self._position == self._watching.recent.end

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The bytes of its events. Raises what reading them raised."""
        sent = 0
        while sent < len(self._events) or not self._task.done():
            if sent < len(self._events):
                yield self._events[sent]
                sent += 1
            else:
                await self._news.wait()
        self._task.result()

    def close(self) -> None:
        """Stop: no reader is left."""
        self.closed = True
        self._task.cancel()

    async def _run(self, handover: Handover, watching: Watching, namespace: str | None) -> None:
        def begun() -> AsyncGenerator[Piece, None]:
            self._position = watching.recent.end
            return watching.from_the_table(namespace).beginning()

        generation = watching.revision().generation
        async with self._relay.reading:
            self.number = await self._relay.next()
            async with aclosing(handover.stream(begun)) as pieces:
                async for self.last in pieces:
                    self._events.append(encode(self.last, generation))
                    self._news.set()
                    self._news.clear()


class Relays:
    """The relays of one broker's endpoints, each kept while a watch listens to it. `limits.py` bounds the clients."""

    def __init__(self, handover: Handover, watching: Watching) -> None:
        self._handover = handover
        self._watching = watching
        self._relays: dict[str | None, Relay] = {}
        self._alone = asyncio.Semaphore(BEGINNINGS_AT_MOST)
        self._sending = Turnstile(SENT_A_TURN)
        self._shared_bytes = 0

    async def begin(self, namespace: str | None, since: str | None) -> Watch:
        """A client's own watch. Raises Unavailable, and what `Watching.begin` raises."""
        return await self._handover.ask(lambda: self._watching.begin(namespace, since))

    async def events(self, namespace: str | None, begun: Watch) -> AsyncGenerator[bytes, None]:
        """The bytes of the whole stream: what `begun` has until the present, then what all get."""
        yield greeting()
        async with self._listening(namespace) as relay:
            shared = self._shared(namespace, relay) if begun.since is None else None
            if shared is None:
                number, last, generation = 0, None, self._watching.revision().generation
                async with self._alone:
                    number = await relay.next()
                    async with aclosing(self._handover.stream(begun.beginning)) as pieces:
                        async for last in pieces:
                            await self._sending.passed()
                            yield encode(last, generation)
            else:
                with self._reading(shared, relay):
                    async with aclosing(shared.events()) as events:
                        async for event in events:
                            await self._sending.passed()
                            yield event
                number, last = shared.number, shared.last
            if last is not None and last.kind is None:
                async with aclosing(relay.from_(number, last)) as events:
                    async for event in events:
                        yield event

    def _shared(self, namespace: str | None, relay: Relay) -> Beginning | None:
        """The beginning for one more client of the relay; None if there is no room for one."""
        if relay.beginning is not None and relay.beginning.joinable:
            return relay.beginning
        table = self._watching.table
        found = None if namespace is None else table.namespace(namespace)
        bundles = len(table) if namespace is None else 0 if found is None else len(found.lower_bounds)
        if self._shared_bytes + bundles * BUNDLE_BYTES > SHARED_BYTES:
            return None
        relay.beginning = Beginning(relay, self._handover, self._watching, namespace, bundles * BUNDLE_BYTES)
        self._shared_bytes += relay.beginning.cost_bytes
        return relay.beginning

    @contextmanager
    def _reading(self, shared: Beginning, relay: Relay) -> Generator[None]:
        shared.readers += 1
        try:
            yield
        finally:
            shared.readers -= 1
            if not shared.readers:
                asyncio.get_running_loop().call_later(SHARED_S, self._forget, shared, relay)

    def _forget(self, shared: Beginning, relay: Relay) -> None:
        """Drop a beginning that has no readers."""
        if shared.readers or shared.closed:
            return
        shared.close()
        self._shared_bytes -= shared.cost_bytes
        if relay.beginning is shared:
            relay.beginning = None

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


LOOK_S = 6.0
"""How often silence is looked for: a comment comes after one to two of these, and clients wait longer."""

LAST_WORDS_S = 0.3


class EventStream(Response):
    """Server-sent events; `events` yields their bytes, and is closed however the answer ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], closing: asyncio.Event) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._closing = closing
        self._silent = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - ASGI's signature
        sending = asyncio.ensure_future(self._send_all(send))
        others = [asyncio.ensure_future(each) for each in (_gone(receive), self._closed(), self._keep_alive(send))]
        try:
            await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.wait((sending, *others))
            await self._events.aclose()
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for event in events:
                self._silent = False
                await send(_part(event))
                await asyncio.sleep(0)  # the server takes what fits into its buffers without a pause
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Any) -> None:
        """A comment now and then, because clients take silence for death."""
        while True:
            self._silent = True
            await asyncio.sleep(LOOK_S)
            if self._silent:
                await send(_part(b": still reading\n\n"))

    async def _closed(self) -> None:
        await self._closing.wait()
        await asyncio.sleep(LAST_WORDS_S)


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _gone(receive: Any) -> None:
    """The client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
