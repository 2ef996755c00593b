"""The routes, as one FastAPI application for all brokers of a process: FastAPI takes half a second to be loaded and to
set them up.

Each request carries its broker and the endpoints' state (`state.Kept`).
"""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from loadmanager.model.registration import VERSION
from loadmanager_api import problems
from loadmanager_api.conditions import Tagged
from loadmanager_api.http.methods import not_allowed
from loadmanager_api.openapi import OPTIONAL, complete, operation_id
from loadmanager_api.routes import (
    audit,
    brokers,
    bundles,
    channel,
    dashboard,
    explain,
    groups,
    load_history,
    lookups,
    operations,
    plans,
    policies,
    settings,
    this_broker,
)
from loadmanager_api.routes.pulsar import brokers as pulsar_brokers
from loadmanager_api.routes.pulsar import namespaces as pulsar_namespaces
from loadmanager_api.routes.pulsar import policies as pulsar_policies


@cache
def laid_out() -> ASGIApp:
    """The routes with `ETag`, set up for the first request, which takes a sixth of a second."""
    asyncio.run(_nothing_there())
    return Tagged(routes_of_all())


_DESCRIBING = threading.Lock()


class _Application(FastAPI):
    """Its OpenAPI document says what `openapi.py` knows."""

    def openapi(self) -> dict[str, Any]:
        with _DESCRIBING:
            first = self.openapi_schema is None
            document = super().openapi()
            if first:
                complete(document)
            return document


@cache
def routes_of_all() -> FastAPI:
    """All routes, for every broker of this process."""
    app = _Application(
        title="loadmanager",
        version=VERSION,
        openapi_url=None,  # a route of `this_broker.py`, with a rule
        docs_url=None,  # these pages would load their scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        responses=OPTIONAL,
        generate_unique_id_function=operation_id,
    )
    for router in (
        *(this_broker.router, dashboard.router, audit.router, settings.router, lookups.router),
        *(pulsar_namespaces.topics_router, pulsar_namespaces.router, pulsar_brokers.router),
        *(bundles.router, brokers.router, channel.router, bundles.watch_router),
        *(plans.balancing_router, plans.router, policies.router, pulsar_policies.router, explain.router),
        *(operations.router, bundles.splitting_router, load_history.router, groups.router, groups.backlog_router),
        pulsar_policies.first,
    ):
        app.include_router(router)
    problems.install(app)
    app.add_exception_handler(405, not_allowed)
    return app


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
