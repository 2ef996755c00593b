"""Serves a broker's endpoints: uvicorn's parser and ASGI on our own listener, on a socket that is bound already.

It handles sockets and addresses; of the node it uses only the registration, to announce the endpoints' address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec

import msgspec
from starlette.types import ASGIApp
from structlog.contextvars import bind_contextvars
from uvicorn import Config

from loadmanager.broker.node import Node
from loadmanager.embedding.endpoints import listen, opened
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager.settings import Settings
from loadmanager_api.access.access import Access
from loadmanager_api.access.tls import Tls
from loadmanager_api.app import Routes, create_app
from loadmanager_api.auditing.recording import Refusals
from loadmanager_api.http.connections import RESERVED_CONNECTIONS, Bounds, Listener
from loadmanager_api.http.guard import ProbesAlone
from loadmanager_api.http.lookups import LookupConnection
from loadmanager_api.kept import Kept

CLOSE_TIMEOUT_S = 3.0

for _needed in ("fastapi", "jwt"):  # imported when a route first needs them; a missing one is told at the start
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


class NotLoopback(ValueError):
    """An address that others can reach was given, without TLS or authentication, and without `insecure`."""


@asynccontextmanager
async def serve(node: Node, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Bind, tell the node its admin URL (so enter this before `node.run()`), and serve while the context is open.

    Gives the URL. Port 0 takes a free one. Raises NotLoopback (see `check_reach`), Invalid if files of TLS or tokens
    cannot be used, and OSError if the address is taken.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    settings = node.settings
    check_reach(address, settings)
    listening = listen(address)
    try:
        node.registration = msgspec.structs.replace(
            node.registration, admin_url=url_of(listening, settings.advertised, settings.admin_scheme)
        )
        async with opened(attach, node, listening, address):
            yield node.registration.admin_url
    finally:
        listening.close()


@asynccontextmanager
async def attach(
    handover: Handover, listening: socket.socket, loaded: Callable[[], None] = lambda: None
) -> AsyncGenerator[None]:
    """Serve on a socket that listens already, while the context is open (an endpoint, see
    `loadmanager.embedding.endpoints`).

    `loaded` is called once the routes are loaded, on another thread, after the broker is ready. Raises NotLoopback (see
    `check_reach`), and Invalid if files of TLS or tokens cannot be used.
    """
    settings = handover.node.settings
    bind_contextvars(broker=settings.advertised)
    check_reach(_address_of(listening), settings)
    tls = Tls(settings) if settings.tls_certificate else None
    access = Access(settings) if settings.authentication else None
    closing = asyncio.Event()
    kept = await handover.ask(lambda: Kept.of(handover, closing, access))
    routes = Routes(loaded)
    app, lookups = create_app(kept, lambda: listener.unsent_bytes(), routes)
    bounds, make = Bounds.of(settings), partial(LookupConnection, lookups)
    listener = Listener(
        listening, _served(app), bounds, settings.http_connections, kept.counts, make, tls, cluster=kept.cluster
    )
    listeners = [listener]
    if settings.http_probe_port:
        probed = listen(_with_port(listening, settings.http_probe_port))
        probes, few = _served(ProbesAlone(app)), RESERVED_CONNECTIONS
        listeners.append(Listener(probed, probes, bounds, few, kept.counts, cluster=kept.cluster))
    refusals, keeping = Refusals(handover), None
    if access is not None:
        access.tell = refusals.note
        keeping = asyncio.create_task(access.keep_current())
    loading = asyncio.create_task(_load_when_ready(handover, routes))
    for each in listeners:
        each.start()
    try:
        yield
    finally:
        closing.set()
        if keeping is not None:
            keeping.cancel()
        try:
            await asyncio.gather(*(each.close(CLOSE_TIMEOUT_S) for each in listeners))
            await refusals.close()
            await kept.attempts.close()
        finally:
            loading.cancel()
            await asyncio.wait((loading,))


async def _load_when_ready(handover: Handover, routes: Routes) -> None:
    """The routes take the time of the processor that a starting broker needs, and few requests need them at once."""
    with suppress(Unavailable):  # it leaves without having been ready
        await handover.ask(handover.node.ready.wait, light=True)
        await routes.load()


def check_reach(address: str, settings: Settings) -> None:
    """Raise NotLoopback if others may reach `host:port` without TLS or authentication, unless `insecure` is on."""
    if settings.insecure or is_loopback(address.rpartition(":")[0].strip("[]")):
        return
    open_to_all = () if settings.authentication else ("anybody may do anything (give token_keys or tls_client_ca)",)
    readable = () if settings.tls_certificate else ("others can read what is sent, tokens too (give tls_certificate)",)
    if open_to_all or readable:
        raise NotLoopback(
            f"{address} can be reached from other machines, and {', and '.join((*open_to_all, *readable))}; "
            "see docs/security.md, or listen on 127.0.0.1, or say --insecure (LOADMANAGER_INSECURE=true)"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than `localhost` counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _served(app: ASGIApp) -> Config:
    return Config(
        app, http="httptools", lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False
    )


def _address_of(listening: socket.socket) -> str:
    return _with_port(listening, listening.getsockname()[1])


def _with_port(listening: socket.socket, port: int) -> str:
    """The address where it listens, but with this port."""
    host = listening.getsockname()[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket, advertised: str, scheme: str = "http") -> str:
    """The URL under which others reach the socket; where it listens everywhere, by the advertised host."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = advertised.rpartition(":")[0].strip("[]") or host
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
