"""One connection: uvicorn's HTTP protocol, with bounds on what its client may send, hold or delay.

It decides when a client has sent too much or takes too long, and answers with an HTTP error. Uvicorn parses requests;
the application and `lookup_protocol.py` answer them. There is no timer per request: `listener.py` checks all
connections regularly (`look`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import httptools
import msgspec
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from loadmanager.settings import Settings
from loadmanager_api.access.principal import CERTIFIED, Principal
from loadmanager_api.access.tls import certified
from loadmanager_api.errors import Problem, problem
from loadmanager_api.http_counts import HttpCounts
from statechannel.runtime.forking import close_in_children, forget

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
                self.refuse(problem(400, "this is no HTTP request that can be read"))

    def _break_off(self) -> None:
        """The body cannot be read further, and its reader is told (`limits.py`). A handler that does not need the body
        still answers, since it may have done what it was asked for."""
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
        if self._reading is Reading.HEAD:  # else it is a trailer, which nobody uses
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
