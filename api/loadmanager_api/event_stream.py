"""An answer without an end: sends events as long as the client reads and the endpoints are open.

The connection cuts off a client that does not read. When the endpoints close, the rest is sent quickly or dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

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
