"""Clients' connections, and bounds on what each client may send, hold or delay, and on how many there may be.

`Connection` is uvicorn's HTTP protocol. It decides when a client has sent too much or takes too long, and answers with
an HTTP error. Uvicorn parses requests; the application and `lookups.py` answer them. There is no timer per request: the
listener checks all connections regularly (`look`).

The listener accepts connections, and keeps enough descriptors free for the log and coordination. Up to the limit any
client gets in, beyond it only a few for health, readiness and metrics. When room is short, idle connections are closed,
the longest idle first. It counts the descriptors that the process itself has open: these reduce the room for clients.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from enum import Enum
from typing import Any, cast

import httptools
import msgspec
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from loadmanager.client.cluster import header_of
from loadmanager.client.redirection import CLUSTER_HEADER
from loadmanager.settings import Settings
from loadmanager_api.access.sender import CERTIFIED, Principal
from loadmanager_api.access.tls import Tls, certified
from loadmanager_api.http.counts import HttpCounts
from loadmanager_api.problems import Problem, problem
from statechannel.law.partition import ClusterIdentity
from statechannel.runtime.forking import close_in_children, forget
from statechannel.runtime.tasks import Turnstile

NO_HTTP = "this is not a readable HTTP request; bytes beyond ASCII in a path or a query have to be percent-encoded"

RESERVED = "loadmanager.reserved"
"""The key in an ASGI scope that says whether the connection is a reserved one, beyond the limit."""

BROKEN = "loadmanager.broken"
"""The key in an ASGI scope that is there once the request's body turned out not to be HTTP."""

LINGER_S = 1.0
LINGER_BYTES = 1 << 20
"""Bytes that are still read and dropped after a refusal, so that a client that is sending can read the refusal."""

PIECE_BYTES = 1_024
"""Bytes that are parsed between two checks for room for their requests."""

WRITE_BUFFER_BYTES = 32_768
"""Bytes of an answer that a client has not taken before more is held back; kernel buffers come on top."""

CHUNKED_MARGIN_BYTES = 65_536


class Bounds(msgspec.Struct, frozen=True):
    """Limits of one connection: the settings `http_…_limit_bytes` and `http_…_timeout_s`."""

    head_bytes: int
    body_bytes: int
    head_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float
    idle_timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        return cls(
            settings.http_head_limit_bytes,
            settings.http_body_limit_bytes,
            settings.http_head_timeout_s,
            settings.http_body_timeout_s,
            settings.http_send_timeout_s,
            settings.http_idle_timeout_s,
        )

    @property
    def shortest_s(self) -> float:
        return min(self.head_timeout_s, self.body_timeout_s, self.send_timeout_s, self.idle_timeout_s)


class Reading(Enum):
    """What the parser waits for."""

    NOTHING = "the first byte of a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with bounds. `reserved`: one of the few connections for health, readiness and metrics."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        bounds: Bounds,
        counts: HttpCounts,
        reserved: bool,
        lost: Callable[[Connection], None],
    ) -> None:
        super().__init__(config, state, {})
        self.bounds = bounds
        self._counts = counts
        self.reserved = reserved
        self._lost = lost
        self._reading = Reading.NOTHING
        self._since_s = self.loop.time()
        self._paused_s: float | None = None
        self._closing_s: float | None = None
        self._begun = 0
        self._unread = b""
        self._parsing = False
        self._read_bytes = 0
        """Bytes of the present head or body, as far as they are known to belong to it."""
        self._refused = False
        self._broken = False
        """The body that is being read cannot be read further."""
        self._hung_up = False
        self.certified: Principal | None = None
        """Whom the client's certificate names."""

    # --- bytes

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is not None:  # a socket of both families gives addresses of IPv4 as those of IPv6
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        close_in_children(self._descriptor)
        self.certified = certified(transport)
        self.flow = _Flow(transport, self._read_on)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if self._hung_up:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        forget(self._descriptor)
        super().connection_lost(exc)
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._broken:
            self._throw_away(len(data))
        elif self._unread:
            self._unread += data
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parse in small pieces, and stop where requests are not taken: a chunk has room for thousands of them."""
        self._parsing = True
        for at in range(0, len(data), PIECE_BYTES):
            if self._refused or self._broken or self.transport.is_closing():
                break
            if self.flow.read_paused:
                self._unread = data[at:]
                break
            piece = data[at : at + PIECE_BYTES]
            before, begun = self._reading, self._begun
            self._parse(piece)
            if self._reading is not Reading.NOTHING and not self._broken:
                self._count(len(piece), before, self._begun - begun)
        self._parsing = False

    def _read_on(self) -> None:
        if self._unread and not self._parsing:
            unread, self._unread = self._unread, b""
            self._read(unread)

    def _count(self, size: int, before: Reading, begun: int) -> None:
        """Count bytes of the present head or body; a piece in which an earlier one ended is not counted."""
        alone = begun == 1 if before is Reading.NOTHING else begun == 0 and before is self._reading
        self._read_bytes = self._read_bytes + size if alone else 0
        if self._reading is Reading.HEAD:
            if self._read_bytes >= self.bounds.head_bytes:
                self._counts.heads_refused += 1
                self.refuse(problem(431, f"a request's head may have at most {self.bounds.head_bytes:,} bytes"))
        elif self._read_bytes > 2 * self.bounds.body_bytes + CHUNKED_MARGIN_BYTES:
            self.refuse(problem(413, f"the body may have at most {self.bounds.body_bytes:,} bytes"))

    def _parse(self, data: bytes) -> None:
        try:
            cast("httptools.HttpRequestParser", self.parser).feed_data(data)
        except httptools.HttpParserUpgrade:  # the request itself is answered; what follows it is not HTTP
            if self.answering:
                self.cycle.keep_alive = False
        except httptools.HttpParserError:
            if self._reading is Reading.BODY and self.answering and not (self.cycle.response_started or self.pipeline):
                self._break_off()
            elif not self._refused:
                self.refuse(problem(400, NO_HTTP))

    def _break_off(self) -> None:
        """The body cannot be read further, and its reader is told (`limits.py`)."""
        self._broken, self._read_bytes = True, 0
        cast("dict[str, Any]", self.scope)[BROKEN] = True
        self.cycle.keep_alive = False
        self.cycle.message_event.set()

    def _throw_away(self, size: int) -> None:
        self._read_bytes += size
        if self._read_bytes > LINGER_BYTES:
            self.flow.pause_reading()

    # --- what the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading, self._since_s = Reading.HEAD, self.loop.time()
        self._begun += 1
        self._read_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is Reading.HEAD:  # else it is a trailer, which is ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reading, self._since_s = Reading.BODY, self.loop.time()
        self._read_bytes = 0
        self.begin_answer()

    def begin_answer(self) -> None:
        """The head has arrived."""
        super().on_headers_complete()
        if self.certified is not None:
            cast("dict[str, Any]", self.scope)[CERTIFIED] = self.certified
        if self.reserved:
            cast("dict[str, Any]", self.scope)[RESERVED] = True
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._reading, self._since_s = Reading.NOTHING, self.loop.time()
        self.complete_request()

    def complete_request(self) -> None:
        """The body has arrived."""
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, but without a timer per answer."""
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            return
        if self._reading is Reading.NOTHING:
            self._since_s = self.loop.time()
        self.flow.resume_reading()

    # --- time

    @property
    def answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def idle_since_s(self) -> float | None:
        """Since when there has been no request; None while there is one."""
        if self._reading is not Reading.NOTHING or self.answering or self.transport.is_closing():
            return None
        return self._since_s

    @property
    def at_work_s(self) -> float:
        """When its client last began or ended something; now, while a request is answered."""
        return self.loop.time() if self.answering else self._since_s

    def pause_writing(self) -> None:
        self._paused_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused_s = None
        super().resume_writing()

    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        return 0 if self._paused_s is None else self.transport.get_write_buffer_size()

    def look(self, now_s: float) -> None:
        """End the connection if it takes too long."""
        bounds, waited_s = self.bounds, now_s - self._since_s
        if self.transport.is_closing():  # the client still has to read the last answer
            self._closing_s = self._closing_s or now_s
            if now_s - self._closing_s > (LINGER_S if self._refused else bounds.send_timeout_s):
                self.hang_up()
        elif self._refused:
            if waited_s > LINGER_S:
                self.hang_up()
        elif self._paused_s is not None:
            if now_s - self._paused_s > bounds.send_timeout_s:
                self._counts.late_answers += 1
                self.hang_up()
        elif self._reading is Reading.HEAD:
            if waited_s > bounds.head_timeout_s:
                self._counts.late_heads += 1
                self.refuse(problem(408, f"the head did not arrive within {bounds.head_timeout_s:g} s"))
        elif self._reading is Reading.BODY:
            if waited_s > bounds.body_timeout_s and not self.answering:  # while it is, `limits.py` sees to it
                self._counts.late_bodies += 1
                self.transport.close()
        elif not self.answering and waited_s > bounds.idle_timeout_s:
            self.transport.close()

    # --- words

    def refuse(self, found: Problem) -> None:
        """Answer with the problem, unless an answer is on its way; then only hang up. Read nothing more."""
        self._refused, self._read_bytes, self._since_s = True, 0, self.loop.time()
        if self.answering or self.pipeline:
            self.hang_up()
            return
        body = msgspec.json.encode(found)
        headers = (b"content-type: application/problem+json", b"content-length: %d" % len(body), b"connection: close")
        self.transport.write(b"\r\n".join((STATUS_LINE[found.status][:-2], *headers, b"", body)))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def hang_up(self) -> None:
        """Close at once, whatever is still to be sent."""
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if cast("RequestResponseCycle | None", cycle) is not None:
                cycle.disconnected = True
        self._hung_up = True
        if cast("asyncio.Transport | None", self.transport) is not None:
            self.transport.abort()


class _Flow(FlowControl):
    """Calls `resumed` when there is room to read again."""

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            self._resumed()


RESERVED_CONNECTIONS = 16
"""Connections beyond the limit, for paths that must stay reachable; the oldest of them makes room for the next."""

ACCEPTED_A_TURN = 64
HANDSHAKES_A_TURN = 8
"""Handshakes of TLS that begin in one turn of the loop: each takes about a millisecond."""

LOOK_S = 1.0
"""At the latest after so long: clients see no older date."""

CROWDED = 7 / 8
"""Above this share of the limit, or when a client was rejected, a quarter of the connections is closed if idle."""

OWN_SHARE, OWN_AT_MOST = 1 / 8, 128
"""Descriptors of the process that no client gets: this share of `ulimit -n`, with an upper bound.

A quarter of them is for reserved connections, a quarter for what the process opens between two checks.
"""

AT_WORK_S = 1.0
NO_DESCRIPTOR_S = 0.1
SOON_S = 0.05

Headers = list[tuple[bytes, bytes]]
_CLUSTER = CLUSTER_HEADER.lower().encode()
Make = Callable[[Config, ServerState, Bounds, HttpCounts, bool, Callable[[Connection], None]], Connection]


class _State(ServerState):
    """Uvicorn's state, with the headers of every answer: the date, and the cluster as soon as it is known."""

    def __init__(self, cluster: Callable[[], ClusterIdentity | None]) -> None:
        self._cluster = cluster
        self._known: ClusterIdentity | None = None
        self._headers: Headers = []
        super().__init__()

    @property
    def default_headers(self) -> Headers:  # pyright: ignore[reportIncompatibleVariableOverride]
        cluster = self._cluster()
        if cluster is not self._known:
            self._known = cluster
            self._add(self._headers[:1])
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: Headers) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._add(headers)

    def _add(self, headers: Headers) -> None:
        known = [] if self._known is None else [(_CLUSTER, header_of(self._known).encode())]
        self._headers = [*headers, *known]


class Listener:
    """Serves one listening socket from `start` to `close`."""

    def __init__(
        self,
        listening: socket.socket,
        config: Config,
        bounds: Bounds,
        connections: int,
        counts: HttpCounts,
        make: Make = Connection,
        tls: Tls | None = None,
        cluster: Callable[[], ClusterIdentity | None] = lambda: None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._state = _State(cluster)
        self._connections = cast("set[Connection]", self._state.connections)
        self._listening = listening
        self._config = config
        self._bounds = bounds
        self._limit = connections
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._joining: set[asyncio.Task[None]] = set()
        self._handshakes = Turnstile(HANDSHAKES_A_TURN)
        self._counts = counts
        self._ordinary = 0
        self._room = connections
        """The limit, or less if the process itself has many descriptors open."""
        self._reserved: dict[Connection, None] = {}
        self._full = False
        self._emptied = asyncio.Event()

    def start(self) -> None:
        """Begin to accept."""
        self._listening.setblocking(False)
        self._look()
        self._loop.add_reader(self._listening, self._accept)

    async def close(self, timeout_s: float) -> None:
        """Stop accepting; answers on their way have `timeout_s`."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in tuple(self._connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._connections or self._joining:
                    self._emptied.clear()
                    await self._emptied.wait()
        for connection in tuple(self._connections):
            connection.hang_up()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=SOON_S)
        for task in (*self._state.tasks, *self._joining):
            task.cancel()
        self._looking.cancel()

    def unsent_bytes(self) -> int:
        """Bytes of answers that clients have not taken."""
        return sum(connection.unsent_bytes() for connection in self._connections)

    # --- letting in

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError:  # the process has no descriptor left
                self._loop.remove_reader(self._listening)
                self._loop.call_later(NO_DESCRIPTOR_S, self._accept_again)
                return
            if not self._let_in(client):
                return  # the connection that made room for it is closed in the next turn

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _let_in(self, client: socket.socket) -> bool:
        """Admit it as an ordinary connection, as one of the few beyond them, or not at all.

        Returns True if no connection has to be closed, neither it nor another one.
        """
        own = own_descriptors()
        reserved = self._ordinary >= self._room or not leaves(own, client.fileno())
        if reserved and not self._full:
            self._full = True
            self._loop.call_later(SOON_S, self._make_room)
        if reserved and not leaves(own // 2, client.fileno()):
            self._counts.not_let_in += 1
            client.close()
            return False
        client.setblocking(False)
        self._counts.connections += 1
        connection = self._make(self._config, self._state, self._bounds, self._counts, reserved, self._lost)
        task = self._loop.create_task(self._join(client, connection))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)
        if not reserved:
            self._ordinary += 1
            return True
        self._counts.beyond += 1
        self._reserved[connection] = None
        return self._few(min(RESERVED_CONNECTIONS, own // 4))

    def _few(self, most: int) -> bool:
        """Whether at most so many are beyond the limit; else the oldest without an answer under way is closed."""
        if len(self._reserved) <= most:
            return True
        oldest = next((each for each in self._reserved if not each.answering), next(iter(self._reserved)))
        del self._reserved[oldest]
        oldest.hang_up()
        return False

    async def _join(self, client: socket.socket, connection: Connection) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: connection, client)
            else:
                await self._handshakes.passed()
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=self._bounds.head_timeout_s,
                    ssl_shutdown_timeout=SOON_S,
                )
        except OSError:  # it was gone already, or its handshake failed
            client.close()
            self._lost(connection)

    def _lost(self, connection: Connection) -> None:
        self._counts.connections -= 1
        if not connection.reserved:
            self._ordinary -= 1
        self._reserved.pop(connection, None)
        self._emptied.set()

    # --- looking

    def _look(self) -> None:
        self._looking = self._loop.call_later(min(LOOK_S, self._bounds.shortest_s / 4), self._look)
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        if self._tls is not None:
            self._tls.look()
            self._counts.certificate_until_s = self._tls.until_s
        now_s = self._loop.time()
        for connection in tuple(self._connections):
            connection.look(now_s)
        self._keep_off()
        if self._ordinary > CROWDED * self._limit:
            self._make_room()

    def _keep_off(self) -> None:
        """Count what the process itself has open, and end the connections for which that leaves no room.

        Idle ones end first, starting with those that are idle longest.
        """
        own, most = own_descriptors(), _descriptors()
        self._room = self._limit
        if most == sys.maxsize or not any(map(_is_open, range(most - own, most))):
            return  # so many are free, at least
        not_clients = _open_descriptors(most) - self._counts.connections
        self._room = min(self._limit, max(RESERVED_CONNECTIONS, most - own - not_clients))
        too_many = self._ordinary - self._room
        if too_many > 0:
            ordinary = [each for each in self._connections if not each.reserved]
            for connection in sorted(ordinary, key=lambda each: each.at_work_s)[:too_many]:
                connection.hang_up()

    def _make_room(self) -> None:
        """Close the connections that have been idle longest; one that was active a moment ago stays."""
        self._full = False
        before_s = self._loop.time() - AT_WORK_S
        idle = [(since_s, each) for each in self._connections if (since_s := each.idle_since_s) is not None]
        waited = sorted((found for found in idle if found[0] < before_s), key=lambda found: found[0])
        for _, connection in waited[: len(self._connections) // 4 + 1]:
            connection.transport.close()


def own_descriptors() -> int:
    """How many of this process's descriptors no client gets."""
    return min(int(_descriptors() * OWN_SHARE), OWN_AT_MOST)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_descriptors(most: int) -> int:
    try:
        return len(os.listdir("/dev/fd")) - 1  # itself
    except OSError:  # not one is left to look with
        return most


def leaves(own: int, number: int) -> bool:
    """Whether so many descriptors are free beside this connection's: a new one gets the lowest free number."""
    return number < _descriptors() - own


def _descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
