"""A sidecar's endpoints: what a service asks it, and serving that on a loopback port.

A service asks for a session, leases, claims. Each request shows the secret that both have. The broker's own address
says that no service is attached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from uvicorn import Config, Server

from loadmanager.client.redirection import CLUSTER_HEADER, PROBLEM_TYPE, Moved, NotServing
from loadmanager.client.redirection import problem_of as redirection_of
from loadmanager.embedding.endpoints import listen
from loadmanager.errors import Conflict, Invalid
from loadmanager.settings import Settings
from loadmanager.sidecar import wire
from loadmanager.sidecar.sidecar import Sessions
from loadmanager.sidecar.wire import PROTOCOL, Attached, Attachment, Claimed, Lease, Secret
from loadmanager_api.problems import install, problem, respond, title_of
from loadmanager_api.server import check_reach, is_loopback

ALIVE = "/admin/v2/brokers/live"
ABSENT = "no service is attached to this sidecar, so it is not a member of the cluster"


class _Server(Server):
    """uvicorn's, without its handlers of signals: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them as they are."""
        yield


@asynccontextmanager
async def served(app: Any, listening: socket.socket, **more: Any) -> AsyncGenerator[None]:
    """Serve an ASGI application on a socket that listens, while the context is open."""
    config = Config(
        app, http="httptools", lifespan="off", ws="none", log_config=None, log_level="warning", access_log=False, **more
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listening.close()


def listen_on_loopback(address: str) -> socket.socket:
    """A listening socket. Raises Invalid unless only this machine reaches it, OSError if the address is taken."""
    if not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise Invalid(f"--control {address} can be reached by others: give a loopback address, such as 127.0.0.1:7070")
    return listen(address)


@asynccontextmanager
async def absent(address: str, settings: Settings) -> AsyncGenerator[None]:
    """Answer probes at the broker's address while no broker runs: alive, not ready."""
    if address.endswith(":0"):
        yield
        return
    check_reach(address, settings)
    tls = (
        {"ssl_certfile": settings.tls_certificate, "ssl_keyfile": settings.tls_key} if settings.tls_certificate else {}
    )
    async with served(_absent, listen(address), **tls):
        yield


async def _absent(scope: Any, receive: Any, send: Any) -> None:
    alive = scope["path"] == ALIVE
    answer = PlainTextResponse("ok") if alive else respond(problem(503, ABSENT, retry_after_s=1.0))
    await answer(scope, receive, send)


ATTACH_AGAIN_S = 1.0
MAX_WAIT_MS = 60_000

HOOKS: dict[str, tuple[type[wire.HookData], type[BaseModel] | None, str]] = {
    "prepare": (
        wire.BundleHook,
        None,
        "A planned move to this service has begun; the present owner serves on. Optional.",
    ),
    "acquire": (wire.AcquireHook, None, "Raise the token in the storage, load, and serve. 4xx declines."),
    "release": (wire.ReleaseHook, wire.HandOff, "Admit no more requests, let those in progress end, flush, hand over."),
    "abandon": (wire.BundleHook, None, "Stop at once, and write nothing."),
    "load": (wire.HookData, wire.Loads, "The load of each bundle. Optional."),
    "positions": (wire.BundleHook, wire.Positions, "The positions of the bundle's keys. Optional."),
    "rates": (wire.BundleHook, wire.Rates, "Position, messages/s and bytes/s of the bundle's busy keys. Optional."),
}
"""By name: what a hook is sent, what it answers, and what the service does."""

Wait = Annotated[int, Query(ge=0, le=MAX_WAIT_MS)]
Cluster = Annotated[str | None, Header(alias=CLUSTER_HEADER)]


def application(sessions: Sessions, secret: Secret) -> FastAPI:
    """The endpoints; the hooks are described as webhooks."""

    def known(shown: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]) -> None:
        if shown is None or not secret.is_bearer(f"Bearer {shown.credentials}"):
            raise HTTPException(401, "send the secret of the sidecar's --secret-file as Authorization: Bearer whsec_…")

    app = FastAPI(
        title="loadmanager sidecar", version=str(PROTOCOL), docs_url=None, redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    install(app)
    app.add_exception_handler(Moved, _redirected)
    app.add_exception_handler(NotServing, _redirected)
    app.add_exception_handler(Conflict, _later)
    routes = APIRouter(dependencies=[Depends(known)])

    @routes.post("/v1/session", status_code=201, responses=_problems(400, 409, 422))
    async def attach(attachment: Attachment) -> Attached:
        """Begin a session. 409: another one lasts; 422: a protocol that this sidecar does not know."""
        if attachment.protocol != PROTOCOL:
            raise HTTPException(
                422, f"this sidecar knows protocol {PROTOCOL}, not {attachment.protocol}: update one of both"
            )
        return sessions.attach(attachment)

    @routes.get("/v1/session/{session}/lease", responses=_problems(400, 410))
    async def lease(session: str, wait_ms: Wait = MAX_WAIT_MS) -> Lease:
        """Wait a little, then say for how long the service may serve. 410: the session has ended."""
        return await sessions.lease(session, wait_ms / 1000)

    @routes.delete("/v1/session/{session}", responses=_problems(410))
    async def detach(session: str) -> dict[str, str]:
        """Move all bundles away, then end the session. 410: it has ended already."""
        await sessions.detach(session)
        return {"session": session}

    @routes.get("/v1/claims/{key:path}", responses=_problems(400, 404, 412, 421, 503))
    async def claim(key: str, timeout_ms: Wait = 5_000, cluster: Cluster = None) -> Claimed:
        """The bundle of a key, once it is served here. 421: by another broker; 503: by none; 404: no such namespace.

        Pass on what the client's request has as `Loadmanager-Cluster`. 421, too: the request is for another cluster.
        """
        return await sessions.find(key, timeout_ms / 1000, cluster)

    app.include_router(routes)
    _describe_hooks(app)
    return app


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers besides: problems (RFC 9457)."""
    content = {PROBLEM_TYPE: {"schema": {"type": "object", "required": ["type", "title", "status"]}}}
    named = {status: {"description": title_of(status), "content": content} for status in (401, *statuses)}
    return {**named, "default": {"description": "Any other problem.", "content": content}}


async def _redirected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Moved | NotServing)
    status, headers, body = redirection_of(error)
    return Response(body, status, headers)


async def _later(request: Request, error: Exception) -> Response:
    return respond(problem(409, str(error), retry_after_s=ATTACH_AGAIN_S))


def _describe_hooks(app: FastAPI) -> None:
    """The hooks of a service, for /openapi.json."""
    for name, (body, answer, text) in HOOKS.items():

        async def hook(body: Any) -> None:
            """Described, never called."""

        hook.__annotations__["body"] = wire.Hook[body]
        app.webhooks.add_api_route(
            name, hook, methods=["POST"], name=name, operation_id=name, description=text, response_model=answer,
            status_code=204 if answer is None else 200,
        )  # fmt: skip
