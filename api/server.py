"""Serves a broker's doors: uvicorn on the loop that runs the node, on a socket that was bound before.

Knows of sockets, addresses and limits; of the node only that its registration tells the others where its doors are.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import uvicorn

from api.app import create_app, lay_out_routes
from api.doorway import Kept
from api.lookup_protocol import LookupProtocol
from loadmanager.embedding.doors import listen
from loadmanager.node import Node

MAX_CONNECTIONS = 4_096
"""Beyond it uvicorn itself answers 503, in plain text."""

KEEP_ALIVE_S = 75
UP_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0


class NotLoopback(ValueError):
    """An address that others can reach was given without saying that this is meant."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the process belongs to somebody else."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serve(node: Node, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Bind, tell the node its admin URL (so enter this before `node.run()`), and serve while the context is open.

    Gives the URL. Port 0 takes a free one. Raises NotLoopback (unless the setting `insecure` is on), and OSError if the
    address is taken.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    check_reach(address, insecure=node.settings.insecure)
    listening = listen(address)
    try:
        node.registration = msgspec.structs.replace(
            node.registration, admin_url=url_of(listening, node.settings.advertised)
        )
        async with attach(node, listening):
            yield node.registration.admin_url
    finally:
        listening.close()


@asynccontextmanager
async def attach(node: Node, listening: socket.socket) -> AsyncGenerator[None]:
    """Serve on a socket that listens already, while the context is open (a door, see `loadmanager.embedding.doors`).

    Raises NotLoopback if others reach the socket and the setting `insecure` is off.
    """
    check_reach(_address_of(listening), insecure=node.settings.insecure)
    closing = asyncio.Event()
    kept = Kept.of(node, closing)
    server = _Server(
        uvicorn.Config(
            create_app(kept),
            http=LookupProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
        )
    )
    laying_out = asyncio.create_task(asyncio.to_thread(lay_out_routes))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await _until_up(server, serving)
        yield
    finally:
        closing.set()
        server.should_exit = True
        try:
            await asyncio.wait((serving,), timeout=2 * CLOSE_TIMEOUT_S)
        finally:  # each step is done, also if somebody loses patience in the one before
            serving.cancel()
            try:
                await kept.close()
            finally:
                await laying_out


async def _until_up(server: _Server, serving: asyncio.Task[None]) -> None:
    up = asyncio.ensure_future(server.up.wait())
    try:
        await asyncio.wait((up, serving), timeout=UP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
    if serving.done():
        await serving
    if not server.up.is_set():
        raise RuntimeError(f"the HTTP server did not start within {UP_TIMEOUT_S:g} s")


def check_reach(address: str, *, insecure: bool) -> None:
    """Raise NotLoopback if others may reach `host:port` and that was not said to be meant."""
    if not insecure and not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise NotLoopback(
            f"{address} can be reached from other machines, and there is no authentication: "
            "listen on 127.0.0.1, or say --insecure (LOADMANAGER_INSECURE=true)"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than `localhost` counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket, advertised: str) -> str:
    """The URL under which others reach the socket; where it listens everywhere, by the advertised host."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = advertised.rpartition(":")[0].strip("[]") or host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
