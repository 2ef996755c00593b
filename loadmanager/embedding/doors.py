"""The doors of a broker: what serves its admin interface. Found by entry point, so that this package imports none.

A door is `attach(node, listening) -> async context manager`, registered in the entry point group `loadmanager.doors`:
it serves HTTP on the bound, listening socket while the context is open, on the loop that runs the node. It is opened
before the node has started (`node.ready` tells) and closed after it has left. Without any door the socket still accepts
connections and closes them: the other brokers look at this port to see whether the process is alive.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import entry_points
from typing import Any, cast

from loadmanager.node import Node
from loadmanager.settings import MAX_PORT

GROUP = "loadmanager.doors"

Door = Callable[[Node, socket.socket], AbstractAsyncContextManager[Any]]


def installed_door() -> Door:
    """The door that is installed, or `closed_door` if none is. Raises RuntimeError if there are several."""
    found = entry_points(group=GROUP)
    if len({point.value for point in found}) > 1:
        raise RuntimeError(f"several packages offer {GROUP}: {[p.value for p in found]}; pass door=… to the Broker")
    for point in found:
        return cast("Door", point.load())
    return closed_door


@asynccontextmanager
async def closed_door(node: Node, listening: socket.socket) -> AsyncGenerator[None]:
    """Accept and close: shows that this process is alive, answers nothing."""

    def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, sock=listening):
        yield


def listen(address: str) -> socket.socket:
    """A listening socket on `host:port`; port 0 takes a free one. Raises OSError, ValueError, each with the address."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {_why(error)}") from None


def _why(error: OSError) -> str:
    """In a few words: a name that does not resolve has a negative number, which `strerror` does not know."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (error.strerror or str(error)).partition(" (while")[0]


def parse_address(address: str) -> tuple[str, int]:
    """Host (an IPv6 one without its brackets) and port of `host:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{address!r} is no address; write host:port")
    if int(port) > MAX_PORT:
        raise ValueError(f"{address!r} is no address: a port is a number from 0 to {MAX_PORT}")
    return host.strip("[]"), int(port)
