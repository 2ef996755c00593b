"""Opens the endpoint of a broker, which serves its admin interface. Found by entry point, so this package imports none.

An endpoint is `attach(handover, listening) -> async context manager`, registered in the entry point group
`loadmanager.endpoints`. It serves HTTP on the listening socket while the context is open. It has a thread and an event
loop of its own, so that nothing from clients is read on the loop that renews proofs. `handover.py` says what it may
read of the node, and how it asks for the rest. It opens before the node has started (see `node.ready`) and closes after
the node has left. Without any endpoint the socket still accepts connections and closes them, because other brokers
probe this port to see whether the process is alive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.metadata import entry_points
from typing import Any, cast

from loadmanager.broker.node import Node
from loadmanager.embedding.handover import Handover
from loadmanager.errors import needs_extra
from loadmanager.settings import MAX_PORT
from statechannel.runtime.forking import close_in_children

GROUP, OURS = "loadmanager.endpoints", "loadmanager_api."
CLOSED_WITHIN_S = 8.0
"""How long to wait for an endpoint that hangs; its thread ends with the process."""

_log = logging.getLogger("loadmanager")

Endpoint = Callable[[Handover, socket.socket], AbstractAsyncContextManager[Any]]


def installed_endpoint() -> Endpoint:
    """The installed endpoint, or `closed_endpoint` if there is none.

    Raises RuntimeError if there are several, MissingExtra if it is ours and its packages are not installed.
    """
    found = entry_points(group=GROUP)
    if len({point.value for point in found}) > 1:
        raise RuntimeError(f"several packages offer {GROUP}: {[p.value for p in found]}; pass endpoint=… to the Broker")
    for point in found:
        if not point.value.startswith(OURS):
            return cast("Endpoint", point.load())
        with needs_extra("api", "the admin interface"):
            return cast("Endpoint", point.load())
    return closed_endpoint


@asynccontextmanager
async def closed_endpoint(handover: Handover, listening: socket.socket) -> AsyncGenerator[None]:
    """An endpoint that only accepts and closes connections, which shows that this process is alive."""

    def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, sock=listening):
        yield


@asynccontextmanager
async def opened(endpoint: Endpoint, node: Node, listening: socket.socket, bind: str = "") -> AsyncGenerator[None]:
    """Run the endpoint on a thread of its own while the context is open; enter it on the loop that runs the node.

    `bind` is the address of the socket as it was given, perhaps with a host name. Raises the endpoint's errors when it
    opens.
    """
    handover = Handover(node, bind)
    thread = _EndpointThread(endpoint, handover, listening)
    try:
        await thread.open()
        yield
    finally:
        try:
            await handover.end()
        finally:
            thread.begin_to_close()
            try:
                await handover.close()
            finally:
                handover.abandon()
                await thread.closed()


class _EndpointThread:
    """A thread with a loop that serves one endpoint. All but `_work` and `_serve` is called on the control loop."""

    def __init__(self, endpoint: Endpoint, handover: Handover, listening: socket.socket) -> None:
        self._endpoint = endpoint
        self._handover = handover
        self._listening = listening
        self._opened: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._to_close = False
        self._thread = threading.Thread(target=self._work, name="loadmanager-endpoints", daemon=True)

    async def open(self) -> None:
        """Return when it serves. Raises the endpoint's errors when it opens."""
        self._thread.start()
        await asyncio.shield(asyncio.wrap_future(self._opened))

    def begin_to_close(self) -> None:
        """Close it, now or as soon as it has opened."""
        self._to_close = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._closing.set)

    async def closed(self) -> None:
        """Return when the thread has ended, or after `CLOSED_WITHIN_S`."""
        ended = asyncio.wrap_future(self._ended)
        done, _ = await asyncio.wait((ended,), timeout=CLOSED_WITHIN_S)
        if not done:
            _log.error("the endpoints did not close within %g s: something blocks their thread", CLOSED_WITHIN_S)

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the caller of `open` gets it
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                _log.exception("the endpoints failed")
        finally:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._to_close:
            self._closing.set()
        self._handover.open()
        async with self._endpoint(self._handover, self._listening):
            self._opened.set_result(None)
            await self._closing.wait()


def listen(address: str) -> socket.socket:
    """A listening socket on `host:port`; port 0 takes a free one. Raises OSError, ValueError, each with the address.

    Without a host it listens on all addresses of IPv4 and IPv6, or of IPv4 alone where the machine has no IPv6; so does
    `[::]`, which fails there.
    """
    host, port = parse_address(address)
    both = host in ("", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {_why(error)}") from None
    close_in_children(listening.fileno())
    return listening


def _why(error: OSError) -> str:
    """A short reason; a name that does not resolve has a negative number, which `strerror` does not know."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (error.strerror or str(error)).partition(" (while")[0]


def parse_address(address: str) -> tuple[str, int]:
    """Host (IPv6 without brackets) and port of `host:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{address!r} is not an address; write host:port")
    if int(port) > MAX_PORT:
        raise ValueError(f"{address!r} is not an address: the port must be a number from 0 to {MAX_PORT}")
    return host.strip("[]"), int(port)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory for `asyncio.Runner`; None for asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
