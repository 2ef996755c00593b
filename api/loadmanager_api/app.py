"""The endpoints of one broker: an ASGI application on a loop of its own (`crossing.py` says which thread runs what).

All brokers of a process share one FastAPI application, since FastAPI takes a sixth of a second to set up the routes.
Each request carries its broker and the endpoints' state (`kept.Kept`).

Every request passes `guard.py` (web pages of other origins), `access/` (who sends it, and how often they may, if the
settings ask), the lookups' fast path, that of members of groups, and `limits.py`, before its route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from loadmanager.model.registration import VERSION
from loadmanager_api import errors
from loadmanager_api.access.gate import Gate
from loadmanager_api.access.rates import rates_of, throttled
from loadmanager_api.conditions import Tagged
from loadmanager_api.crossing import HANDOVER
from loadmanager_api.groups.members import MembersPath
from loadmanager_api.guard import Guard, Names
from loadmanager_api.kept import KEPT, Kept
from loadmanager_api.limits import Limits
from loadmanager_api.lookup_path import LookupPath
from loadmanager_api.methods import Methods, not_allowed
from loadmanager_api.openapi import OPTIONAL, complete, operation_id
from loadmanager_api.request_counts import Counted
from loadmanager_api.routes import (
    audit,
    backlog,
    balancing,
    brokers,
    channel,
    dashboard,
    described,
    explain,
    groups,
    history,
    load_history,
    lookups,
    me,
    namespaces,
    operations,
    own_brokers,
    own_bundles,
    plans,
    policies,
    pulsar_brokers,
    pulsar_policies,
    settings,
    splitting,
    tasks,
    told_topics,
    watch,
)


def create_app(kept: Kept, unsent_bytes: Callable[[], int] = lambda: 0) -> tuple[ASGIApp, LookupPath]:
    """The application for the broker that `kept` belongs to, to be served without a lifespan; and its lookups."""
    routes, settings = Methods(Tagged(routes_of_all())), kept.node.settings

    async def kept_by_these_endpoints(scope: Any, receive: Any, send: Any) -> None:
        scope[KEPT] = kept
        HANDOVER.set(kept.handover)
        await routes(scope, receive, send)

    names, access = Names(settings, kept.handover.bind), kept.access
    bounded = Limits(kept_by_these_endpoints, settings, kept.counts, unsent_bytes)
    rates = rates_of(settings.http_lookup_rate, time.monotonic)
    members = MembersPath(kept.node, bounded, kept.closing, kept.counts, access, unsent_bytes)
    lookups = LookupPath(kept.handover, names, members, access, rates, kept.requests)
    calm = throttled(lookups, settings, rates, time.monotonic)
    return Counted(Guard(calm if access is None else Gate(calm, access), names, access), kept.requests), lookups


class _Application(FastAPI):
    """Its OpenAPI document says what `openapi.py` knows."""

    def openapi(self) -> dict[str, Any]:
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
        openapi_url=None,  # a route of `described.py`, with a rule
        docs_url=None,  # these pages would load their scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        responses=OPTIONAL,
        generate_unique_id_function=operation_id,
    )
    for routes in (
        *(described, dashboard, me, audit, settings, lookups, told_topics, namespaces, pulsar_brokers, brokers),
        own_bundles,
        *(own_brokers, channel, history, watch, tasks, balancing, plans, policies, pulsar_policies, explain),
        operations,
        *(splitting, load_history, groups, backlog),
    ):
        app.include_router(routes.router)
    app.include_router(pulsar_policies.first)
    errors.install(app)
    app.add_exception_handler(405, not_allowed)
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
