"""The doors of one broker: an ASGI application on the loop that runs its node.

There is no authentication yet: whoever reaches the port may do everything. `server.py` therefore binds loopback only,
unless told otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from api import errors
from api.draining import Draining
from api.limits import Limits
from api.lookup_path import LookupPath
from api.routes import brokers, channel, lookups, namespaces, own_brokers, own_bundles
from loadmanager.metrics import registry_of
from loadmanager.node import Node
from loadmanager.registration import VERSION


def create_app(node: Node) -> ASGIApp:
    """The application of `node`; serve it on the loop that runs `node.run()`, with its lifespan."""
    draining = Draining(node)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        yield
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
    app.state.metrics = registry_of(node)
    for routes in (lookups, namespaces, brokers, own_bundles, own_brokers, channel):
        app.include_router(routes.router)
    errors.install(app)
    return LookupPath(node, Limits(app))
