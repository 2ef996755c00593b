"""Bounds the cost of requests: the size of a body, the time it takes to arrive, how many run at once.

A request is carried out once its body is here as a whole, so nothing is done for one that is cut off or broken.

Heads and connections are bounded where they are read (`connection.py`, `listener.py`); deferred lookups have a bound of
their own.

Watches last, and batch lookups may wait: both leave places to administration, which has to work when clients are many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect

from loadmanager.settings import Settings
from loadmanager_api.access.access import CLOSE
from loadmanager_api.http.connections import BROKEN
from loadmanager_api.http.counts import HttpCounts
from loadmanager_api.http.guard import VITAL, has_body
from loadmanager_api.problems import Problem, problem, respond
from statechannel.runtime.tasks import Turnstile

WATCH, BATCH = "/v1/watch", "/v1/lookup"
ADMINISTRATION_SHARE = 8
"""One in so many places is reserved for administration."""

BODIES_AT_MOST_BYTES = 16 << 20
"""Bytes of bodies whose requests are not answered yet; beyond this a request with a body is refused, unless alone."""

BEGUN_A_TURN = 2
"""Requests that begin in one turn of the endpoints' loop: what health waits for, however many have come."""

UNSENT_AT_MOST_BYTES = 64 << 20
"""Bytes of answers that clients have not taken; beyond this no more answers are made."""


class _Body:
    """How much of one request's body has arrived, in bytes."""

    size = 0


class Limits:
    """An ASGI application that bounds another one.

    `unsent_bytes` gives the bytes of its answers that are not taken. `at_once` requests may run, by default as many as
    the settings say. `no_room` says why a batch lookup with a body of that size may not begin, if so.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        counts: HttpCounts,
        unsent_bytes: Callable[[], int] = lambda: 0,
        at_once: int | None = None,
        no_room: Callable[[int | None], str] = lambda _: "",
    ) -> None:
        self._app = app
        self._settings = settings
        self._counts = counts
        self._unsent_bytes = unsent_bytes
        self._at_once = at_once
        self._no_room = no_room
        self._beginning = Turnstile(BEGUN_A_TURN)
        self._body_bytes = 0
        self._running = 0
        self._of_clients = {WATCH: 0, BATCH: 0}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or (scope["path"] in VITAL and not has_body(scope["headers"])):
            await self._app(scope, receive, send)
            return
        found = self._refusal(scope)
        if found is not None:
            await respond(found, CLOSE)(scope, receive, send)
            return
        path, of_clients, body = scope["path"], self._of_clients, _Body()
        self._running += 1
        if path in of_clients:
            of_clients[path] += 1
        try:
            found = await self._read(scope, receive, body) if has_body(scope["headers"]) else receive
            if isinstance(found, Problem):
                await respond(found, CLOSE)(scope, receive, send)
            else:
                await self._beginning.passed()
                await self._app(scope, found, send)
        except ClientDisconnect:
            pass  # no client waits for an answer, and nothing was done
        finally:
            self._running -= 1
            self._body_bytes -= body.size
            if path in of_clients:
                of_clients[path] -= 1

    def _refusal(self, scope: Any) -> Problem | None:
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        size = int(declared) if declared.isdigit() else None
        crowded = self._crowded(scope["path"]) or (self._no_room(size) if scope["path"] == BATCH else "")
        if crowded:
            self._counts.crowded += 1
            return problem(503, crowded, retry_after_s=1.0)
        if self._unsent_bytes() > UNSENT_AT_MOST_BYTES:
            self._counts.untaken += 1
            return problem(503, "clients here do not take their answers; try again", retry_after_s=1.0)
        if size is not None and size > self._settings.http_body_limit_bytes:
            return problem(413, self._too_large)
        return None

    def _crowded(self, path: str) -> str | None:
        """Why there is no place for one more request with this path."""
        most, of_clients = self._at_once or self._settings.http_requests, self._of_clients
        if self._running >= most:
            return f"{most} requests run here already; try again"
        if path == WATCH and of_clients[WATCH] >= most // 2:
            return f"{most // 2} watches run here already; watch another broker"
        if path in of_clients and sum(of_clients.values()) >= most - most // ADMINISTRATION_SHARE:
            return f"{sum(of_clients.values())} watches and lookups run here already; try again, or ask another broker"
        return None

    @property
    def _too_large(self) -> str:
        return f"the body may have at most {self._settings.http_body_limit_bytes:,} bytes; ask for less at once"

    async def _read(self, scope: Any, receive: Any, body: _Body) -> Any:
        """Await the whole body. Returns a `receive` that has it in one piece, or a Problem.

        Raises ClientDisconnect.
        """
        timeout_s, parts = self._settings.http_body_timeout_s, list[bytes]()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await receive()
                    if BROKEN in scope:
                        return problem(400, "the body is not sent in chunks as HTTP/1.1 has them")
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    if found := self._take(message.get("body", b""), parts, body):
                        return found
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            self._counts.late_bodies += 1
            return problem(408, f"the body did not arrive within {timeout_s:g} s")
        whole = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Any:
            return whole.pop() if whole else await receive()

        return again

    def _take(self, part: bytes, parts: list[bytes], body: _Body) -> Problem | None:
        """Keep a part of a body, if there is room."""
        body.size += len(part)
        self._body_bytes += len(part)
        if body.size > self._settings.http_body_limit_bytes:
            return problem(413, self._too_large)
        if self._body_bytes > max(BODIES_AT_MOST_BYTES, body.size):
            self._counts.crowded += 1
            return problem(503, "the bodies of too many requests are here; try again", retry_after_s=1.0)
        parts.append(part)
        return None
