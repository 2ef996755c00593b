"""A TCP proxy that can cut what it carries, in two ways: with a reset, or in silence. Carries bytes, reads none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from enum import StrEnum

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
        self._server: asyncio.Server | None = None
        self._cut: Cut | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    def cut(self, how: Cut = Cut.RESET) -> None:
        """Fail, from now on."""
        self._cut = how
        if how is Cut.RESET:
            for writer in self._writers:
                _reset(writer)
            self._open.set()
        else:
            self._open.clear()

    def heal(self) -> None:
        """Carry again; what was held back in silence passes now."""
        self._cut = None
        self._open.set()

    async def aclose(self) -> None:
        """Break everything and stop listening."""
        self.cut(Cut.RESET)
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            self._links.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._open.wait()
            if self._cut is Cut.RESET:
                _reset(writer)
                return
            host, _, port = self.target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        finally:
            self._writers.discard(writer)
        ends = {writer, far_writer}
        self._writers |= ends
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer)),
            asyncio.ensure_future(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= ends
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def proxy_to(target: str = "", port: int = 0) -> AsyncGenerator[TcpProxy]:
    """A proxy for the length of a block."""
    proxy = TcpProxy(target, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.aclose()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
