"""The endpoints of a broker as such: routes are laid out before the first request, and closing skips no step."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest

from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.wiring import dependencies
from loadmanager.embedding.endpoints import Endpoint, listen, opened
from loadmanager.embedding.handover import Handover
from loadmanager.settings import Settings
from loadmanager_api import application
from loadmanager_api.server import Routes, attach, url_of
from tests.api.conftest import WAIT_S, Host


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that never runs: the endpoints open before it."""
    settings = Settings(log=f"sqlite:{tmp_path / 'lm.db'}")
    return Node(settings, Host(), HostRunner(), dependencies(settings))


@pytest.fixture
def listening() -> Generator[socket.socket]:
    with listen("127.0.0.1:0") as found:
        yield found


@pytest.fixture
def fresh_routes() -> Generator[None]:
    """As in a process that has served nobody yet."""
    for cached in (application.routes_of_all, application.laid_out):
        cached.cache_clear()
    yield
    for cached in (application.routes_of_all, application.laid_out):
        cached.cache_clear()


def look_for_nothing() -> None:
    """A request that every route is compared with."""
    scope = {"type": "http", "method": "GET", "path": "/nowhere", "raw_path": b"/nowhere"}
    scope |= {"query_string": b"", "headers": []}

    async def received() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def sent(_: Any) -> None:
        pass

    asyncio.run(application.routes_of_all()(scope, received, sent))


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
    routes = len(application.routes_of_all().openapi()["paths"])
    application.routes_of_all.cache_clear()
    endpoints_read.clear()
    application.routes_of_all()  # where older releases of FastAPI do it
    application.laid_out()
    assert len(endpoints_read) >= routes
    endpoints_read.clear()
    look_for_nothing()
    assert endpoints_read == []


@pytest.mark.usefixtures("fresh_routes")
async def test_routes_are_loaded_without_a_request_once_the_broker_is_ready(
    node: Node, listening: socket.socket
) -> None:
    loop, loaded = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(loaded.set)

    async with opened(partial(attach, loaded=tell), node, listening):
        assert application.routes_of_all().middleware_stack is None
        node.ready.set()
        await loaded.wait()
    assert application.routes_of_all().middleware_stack is not None


@pytest.mark.usefixtures("fresh_routes")
async def test_brokers_of_a_process_load_the_routes_one_after_the_other() -> None:
    first, second = await asyncio.gather(Routes().load(), Routes().load())
    assert first is second, "else both set up the same models at once"


@pytest.mark.usefixtures("fresh_routes")
async def test_routes_that_could_not_be_loaded_are_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = Routes()
    with monkeypatch.context() as patched:
        patched.setattr(application, "laid_out", _no_memory)
        with pytest.raises(MemoryError):
            await routes.load()
    assert await routes.load() is application.laid_out()


def _no_memory() -> NoReturn:
    raise MemoryError


@pytest.mark.usefixtures("fresh_routes")
async def test_probes_are_answered_before_the_routes_are_loaded(node: Node, listening: socket.socket) -> None:
    url = url_of(listening, "")
    async with opened(attach, node, listening), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/admin/v2/brokers/live") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
        async with session.get(f"{url}/admin/v2/brokers/ready") as answer:
            assert (answer.status, answer.content_type) == (503, "application/problem+json")
        async with session.head(f"{url}/admin/v2/brokers/live") as answer:
            assert answer.status == 200
        assert application.routes_of_all().middleware_stack is None
        async with session.get(f"{url}/admin/v2/brokers/version") as answer:
            assert answer.status == 200, "the first request of a route loads them all"
    assert application.routes_of_all().middleware_stack is not None


async def test_a_door_that_does_not_open_says_why_and_leaves_no_thread(node: Node, listening: socket.socket) -> None:
    @asynccontextmanager
    async def stuck(handover: Handover, listening: socket.socket) -> AsyncGenerator[None]:
        raise RuntimeError("it is stuck")
        yield

    with pytest.raises(RuntimeError, match="it is stuck"):
        async with opened(stuck, node, listening):
            pytest.fail("it is open")
    async with asyncio.timeout(WAIT_S):
        while "loadmanager-endpoints" in {thread.name for thread in threading.enumerate()}:
            await asyncio.sleep(0.001)


class Step:
    """A step of closing that hangs until somebody cancels the closing again."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def reach(self) -> None:
        self.reached.set()

    async def hang(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def an_ending_hangs(handover: Handover, listening: socket.socket, step: Step) -> AsyncGenerator[None]:
    handover.control.call_soon_threadsafe(handover.at_end, step.hang)
    async with attach(handover, listening):
        yield


@asynccontextmanager
async def a_request_hangs(handover: Handover, listening: socket.socket, step: Step) -> AsyncGenerator[None]:
    """It is under way when the endpoints close."""
    handover.control.call_soon_threadsafe(handover.at_end, step.reach)
    async with attach(handover, listening):
        asking = asyncio.create_task(handover.ask(asyncio.Event().wait))
        await asyncio.sleep(0)
        await handover.ask(partial(asyncio.sleep, 0))  # the request before this one has begun
        yield
    await asyncio.gather(asking, return_exceptions=True)


async def cancelled_twice(endpoint: Endpoint, node: Node, listening: socket.socket, step: Step) -> None:
    """Open the endpoints, have them closed by a cancellation, and cancel again in the step that hangs."""
    entered = asyncio.Event()

    async def served() -> None:
        async with opened(endpoint, node, listening):
            entered.set()
            await asyncio.Event().wait()

    serving = asyncio.create_task(served())
    async with asyncio.timeout(WAIT_S):
        await entered.wait()
        serving.cancel()
        await step.reached.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize("hanging", [an_ending_hangs, a_request_hangs])
async def test_a_second_cancellation_while_closing_skips_no_step(
    node: Node,
    listening: socket.socket,
    hanging: Callable[[Handover, socket.socket, Step], AbstractAsyncContextManager[None]],
) -> None:
    step, done = Step(), list[str]()

    @asynccontextmanager
    async def endpoint(handover: Handover, listening: socket.socket) -> AsyncGenerator[None]:
        async with hanging(handover, listening, step):
            yield
        done.append("the listener is closed")

    await cancelled_twice(endpoint, node, listening, step)
    assert done == ["the listener is closed"]
    assert listening.fileno() == -1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["fastapi", "jwt"])
def test_a_package_that_is_loaded_late_is_missed_at_the_start(package: str):
    script = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {package!r} else found(name, *rest)
from loadmanager.embedding.endpoints import installed_endpoint
from loadmanager.errors import MissingExtra
try:
    installed_endpoint()
except MissingExtra as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert f"needs the package {package}, which is not installed" in told
