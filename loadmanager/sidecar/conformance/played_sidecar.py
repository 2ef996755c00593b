"""The sidecar that is played to a service: its answers, its port, and a log of what the service asks."""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from loadmanager.client.cluster import check_request, header_of
from loadmanager.client.redirection import NotServing
from loadmanager.errors import Conflict, Gone
from loadmanager.sidecar.wire import Attached, Attachment, Claimed, Lease, Order, State
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity

VALID_MS = 3_000
POLL_S = 0.1
"""The time for which a poll waits, unless the service asks for less."""
UNREAD = 2
"""A service may not have read one of this many last answers. As it asks one question after the other, it has read those
before."""
BROKER = "conformance:7070"
CLUSTER = ClusterIdentity("conformance", "0a1b2c3d4e5f-1", 1)

Find = Callable[[str, float], Awaitable[Claimed]]


@dataclass(frozen=True)
class Grant:
    """What an answer to a poll says."""

    valid_ms: dict[int, int] = field(default_factory=lambda: {0: VALID_MS})
    abandon: tuple[tuple[Bundle, int], ...] = ()
    shared: tuple[str, ...] = ()


NOTHING = Grant({})


class Poll:
    """A question for the lease that has arrived."""

    def __init__(self) -> None:
        self.arrived_s = time.monotonic()
        self.answered = False
        self.granted: Grant | None = None
        """What this one is answered: by default what all are."""
        self._go = asyncio.Event()

    async def released(self) -> None:
        """Wait for `release`."""
        await self._go.wait()

    def release(self, granted: Grant | None = None) -> None:
        """Answer it now, though polls are held."""
        self.granted = granted
        self._go.set()


async def nobody(key: str, timeout_s: float) -> Claimed:
    """No broker serves the key."""
    raise NotServing("no bundle of this check is at the key")


class Script:
    """A `Sessions` whose answers are attributes. Call everything on one loop."""

    def __init__(self) -> None:
        self.attachment: Attachment | None = None
        """What the service said when it attached last."""
        self.session: str | None = None
        self.attached = 0
        self.conflicts = 0
        """So many attempts to attach are still refused."""
        self.refused = 0
        self.grant = Grant()
        self.claim: Find = nobody
        self.polls: list[Poll] = []
        self.claims: list[str] = []
        """Keys that were asked for."""
        self.held = False
        self.leaving = asyncio.Event()
        """Set when the service asks to end its session."""
        self.may_leave = asyncio.Event()
        """Set by a check that lets the session end."""
        self._changed = asyncio.Event()

    def forget(self) -> None:
        """There is no session any more, as in a new sidecar: all answers are those of a new one."""
        self.end()
        self.conflicts = 0
        self.grant, self.claim, self.held = Grant(), nobody, False

    def end(self) -> None:
        """The session is over: polls are answered with 410."""
        self.session = None
        self.may_leave.set()
        self.leaving, self.may_leave = asyncio.Event(), asyncio.Event()
        for poll in self.polls:
            poll.release()
        self._tell()

    def hold(self) -> None:
        """Answer no poll from now on, until `resume`."""
        self.held = True

    def resume(self) -> None:
        """Answer all polls that wait, and those that come."""
        self.held = False
        for poll in self.polls:
            poll.release(poll.granted)
        self._tell()

    async def until(self, met: Callable[[], bool], timeout_s: float) -> bool:
        """Whether the condition is met within the time. It is looked at whenever the service asks for something."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not met():
                    await self._changed.wait()
        return met()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def deadline_s(self, partition: int) -> float:
        """When the deadlines of a service have surely passed, in monotonic time, if polls are answered no more."""
        known = [(poll.arrived_s, poll.granted) for poll in self.polls if poll.answered][-UNREAD:]
        return max(
            (at_s + granted.valid_ms.get(partition, 0) / 1000 for at_s, granted in known if granted), default=0.0
        )

    # --- for the endpoints

    def attach(self, attachment: Attachment) -> Attached:
        """As `Sessions.attach`."""
        if self.conflicts or self.session is not None:
            self.conflicts -= bool(self.conflicts)
            self.refused += 1
            self._tell()
            raise Conflict("another session is attached, or leaves: try again, or stop the other service")
        self.attachment = attachment
        self.session = secrets.token_hex(8)
        self.attached += 1
        self.polls.clear()
        self._tell()
        return Attached(session=self.session, broker=BROKER)

    async def lease(self, session: str, wait_s: float) -> Lease:
        """As `Sessions.lease`."""
        self._check(session)
        poll = Poll()
        self.polls.append(poll)
        self._tell()
        if not self.held:
            await asyncio.sleep(min(wait_s, POLL_S))
        if self.held:
            await poll.released()
        self._check(session)
        granted = poll.granted = poll.granted or self.grant
        poll.answered = True
        return Lease(
            state=State.LEAVING if self.leaving.is_set() else State.JOINED,
            valid_ms=granted.valid_ms,
            abandon=[Order(bundle=str(bundle), sequence=sequence) for bundle, sequence in granted.abandon],
            shared=list(granted.shared),
            cluster=header_of(CLUSTER),
        )

    async def detach(self, session: str) -> None:
        """As `Sessions.detach`."""
        self._check(session)
        self.leaving.set()
        may_leave = self.may_leave
        self._tell()
        await may_leave.wait()
        if self.session == session:
            self.end()

    async def find(self, key: str, timeout_s: float, cluster: str | None = None) -> Claimed:
        """As `Sessions.find`."""
        self.claims.append(key)
        self._tell()
        check_request(CLUSTER, cluster)
        return await self.claim(key, timeout_s)

    def _check(self, session: str) -> None:
        if session != self.session:
            raise Gone("this session has ended: forget all bundles, and attach again")


HOST = "127.0.0.1"
_PIECE_BYTES = 65_536
_LINGER_NOT = struct.pack("ii", 1, 0)
"""Closing a socket with this option resets its connection."""


class Gate:
    """One port, the same for its whole life. Call everything on one loop."""

    def __init__(self) -> None:
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self.target: tuple[str, int] | None = None
        """Where connections are passed on to; None: they are reset, and counted."""
        self.resets = 0
        self._server: asyncio.Server | None = None
        self._writers = set[asyncio.StreamWriter]()

    @property
    def url(self) -> str:
        """The address for the service."""
        return f"http://{HOST}:{self.port}"

    async def open(self, target: tuple[str, int] | None) -> None:
        """Take connections, and pass them on to `target`; None: reset each one."""
        self.target = target
        if self._server is None:
            self._server = await asyncio.start_server(self._pass_on, sock=_bound(self.port))

    async def shut(self) -> None:
        """Refuse connections, and reset those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Free the port."""
        await self.shut()
        self._reserved.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            self.resets += 1
            _reset(writer)
            return
        self._writers.add(writer)
        try:
            there_reader, there = await asyncio.open_connection(*self.target)
            self._writers.add(there)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there))
                    both.create_task(_copy(there_reader, writer))
            finally:
                self._writers.discard(there)
                there.close()
        except OSError:
            _reset(writer)
        finally:
            self._writers.discard(writer)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket that does not listen yet. While one exists, the machine gives the port to no other process."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_KEPT = 200


class RequestLog:
    """The last requests with their statuses, and how many polls were open at once."""

    def __init__(self) -> None:
        self.requests = deque[str](maxlen=_KEPT)
        """Such as `POST /v1/session: 401`."""
        self.refused_secrets = 0
        """Requests that were answered 401."""
        self.most_polls = 0
        self._polls = 0

    def around(self, application: Application) -> Application:
        """The application, watched."""

        async def watched(scope: Message, receive: Receive, send: Send) -> None:
            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.requests.append(f"{scope['method']} {scope['path']}: {message['status']}")
                    self.refused_secrets += message["status"] == 401
                elif scope["path"] == "/v1/session" and scope["method"] == "POST" and b"detail" in message["body"]:
                    self.requests[-1] += f" {message['body'].decode()}"
                await send(message)

            if scope["type"] != "http" or not scope["path"].endswith("/lease"):
                await application(scope, receive, noted)
                return
            self._polls += 1
            self.most_polls = max(self.most_polls, self._polls)
            try:
                await application(scope, receive, noted)
            finally:
                self._polls -= 1

        return watched
