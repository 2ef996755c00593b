"""Serves a sidecar's endpoints on a loopback port, and says at the broker's address that no service is attached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi.responses import PlainTextResponse
from uvicorn import Config, Server

from loadmanager.embedding.endpoints import listen
from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager_api.problems import problem, respond
from loadmanager_api.server import check_reach, is_loopback

ALIVE = "/admin/v2/brokers/live"
ABSENT = "no service is attached to this sidecar, so it is no member of the cluster"


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
