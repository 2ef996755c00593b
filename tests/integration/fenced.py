"""A proxy of Kafka behind which a cluster can seem to have no server, as one that has just started says of itself.

A server answers requests some moments before its controller lets it serve. Its answers about topics then name no
server at all.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from typing import Any

from tests.faults import TcpProxy

METADATA = 3
FLEXIBLE = 9
"""From this version of the request on, answers have compact arrays and tags."""


class FencedKafka(TcpProxy):
    """Forwards to one server. While `fenced`, no answer names a server; `answers` counts those that did not."""

    def __init__(self, target: str = "", port: int = 0) -> None:
        super().__init__(target, port)
        self.fenced = False
        self.answers = 0

    def _pumps(self, near: socket.socket, far: socket.socket) -> tuple[Coroutine[Any, Any, None], ...]:
        asked: dict[int, int] = {}
        return self._requests(near, far, asked), self._answers(far, near, asked)

    async def _requests(self, near: socket.socket, far: socket.socket, asked: dict[int, int]) -> None:
        while frame := await self._frame(near):
            key, version, number = struct.unpack_from(">hhi", frame)
            if key == METADATA:
                asked[number] = version
            await self._send(far, frame)

    async def _answers(self, far: socket.socket, near: socket.socket, asked: dict[int, int]) -> None:
        while frame := await self._frame(far):
            version = asked.pop(struct.unpack_from(">i", frame)[0], None)
            if version is not None and self.fenced:
                self.answers += 1
                frame = without_servers(frame, version)
            await self._send(near, frame)

    async def _frame(self, source: socket.socket) -> bytes:
        head = await self._exactly(source, 4)
        return await self._exactly(source, struct.unpack(">i", head)[0]) if head else b""

    async def _exactly(self, source: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await asyncio.get_running_loop().sock_recv(source, size - len(data))
            if not more:
                return b""
            data += more
        return data

    async def _send(self, sink: socket.socket, frame: bytes) -> None:
        await self._open.wait()
        await asyncio.get_running_loop().sock_sendall(sink, struct.pack(">i", len(frame)) + frame)


def without_servers(answer: bytes, version: int) -> bytes:
    """An answer to a request for metadata, of a `FLEXIBLE` version, with its array of servers empty."""
    assert version >= FLEXIBLE, version
    begin = 4 + 1 + 4  # the request's number, no tags, the time of throttling
    count, at = _varint(answer, begin)
    for _ in range(count - 1):
        at = _string(answer, at + 4)  # its id, and its host
        at = _string(answer, at + 4)  # its port, and its rack
        assert answer[at] == 0, "no tags"
        at += 1
    return answer[:begin] + b"\x01" + answer[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def _string(data: bytes, at: int) -> int:
    """Where a compact string ends."""
    length, at = _varint(data, at)
    return at + max(0, length - 1)
