"""The endpoints of one broker: an ASGI application on a loop of their own (`crossing.py` says what runs where).

Behind it is one FastAPI application for all brokers of a process, since FastAPI takes a sixth of a second to lay out
the routes of one; which broker a request is for, and what its endpoints keep, comes with the request (`kept.Kept`).

There is no authentication yet: whoever reaches the port may do everything. `server.py` therefore binds loopback only,
unless told otherwise, and `guard.py` keeps other people's web pages out.
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
    """The application of the broker that `kept` is of, to be served without a lifespan; and the lookups in it."""
    app, settings = routes_of_all(), kept.node.settings

    async def kept_by_these_endpoints(scope: Any, receive: Any, send: Any) -> None:
        scope[KEPT] = kept
        HANDOVER.set(kept.handover)
        await app(scope, receive, send)

    names = Names(settings, kept.handover.bind)
    lookups = LookupPath(kept.handover, names, Limits(kept_by_these_endpoints, settings, kept.counts, unsent_bytes))
    return Guard(lookups, names), lookups


@cache
def routes_of_all() -> FastAPI:
    """Every route, for every broker of this process."""
    app = FastAPI(
        title="loadmanager",
        version=VERSION,
        docs_url=None,  # these pages would load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
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
    """Do what FastAPI leaves to the first request, and what takes it a sixth of a second: in a thread, please."""
    asyncio.run(_nothing_there())


async def _nothing_there() -> None:
    """A request that every route is compared with and none is for."""
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
