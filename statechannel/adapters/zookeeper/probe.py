"""Asks one ZooKeeper server for the session time-outs that it grants, and for its answer to `srvr`.

Sends the protocol's first message itself: a client library would hide which server answered, and what it granted.
Judges nothing, and leaves no session behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import msgspec

_REQUEST = struct.Struct(">iqiqi16s?")
_GRANTED = struct.Struct(">iiq")
_END_SESSION = struct.pack(">iii", 8, 1, -11)
_VERSION, _MODE = re.compile(r"Zookeeper version: (\d[\w.]*)"), re.compile(r"Mode: (.+)")
_MAX_ANSWER_BYTES = 64 * 1024
_SHORTEST_MS, _LONGEST_MS = 1, 2**31 - 1


class Unreachable(Exception):
    """This server does not serve us at present; the text says what was seen."""


class Granted(msgspec.Struct, frozen=True):
    """The session time-out that the server granted, and its limits."""

    timeout_ms: int
    shortest_ms: int
    longest_ms: int


class Server(msgspec.Struct, frozen=True):
    """What one server answered. `version` and `mode` are empty if `srvr` is switched off."""

    address: str
    answer_ms: float
    granted: Granted
    version: str
    mode: str


async def ask_server(address: str, session_timeout_s: float, tls: ssl.SSLContext | None, timeout_s: float) -> Server:
    """Ask one server for all of it. Raises Unreachable."""
    try:
        async with asyncio.timeout(timeout_s):
            began_s = time.monotonic()
            granted_ms = await _handshake(address, int(session_timeout_s * 1_000), tls)
            answer_ms = (time.monotonic() - began_s) * 1_000
            shortest_ms = await _handshake(address, _SHORTEST_MS, tls)
            longest_ms = await _handshake(address, _LONGEST_MS, tls)
            said = await _four_letters(address, b"srvr", tls)
    except TimeoutError:
        raise Unreachable(f"it did not answer within {timeout_s:g} s") from None
    except ssl.SSLError as error:
        raise Unreachable(f"TLS failed: {error.reason or error}") from error
    except OSError as error:
        raise Unreachable(_plainly(error)) from error
    granted = Granted(granted_ms, shortest_ms, longest_ms)
    return Server(address, answer_ms, granted, _said(said, _VERSION), _said(said, _MODE))


async def _handshake(address: str, session_timeout_ms: int, tls: ssl.SSLContext | None) -> int:
    """Begin a session and end it; the time-out granted, in ms."""
    request = _REQUEST.pack(0, 0, session_timeout_ms, 0, 16, bytes(16), False)
    async with _connected(address, tls) as (reader, writer):
        writer.write(len(request).to_bytes(4) + request)
        try:
            size = int.from_bytes(await reader.readexactly(4))
            if not _GRANTED.size <= size <= _MAX_ANSWER_BYTES:
                raise Unreachable("the server there is not ZooKeeper, or expects TLS (set use_ssl=true)")
            _, granted_ms, _ = _GRANTED.unpack_from(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            text = "it closes the connection at once: no quorum, too many connections, or TLS on one side only"
            raise Unreachable(text) from None
        writer.write(_END_SESSION)
        with suppress(OSError):
            while await reader.read(1024):
                pass
        return int(granted_ms)


async def _four_letters(address: str, word: bytes, tls: ssl.SSLContext | None) -> str:
    """The server's answer to a four-letter word; if it is switched off: nothing, or a note on the whitelist."""
    async with _connected(address, tls) as (reader, writer):
        writer.write(word)
        answer = b""
        with suppress(OSError):
            while len(answer) < _MAX_ANSWER_BYTES and (chunk := await reader.read(4096)):
                answer += chunk
        return answer.decode(errors="replace")


@asynccontextmanager
async def _connected(
    address: str, tls: ssl.SSLContext | None
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                await writer.wait_closed()


def _plainly(error: OSError) -> str:
    """The error without the name of the failed call; name servers' errors have negative codes of their own."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or repr(error)


def _said(text: str, pattern: re.Pattern[str]) -> str:
    found = pattern.search(text)
    return found.group(1).strip() if found else ""
