"""The doors of one broker: an ASGI application on the loop that runs its node.

There is no authentication yet: whoever reaches the port may do everything. `server.py` therefore binds loopback only,
unless told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from api import errors
from api.draining import Draining
from api.limits import Limits
from api.lookup_path import LookupPath
from api.routes import (
    advice,
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
from loadmanager.chronicle.refolding import RefoldDesk
from loadmanager.chronicle.snapshot_lists import SnapshotLists
from loadmanager.chronicle.watching import Watching
from loadmanager.metrics import registry_of
from loadmanager.node import Node
from loadmanager.registration import VERSION


def create_app(node: Node, closing: asyncio.Event | None = None) -> ASGIApp:
    """The application of `node`; serve it on the loop that runs `node.run()`, with its lifespan.

    Set `closing` before the server waits for its answers to end: those that do not end by themselves end then.
    """
    draining = Draining(node)
    desk = RefoldDesk(node.world.log, node.channel.topic)
    watching = Watching(node.channel.replica, desk, closing)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        yield
        watching.close()
        await draining.close()

    app = FastAPI(
        title="loadmanager",
        version=VERSION,
        docs_url=None,  # these pages would load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.node = node
    app.state.draining = draining
    app.state.refold_desk = desk
    app.state.watching = watching
    app.state.snapshot_lists = SnapshotLists(node.world.log, node.channel.topic)
    app.state.metrics = registry_of(node)
    for routes in (
        *(settings, lookups, namespaces, brokers, own_bundles, own_brokers, channel, history),
        *(watch, tasks, balancing, plans, policies, pulsar_policies, explain, splitting, load_history, advice),
    ):
        app.include_router(routes.router)
    errors.install(app)
    return LookupPath(node, Limits(app))
