"""The port where the service finds its sidecar: passes connections on, refuses them, or resets them."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

HOST = "127.0.0.1"
_PIECE_BYTES = 65_536
_LINGER_NOT = struct.pack("ii", 1, 0)
"""Closing a socket with this option resets its connection."""


class Gate:
    """One port, the same for its whole life. Call everything on one loop."""

    def __init__(self) -> None:
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self.target: tuple[str, int] | None = None
        """Where connections are passed on to; None: they are reset, and counted."""
        self.resets = 0
        self._server: asyncio.Server | None = None
        self._writers = set[asyncio.StreamWriter]()

    @property
    def url(self) -> str:
        """The address for the service."""
        return f"http://{HOST}:{self.port}"

    async def open(self, target: tuple[str, int] | None) -> None:
        """Take connections, and pass them on to `target`; None: reset each one."""
        self.target = target
        if self._server is None:
            self._server = await asyncio.start_server(self._pass_on, sock=_bound(self.port))

    async def shut(self) -> None:
        """Refuse connections, and reset those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Free the port."""
        await self.shut()
        self._reserved.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            self.resets += 1
            _reset(writer)
            return
        self._writers.add(writer)
        try:
            there_reader, there = await asyncio.open_connection(*self.target)
            self._writers.add(there)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there))
                    both.create_task(_copy(there_reader, writer))
            finally:
                self._writers.discard(there)
                there.close()
        except OSError:
            _reset(writer)
        finally:
            self._writers.discard(writer)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket that does not listen yet. While one is there, nobody else on the machine is given the port."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound
