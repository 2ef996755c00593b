"""The doors of a broker as such: routes are laid out before the first request, and closing skips no step."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from api import app, server
from api.doorway import Kept
from api.server import attach
from loadmanager.embedding.doors import listen
from loadmanager.hosting import HostRunner
from loadmanager.node import Node
from loadmanager.settings import Settings
from loadmanager.wiring import surroundings
from tests.api.conftest import WAIT_S, Host


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that never runs: the doors open before it."""
    settings = Settings(log=f"sqlite:{tmp_path / 'lm.db'}")
    return Node(settings, Host(), HostRunner(), surroundings(settings))


@pytest.fixture
def listening() -> Generator[socket.socket]:
    with listen("127.0.0.1:0") as found:
        yield found


@pytest.fixture
def fresh_routes() -> Generator[None]:
    """As in a process that has served nobody yet."""
    for cached in (app.routes_of_all, app.lay_out_routes):
        cached.cache_clear()
    yield
    for cached in (app.routes_of_all, app.lay_out_routes):
        cached.cache_clear()


def look_for_nothing() -> None:
    """A request that every route is compared with."""
    scope = {"type": "http", "method": "GET", "path": "/nowhere", "raw_path": b"/nowhere"}
    scope |= {"query_string": b"", "headers": []}

    async def received() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def sent(_: Any) -> None:
        pass

    asyncio.run(app.routes_of_all()(scope, received, sent))


@pytest.fixture
def endpoints_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Functions whose parameters FastAPI has read since: what laying out a route begins with."""
    found: list[Any] = []
    signature = inspect.signature

    def noted(of: Any, *arguments: Any, **options: Any) -> inspect.Signature:
        found.append(of)
        return signature(of, *arguments, **options)

    monkeypatch.setattr(inspect, "signature", noted)
    return found


@pytest.mark.usefixtures("fresh_routes")
def test_laid_out_routes_leave_nothing_of_it_to_the_first_request(endpoints_read: list[Any]) -> None:
    routes = len(app.routes_of_all().openapi()["paths"])
    app.routes_of_all.cache_clear()
    app.routes_of_all()
    endpoints_read.clear()
    app.lay_out_routes()
    assert len(endpoints_read) >= routes
    endpoints_read.clear()
    look_for_nothing()
    assert endpoints_read == []


@pytest.mark.usefixtures("fresh_routes")
async def test_doors_that_opened_have_laid_out_the_routes_without_a_request(
    node: Node, listening: socket.socket
) -> None:
    assert app.routes_of_all().middleware_stack is None
    async with attach(node, listening):
        pass
    assert app.routes_of_all().middleware_stack is not None


class Impatience:
    """Doors that are closing, and hang in a step of it until somebody cancels that too."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.given_up = asyncio.Event()

    async def hang(self, *_: Any, **__: Any) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()


async def cancelled_twice(node: Node, listening: socket.socket, impatience: Impatience) -> None:
    """Open the doors, have them closed by a cancellation, and cancel again in the step that hangs."""
    opened = asyncio.Event()

    async def served() -> None:
        async with attach(node, listening):
            opened.set()
            await asyncio.Event().wait()

    serving = asyncio.create_task(served())
    async with asyncio.timeout(WAIT_S):
        await opened.wait()
        serving.cancel()
        await impatience.reached.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


def noting(done: list[str], name: str, step: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def noted(*arguments: Any) -> None:
        await step(*arguments)
        done.append(name)

    return noted


async def test_a_second_cancellation_while_requests_end_skips_no_step(
    node: Node, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatience, done = Impatience(), list[str]()
    monkeypatch.setattr("api.server._Server.shutdown", impatience.hang)
    monkeypatch.setattr(Kept, "close", noting(done, "kept", Kept.close))
    monkeypatch.setattr(server, "lay_out_routes", lambda: done.append("laid out"))
    await cancelled_twice(node, listening, impatience)
    assert sorted(done) == ["kept", "laid out"]


async def test_a_second_cancellation_while_kept_closes_still_awaits_the_routes(
    node: Node, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatience, done, may_end = Impatience(), list[str](), threading.Event()
    monkeypatch.setattr(Kept, "close", impatience.hang)
    monkeypatch.setattr(server, "lay_out_routes", lambda: done.append(f"laid out: {may_end.wait(WAIT_S)}"))
    closing = asyncio.create_task(cancelled_twice(node, listening, impatience))
    await impatience.given_up.wait()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    await closing
    assert done == ["laid out: True"]
