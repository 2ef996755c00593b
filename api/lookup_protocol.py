"""uvicorn's HTTP protocol with a short cut: a lookup that has an answer at this moment gets it where it was parsed.

No task, no ASGI: that is most of what such a request costs (docs/decisions/0007 has the figures). A lookup that has to
wait is uvicorn's, but its answer is written in one piece. The parser, the time-outs, flow control and everything that
is not such a lookup stay uvicorn's. Order is kept: nothing is answered here
while an earlier request of the connection is still being answered. The table is looked at when the request has arrived
as a whole: one that announces a body is uvicorn's.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.lookup_path import PREFIX, WHOLE, LookupPath

_STATUS = b"HTTP/1.1 200 OK\r\n"
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class LookupProtocol(HttpToolsProtocol):
    """Serves an application that is a `LookupPath`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lookups = cast("LookupPath", self.config.app)
        self._answer: bytes | None = None

    def on_headers_complete(self) -> None:
        """The request line and the headers are there: answered here, or uvicorn's."""
        self._answer = self._lookups.at_once(self.url.partition(b"?")[0]) if self._is_plain_lookup() else None
        if self._answer is None:
            super().on_headers_complete()
            cycle = cast("RequestResponseCycle | None", self.cycle)
            if cycle is not None and cycle.scope is self.scope:  # not so if the connection is to be upgraded
                cast("Any", self.scope)["extensions"] = {WHOLE: partial(self._write_whole, cycle)}

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
            and not any(name in _BODY_HEADERS for name, _ in self.headers)
            and not self._is_full()
        )

    def _is_full(self) -> bool:
        return self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency

    def on_message_complete(self) -> None:
        """The whole request is there: now it may be answered."""
        answer, self._answer = self._answer, None
        if answer is None:
            super().on_message_complete()
            return
        self._write(answer)
        self.on_response_complete()

    def _write(self, answer: bytes) -> None:
        headers = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join((_STATUS, *headers, answer)))

    def _write_whole(self, cycle: RequestResponseCycle, answer: bytes) -> bool:
        """What two calls of `cycle.send` would do, on a connection that is healthy and goes on; else False."""
        if cycle.disconnected or cycle.response_started or not cycle.keep_alive or self.flow.write_paused:
            return False
        self._write(answer)
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True
