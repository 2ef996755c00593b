"""Bounds what one request may cost: the size of its body, the time it takes to arrive, how many run at once.

Connections are bounded by the server (`server.py`); deferred lookups bound themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException

from api.errors import Problem, problem, respond

MAX_BODY_BYTES = 1 << 20
"""Room for 65,536 boundaries, or 1,000 topics of 1,000 characters."""

MAX_REQUESTS = 512
ARRIVAL_TIMEOUT_S = 30.0
TOO_LARGE = f"the body may have at most {MAX_BODY_BYTES:,} bytes; ask for less at once"
CLOSE = {"Connection": "close"}


class Limits:
    """An ASGI application that guards another one."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = self._refusal(scope)
        if found is not None:
            await respond(found, CLOSE)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, _bounded(receive), send)
        finally:
            self._running -= 1

    def _refusal(self, scope: Any) -> Problem | None:
        if self._running >= MAX_REQUESTS:
            return problem(503, f"{MAX_REQUESTS} requests run here already; try again", retry_after_s=1.0)
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            return problem(413, TOO_LARGE)
        return None


def _bounded(receive: Any) -> Any:
    """`receive`, with its messages counted and timed. Waiting for the client's disconnection is not timed.

    What it raises goes through the application, whose handlers make a problem of it.
    """
    size, complete = 0, False

    async def bounded() -> Any:
        nonlocal size, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {ARRIVAL_TIMEOUT_S:g} s", CLOSE) from None
        size += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, TOO_LARGE, CLOSE)
        return message

    return bounded
