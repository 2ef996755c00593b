"""One contract suite for every adapter: this file finds the *backends*, and hands one to each test.

A backend is a place where clients of one adapter meet. It stands in `backends/<name>.py`, which exposes

    LOGS: dict[str, Factory]            a factory of log backends by name, and / or
    COORDINATIONS: dict[str, Factory]   a factory of coordination backends by name,

where a factory takes the test's `request` (for `request.getfixturevalue("tmp_path")`, or a server's fixture) and
returns an async context manager that gives the backend and, as it ends, closes every client that the test opened.
Tests of a module in `NEEDS_SERVER` carry a pytest mark of the module's name.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest
import pytest_asyncio

from statechannel.ports import Coordination, Log

NEEDS_SERVER = ("kafka", "zookeeper")
_BACKENDS = ("sqlite", "simulated", *NEEDS_SERVER)


class LogBackend(Protocol):
    """Where clients of one log meet."""

    max_payload_bytes: int
    """A payload of this size is taken, one of twice this size is too large."""

    async def open(self) -> Log:
        """A new, started client; two of them are like those of two processes."""
        ...

    def topic(self, name: str) -> str:
        """A topic name that no other test uses."""
        ...


class CoordinationBackend(Protocol):
    """Where clients of one coordination service meet."""

    session_timeout_s: float
    """The session time-out of the clients that are opened, as short as the adapter bears."""

    async def open(self) -> Coordination:
        """A new, started client with a session of its own."""
        ...

    async def expire(self, client: Coordination) -> None:
        """Let this client's session end without its help, and return when it is over."""
        ...

    async def wipe(self) -> None:
        """Delete all data, behind the back of the clients."""
        ...

    def abandon(self, client: Coordination) -> None:
        """Abandon it as a watchdog does: while its loop hangs, so from another thread where the adapter knows any."""
        ...


Factory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Any]]


def _load(name: str) -> ModuleType | None:
    path = Path(__file__).parent / "backends" / f"{name}.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location(f"contract_station_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parameters(attribute: str) -> list[Any]:
    found: list[Any] = []
    for module_name in _BACKENDS:
        module = _load(module_name)
        marks = [getattr(pytest.mark, module_name)] if module_name in NEEDS_SERVER else []
        factories: dict[str, Factory] = getattr(module, attribute, {})
        found += [pytest.param(factory, id=name, marks=marks) for name, factory in factories.items()]
    return found


@pytest_asyncio.fixture(params=_parameters("LOGS"))
async def logs(request: pytest.FixtureRequest) -> AsyncIterator[LogBackend]:
    async with request.param(request) as backend:
        yield backend


@pytest_asyncio.fixture(params=_parameters("COORDINATIONS"))
async def coordinations(request: pytest.FixtureRequest) -> AsyncIterator[CoordinationBackend]:
    async with request.param(request) as backend:
        yield backend


Until = Callable[..., Any]


@pytest.fixture
def until() -> Until:
    """`await until(client, lambda: …)`: wait for a condition on a client's watches, told by the watches."""

    async def wait(client: Coordination, holds: Callable[[], bool], timeout_s: float = 60) -> None:
        changed = asyncio.Event()
        client.on_change(changed.set)
        async with asyncio.timeout(timeout_s):
            while not holds():
                await changed.wait()
                changed.clear()

    return wait
