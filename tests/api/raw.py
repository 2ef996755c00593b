"""A client that need not keep to HTTP: bytes on a socket, and what comes back."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from ssl import SSLContext, SSLError

from tests.api.conftest import WAIT_S, Cluster

HEAD = b"GET /admin/v2/brokers/version HTTP/1.1\r\nHost: localhost\r\n"
CHUNK = 1 << 16
TAKEN_AT_MOST = 4_000_000
"""What a broker may read of what is poured in: a head or a body up to its limit, and what it drops behind a refusal.
The kernel may take 38 MB more: Linux lets the buffers of a connection grow to that."""


class Raw:
    """One connection. `sent` counts what the kernel took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0

    @classmethod
    async def to(cls, url: str, tls: SSLContext | None = None) -> Raw:
        host, _, port = url.partition("://")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent += len(data)

    async def pour(self, head: bytes, chunk: bytes, most: int) -> None:
        """`head`, then the chunk again and again, until so many bytes are sent or nobody takes any more."""
        try:
            await self.send(head)
            while self.sent < most:
                await self.send(chunk)
        except ConnectionError:
            return

    async def drip(self, data: bytes, pause_s: float = 0.01) -> None:
        """Byte by byte for ever, or until nobody takes any more."""
        try:
            while True:
                for byte in data:
                    await self.send(bytes((byte,)))
                    await asyncio.sleep(pause_s)
        except ConnectionError:
            return

    async def answer(self) -> bytes:
        """All that comes until the other side has ended."""
        found = b""
        try:
            async with asyncio.timeout(WAIT_S):
                while piece := await self.reader.read(CHUNK):
                    found += piece
        except ConnectionError:
            pass
        return found

    async def head(self) -> bytes:
        """The first answer's status line and headers."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)

    def close(self) -> None:
        self.writer.transport.abort()


async def connected(cluster: Cluster) -> Raw:
    """A connection to the first broker."""
    return await Raw.to(cluster.brokers[0].url, cluster.tls)


def with_credentials(cluster: Cluster, request: bytes) -> bytes:
    """The same, with the token of the cluster's clients in each head that says `Host: localhost`."""
    host = b"Host: localhost\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in cluster.credentials.items()).encode()
    return request.replace(host, host + lines)


async def status_of(cluster: Cluster, path: str) -> int:
    """Of one request on a connection of its own; 0 if it was hung up on."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    try:
        raw = await connected(cluster)
    except (ConnectionError, SSLError):
        return 0
    try:
        await raw.send(with_credentials(cluster, head))
        answer = await raw.answer()
    except ConnectionError:
        return 0
    finally:
        raw.close()
    return int(answer.split()[1]) if answer else 0


async def reads_nothing(cluster: Cluster, request: bytes) -> socket.socket:
    """A client that asks and then takes nothing."""

    def ask() -> socket.socket:  # a handshake needs the broker, which is on the loop of the test
        host, _, port = cluster.brokers[0].url.partition("://")[2].rpartition(":")
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect((host, int(port)))
        if cluster.tls is not None:
            client = cluster.tls.wrap_socket(client, server_hostname=host)
        client.sendall(with_credentials(cluster, request))
        return client

    return await asyncio.to_thread(ask)


async def refused_while_pouring(taken: Counter[int], raw: Raw, head: bytes, chunk: bytes, megabytes: int) -> bytes:
    """The answer to `head` and as many megabytes of `chunk`s; the broker reads but a few of them (fixture `taken`)."""
    port = raw.writer.get_extra_info("sockname")[1]
    pouring = asyncio.create_task(raw.pour(head, chunk, megabytes * 1_000_000))
    answer = await raw.answer()
    raw.close()
    await pouring
    assert 0 < taken[port] < TAKEN_AT_MOST, "it was read on behind the limit"
    return answer
