"""The endpoints of one broker: an ASGI application on a loop of its own, and the listener that serves it.

Before its route every request passes `http/guard.py` (web pages of other origins), then `access/` (authentication and
rate limits, if the settings ask for them). Then come the fast paths of lookups and of group members, and
`http/limits.py`. A broker is ready before the routes are loaded (`application.py`). Until then it answers probes,
lookups and members of groups. `routing.py` says which thread runs what.

The socket is bound already. Of the node, what handles sockets and addresses uses only the registration, to announce the
endpoints' address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec
from starlette.types import ASGIApp
from structlog.contextvars import bind_contextvars
from uvicorn import Config

from loadmanager.broker.node import Node
from loadmanager.embedding.endpoints import listen, opened
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager.settings import Settings
from loadmanager_api.access.access import Access, Gate
from loadmanager_api.access.rates import LOOKUPS_FOR_A_REQUEST, Rates, Throttle
from loadmanager_api.access.tls import Tls
from loadmanager_api.audit import Refusals
from loadmanager_api.groups.members import MembersPath
from loadmanager_api.http.connections import RESERVED_CONNECTIONS, Bounds, Listener
from loadmanager_api.http.counts import Counted
from loadmanager_api.http.guard import Guard, Names, ProbesAlone
from loadmanager_api.http.limits import Limits
from loadmanager_api.http.lookups import LookupConnection, LookupPath
from loadmanager_api.http.methods import Methods
from loadmanager_api.http.probes import Probes
from loadmanager_api.state import HANDOVER, KEPT, Kept

_ONE_AT_A_TIME = threading.Lock()
"""Of the brokers of a process: Pydantic gives a model that another thread is still setting up away unfinished."""


class Routes:
    """An ASGI application: the routes, loaded on a thread by `load`, or by the first request that needs them.

    `loaded` is called on that thread as soon as they are there.
    """

    def __init__(self, loaded: Callable[[], None] = lambda: None) -> None:
        self._loaded = loaded
        self._app: ASGIApp | None = None
        self._loading: asyncio.Task[ASGIApp] | None = None

    async def load(self) -> ASGIApp:
        """The routes, loaded once; again if that failed. Call it on the endpoints' loop."""
        if self._loading is None or _failed(self._loading):
            self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        self._app = app = await asyncio.shield(self._loading)
        return app

    def _load(self) -> ASGIApp:
        with _ONE_AT_A_TIME:
            from loadmanager_api.application import laid_out  # FastAPI: half a second

            routes = laid_out()
        self._loaded()
        return routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        routes = self._app or await self.load()
        await routes(scope, receive, send)


def _failed(loading: asyncio.Task[ASGIApp]) -> bool:
    return loading.done() and (loading.cancelled() or loading.exception() is not None)


def create_app(
    kept: Kept, unsent_bytes: Callable[[], int] = lambda: 0, routes: ASGIApp | None = None
) -> tuple[ASGIApp, LookupPath]:
    """The application for the broker that `kept` belongs to, to be served without a lifespan; and its lookups."""
    settings, access = kept.node.settings, kept.access
    answering = Methods(Probes(kept.node, routes or Routes(), access))

    async def kept_by_these_endpoints(scope: Any, receive: Any, send: Any) -> None:
        scope[KEPT] = kept
        HANDOVER.set(kept.handover)
        await answering(scope, receive, send)

    names = Names(settings, kept.handover.bind, kept.cluster)
    bounded = Limits(kept_by_these_endpoints, settings, kept.counts, unsent_bytes, no_room=kept.batches.refusal_by_size)
    per_s = settings.http_request_rate
    limits = (None, None) if per_s is None else (LOOKUPS_FOR_A_REQUEST * per_s, per_s)
    rates, others = (None if limit is None else Rates(limit, time.monotonic) for limit in limits)
    members = MembersPath(kept.node, bounded, kept.closing, kept.counts, access, unsent_bytes)
    lookups = LookupPath(kept.handover, names, members, access, rates, kept.requests)
    calm = lookups if rates is None and others is None else Throttle(lookups, rates, others)
    return Counted(Guard(calm if access is None else Gate(calm, access), names, access), kept.requests), lookups


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
    check_reach(_with_port(listening, listening.getsockname()[1]), settings)
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
    open_to_all = () if settings.authentication else ("all clients may do anything (give token_keys or tls_client_ca)",)
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
