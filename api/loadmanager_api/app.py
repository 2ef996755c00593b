"""The endpoints of one broker: an ASGI application on a loop of its own (`crossing.py` says which thread runs what).

Every request passes `http/guard.py` (web pages of other origins), `access/` (who sends it, and how often they may, if
the settings ask), the lookups' fast path, that of members of groups, and `http/limits.py`, before its route. A broker
is ready before the routes are loaded (`application.py`): until then it answers probes, lookups and members of groups.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from loadmanager_api.access.gate import Gate
from loadmanager_api.access.rates import rates_of, throttled
from loadmanager_api.groups.members import MembersPath
from loadmanager_api.http.counts import Counted
from loadmanager_api.http.guard import Guard, Names
from loadmanager_api.http.limits import Limits
from loadmanager_api.http.lookups import LookupPath
from loadmanager_api.http.methods import Methods
from loadmanager_api.http.probes import Probes
from loadmanager_api.kept import HANDOVER, KEPT, Kept

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
    rates = rates_of(settings.http_lookup_rate, time.monotonic)
    members = MembersPath(kept.node, bounded, kept.closing, kept.counts, access, unsent_bytes)
    lookups = LookupPath(kept.handover, names, members, access, rates, kept.requests)
    calm = throttled(lookups, settings, rates, time.monotonic)
    return Counted(Guard(calm if access is None else Gate(calm, access), names, access), kept.requests), lookups
