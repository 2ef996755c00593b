"""An answer without an end: sends events as long as the client reads and the endpoints are open.

The connection cuts off a client that does not read. When the endpoints close, the rest is sent quickly or dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

SILENCE_S = 12.0
"""Silence before a keep-alive comment: longer than a watch is quiet by itself, shorter than clients wait."""

LAST_WORDS_S = 0.3


class EventStream(Response):
    """Server-sent events; `events` yields their bytes, and is closed however the answer ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], closing: asyncio.Event) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._closing = closing

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - ASGI's signature
        sending = asyncio.ensure_future(self._send_all(send))
        others = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._closed())]
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
            while (event := await _coming(events, send)) is not None:
                await send(_part(event))
                await asyncio.sleep(0)  # the server takes what fits into its buffers without a pause
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _closed(self) -> None:
        await self._closing.wait()
        await asyncio.sleep(LAST_WORDS_S)


async def _coming(events: AsyncGenerator[bytes, None], send: Any) -> bytes | None:
    """The next event, None after the last; meanwhile a comment now and then, because clients take silence for death."""
    coming = asyncio.ensure_future(_next(events))
    try:
        while not (await asyncio.wait((coming,), timeout=SILENCE_S))[0]:
            await send(_part(b": still reading\n\n"))
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait((coming,))
    return coming.result()


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    async for event in events:
        return event
    return None


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _gone(receive: Any) -> None:
    """The client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
