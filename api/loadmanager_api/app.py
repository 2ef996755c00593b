"""The endpoints of one broker: an ASGI application on a loop of its own (`crossing.py` says which thread runs what).

All brokers of a process share one FastAPI application, since FastAPI takes a sixth of a second to set up the routes.
Each request carries its broker and the endpoints' state (`kept.Kept`).

There is no authentication yet: whoever reaches the port may do everything. `server.py` therefore binds loopback only,
unless told otherwise, and `guard.py` rejects requests from other origins' web pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from loadmanager.model.registration import VERSION
from loadmanager_api import errors
from loadmanager_api.crossing import HANDOVER
from loadmanager_api.guard import Guard, Names
from loadmanager_api.kept import KEPT, Kept
from loadmanager_api.limits import Limits
from loadmanager_api.lookup_path import LookupPath
from loadmanager_api.routes import (
    balancing,
    brokers,
    channel,
    explain,
    history,
    load_history,
    lookups,
    namespaces,
    own_brokers,
    own_bundles,
    plans,
    policies,
    pulsar_policies,
    settings,
    splitting,
    tasks,
    watch,
)


def create_app(kept: Kept, unsent_bytes: Callable[[], int] = lambda: 0) -> tuple[ASGIApp, LookupPath]:
    """The application for the broker that `kept` belongs to, to be served without a lifespan; and its lookups."""
    app, settings = routes_of_all(), kept.node.settings

    async def kept_by_these_endpoints(scope: Any, receive: Any, send: Any) -> None:
        scope[KEPT] = kept
        HANDOVER.set(kept.handover)
        await app(scope, receive, send)

    names = Names(settings, kept.handover.bind)
    lookups = LookupPath(kept.handover, names, Limits(kept_by_these_endpoints, settings, kept.counts, unsent_bytes))
    return Guard(lookups, names), lookups


class _Application(FastAPI):
    """Its OpenAPI document has the shape of every error, in place of FastAPI's own, which nobody gets."""

    def openapi(self) -> dict[str, Any]:
        first = self.openapi_schema is None
        document = super().openapi()
        if first:
            errors.describe(document)
        return document


@cache
def routes_of_all() -> FastAPI:
    """All routes, for every broker of this process."""
    app = _Application(
        title="loadmanager",
        version=VERSION,
        docs_url=None,  # these pages would load their scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        responses=errors.PROBLEMS,
    )
    for routes in (
        *(settings, lookups, namespaces, brokers, own_bundles, own_brokers, channel, history),
        *(watch, tasks, balancing, plans, policies, pulsar_policies, explain, splitting, load_history),
    ):
        app.include_router(routes.router)
    errors.install(app)
    return app


@cache
def lay_out_routes() -> None:
    """Set up the routes now, not at the first request. Takes a sixth of a second: call it in a thread."""
    asyncio.run(_nothing_there())


async def _nothing_there() -> None:
    """Send a request that is compared with every route and matches none."""
    path = "/nothing-is-there"
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    await routes_of_all()(scope, _nothing_sent, _dropped)


async def _nothing_sent() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _dropped(_: Any) -> None:
    pass
