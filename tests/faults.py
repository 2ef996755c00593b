"""A TCP proxy that can cut what it carries, in two ways: with a reset, or in silence. Carries bytes, reads none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Coroutine
from enum import StrEnum
from typing import Any

CHUNK_BYTES = 64 * 1024


class Cut(StrEnum):
    """How a link fails."""

    RESET = "reset"
    """Connections break at once, new ones are refused: a process that died."""
    BLACKHOLE = "blackhole"
    """Connections stay open and nothing passes: a network that lost its way. Healing lets it pass."""


class TcpProxy:
    """Forwards a loopback port (0: a free one) to `target` (`host:port`), which may be set later."""

    def __init__(self, target: str = "", port: int = 0) -> None:
        self.target = target
        self._port = port
        self._listener: socket.socket | None = None
        self._cut: Cut | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        listener = self._listener = socket.create_server(("127.0.0.1", self._port), backlog=100)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._port}"

    def cut(self, how: Cut = Cut.RESET) -> None:
        """Fail, from now on."""
        self._cut = how
        if how is Cut.RESET:
            for link in self._links:
                link.cancel()
        else:
            self._open.clear()

    def heal(self) -> None:
        """Carry again; what was held back in silence passes now."""
        self._cut = None
        self._open.set()

    async def aclose(self) -> None:
        """Break everything and stop listening. Idempotent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        self.cut(Cut.RESET)
        await asyncio.gather(*self._links, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            near, _ = listener.accept()
            if self._cut is Cut.RESET:
                _reset(near)
                return
            near.setblocking(False)
            link = asyncio.ensure_future(self._carry(near))
            self._links.add(link)
            link.add_done_callback(self._links.discard)
            link.add_done_callback(lambda _: _reset(near))  # also if it was cancelled before it began

    async def _carry(self, near: socket.socket) -> None:
        with socket.socket() as far, contextlib.suppress(OSError):
            far.setblocking(False)
            await self._open.wait()
            host, _, port = self.target.rpartition(":")
            await asyncio.get_running_loop().sock_connect(far, (host, int(port)))
            pumps = [asyncio.ensure_future(pump) for pump in self._pumps(near, far)]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    def _pumps(self, near: socket.socket, far: socket.socket) -> tuple[Coroutine[Any, Any, None], ...]:
        return self._pump(near, far), self._pump(far, near)

    async def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, CHUNK_BYTES):
            await self._open.wait()
            await loop.sock_sendall(sink, data)


@contextlib.asynccontextmanager
async def proxy_to(target: str = "", port: int = 0) -> AsyncGenerator[TcpProxy]:
    """A proxy for the length of a block."""
    proxy = TcpProxy(target, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.aclose()


def _reset(end: socket.socket) -> None:
    """Close with a reset: what is under way is lost, as when a process dies."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
