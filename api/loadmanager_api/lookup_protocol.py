"""A connection with a short cut: a lookup that has an answer now is answered where it was parsed.

It uses no task and no ASGI, which are most of the cost of such a request (figures in docs/decisions/0007). Uvicorn
handles a lookup that has to wait, but its answer is written in one piece. Uvicorn keeps the parser, flow control and
all other requests; `connection.py` has the bounds. Order is kept: nothing is answered here while an earlier request of
the connection is being answered. The table is read when the whole request has arrived. A request that announces a body,
or calls the broker by a foreign name, is not answered here; nor one whose sender is not known from an earlier request.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from loadmanager_api.access.principal import Principal
from loadmanager_api.connection import Connection
from loadmanager_api.lookup_path import PREFIX, WHOLE, LookupPath

_STATUS = b"HTTP/1.1 200 OK\r\n"
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class LookupConnection(Connection):
    """A connection to endpoints with a `LookupPath`."""

    def __init__(self, lookups: LookupPath, *args: Any) -> None:
        super().__init__(*args)
        self._lookups = lookups
        self._answer: bytes | None = None
        self._asker: Principal | None = None
        """Who sent the request that is answered here."""

    def begin_answer(self) -> None:
        """The request line and headers have arrived: decide whether to answer here or leave it to uvicorn."""
        self._answer = self._answer_at_once() if self._is_plain_lookup() else None
        if self._answer is None:
            super().begin_answer()
            cycle = cast("RequestResponseCycle | None", self.cycle)
            if cycle is not None and cycle.scope is self.scope:  # not so if the connection is to be upgraded
                cast("Any", self.scope)["extensions"] = {WHOLE: partial(self._write_whole, cycle)}
                if not cast("Any", self.parser).should_keep_alive():  # older releases of uvicorn look when they answer
                    cycle.keep_alive = False

    def _answer_at_once(self) -> bytes | None:
        access, principal = self._lookups.access, None
        self._asker = None
        if access is not None:
            principal = self._asker = access.known(self.headers, self.certified)
            if principal is None:
                return None  # who it is takes a verification, or a refusal
        answer, rates = self._lookups.at_once(self.url.partition(b"?")[0], principal), self._lookups.rates
        if answer is None or rates is None:
            return answer
        client = principal.name if principal is not None else self.client[0] if self.client else ""
        return None if rates.wait_s(client) else answer

    def _is_plain_lookup(self) -> bool:
        if not self.url.startswith(PREFIX) or b"#" in self.url:
            return False
        parser, cycle = cast("Any", self.parser), cast("RequestResponseCycle | None", self.cycle)
        return (
            (cycle is None or cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and parser.get_method() == b"GET"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.reserved
            and self._has_plain_headers()
        )

    def _has_plain_headers(self) -> bool:
        """No body, one `Host` that is ours, and no cluster but ours."""
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
                if not self._lookups.names.know(value):
                    return False
            elif name in _BODY_HEADERS:
                return False
        return hosts == 1 and not self._lookups.names.another_cluster(self.headers)

    def complete_request(self) -> None:
        """The whole request has arrived: now it may be answered."""
        answer, self._answer = self._answer, None
        if answer is None:
            super().complete_request()
            return
        self._write(answer)
        self._lookups.requests.add(self._asker, "lookup", 200)
        self.on_response_complete()

    def _write(self, answer: bytes) -> None:
        headers = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join((_STATUS, *headers, answer)))

    def _write_whole(self, cycle: RequestResponseCycle, answer: bytes) -> bool:
        """Do what two calls of `cycle.send` would do, on a healthy connection that stays open; else return False."""
        if cycle.disconnected or cycle.response_started or not cycle.keep_alive or self.flow.write_paused:
            return False
        if self.transport.is_closing():
            return False
        self._write(answer)
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True
