"""Serves a broker's endpoints: uvicorn's parser and ASGI on our own listener, on a socket that is bound already.

It handles sockets and addresses; of the node it uses only the registration, to announce the endpoints' address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from uvicorn import Config

from loadmanager.broker.node import Node
from loadmanager.embedding.endpoints import listen, opened
from loadmanager.embedding.handover import Handover
from loadmanager_api.app import create_app, lay_out_routes
from loadmanager_api.connection import Bounds
from loadmanager_api.kept import Kept
from loadmanager_api.listener import Listener
from loadmanager_api.lookup_protocol import LookupConnection

CLOSE_TIMEOUT_S = 3.0


class NotLoopback(ValueError):
    """An address that others can reach was given without the setting `insecure`."""


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
        async with opened(attach, node, listening, address):
            yield node.registration.admin_url
    finally:
        listening.close()


@asynccontextmanager
async def attach(handover: Handover, listening: socket.socket) -> AsyncGenerator[None]:
    """Serve on a socket that listens already, while the context is open (an endpoint, see
    `loadmanager.embedding.endpoints`).

    Raises NotLoopback if others reach the socket and the setting `insecure` is off.
    """
    settings = handover.node.settings
    check_reach(_address_of(listening), insecure=settings.insecure)
    closing = asyncio.Event()
    kept = await handover.ask(lambda: Kept.of(handover, closing))
    app, lookups = create_app(kept, lambda: listener.unsent_bytes())
    listener = Listener(
        listening,
        Config(
            app, http="httptools", lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False
        ),
        Bounds.of(settings),
        settings.http_connections,
        kept.counts,
        partial(LookupConnection, lookups),
    )
    laying_out = asyncio.create_task(asyncio.to_thread(lay_out_routes))
    listener.start()
    try:
        yield
    finally:
        closing.set()
        try:
            await listener.close(CLOSE_TIMEOUT_S)
        finally:
            await laying_out


def check_reach(address: str, *, insecure: bool) -> None:
    """Raise NotLoopback if others may reach `host:port` and `insecure` is off."""
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
