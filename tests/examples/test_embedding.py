"""The ten-line examples, as processes: each serves a request, and sends it on when its bundle has moved."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from loadmanager.client import HttpRouter, Router

ROOT = Path(__file__).parents[2]
NAMESPACE = "examples/greetings"
TOPIC = f"{NAMESPACE}/ada"


@asynccontextmanager
async def _example(module: str, log: str) -> AsyncGenerator[tuple[str, str]]:
    """Runs it; gives its URL and its broker's name."""
    arguments, environment = [log], dict(os.environ)
    if module == "embed_fastapi":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        arguments, environment = [], {**environment, "GREETINGS_LOG": log, "GREETINGS_PORT": str(port)}
    command = (sys.executable, "-m", f"examples.{module}", *arguments)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=PIPE, stdin=DEVNULL)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            url, name = (await process.stdout.readline()).decode().split()
        yield url, name
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize("module", ["embed_asyncio", "embed_sync", "embed_fastapi"])
async def test_it_serves_and_sends_on_after_a_move(tmp_path: Path, module: str):
    async with AsyncExitStack() as stack:
        log = f"sqlite:{tmp_path}/cluster.db"
        running = dict([await stack.enter_async_context(_example(module, log)) for _ in range(2)])
        names = {name: url for url, name in running.items()}
        http = await stack.enter_async_context(HttpRouter(Router(f"http://{name}" for name in names)))
        known = await http.router.route(TOPIC)
        assert (await http.get(TOPIC, "/greetings/ada")).body.decode().count(known.broker) == 1

        other = next(name for name in names if name != known.broker)
        await _transfer(http.router.session, known.broker, known.bundle.range, other)
        async with http.router.session.get(f"{names[known.broker]}/greetings/ada") as answer:
            assert answer.status == 421
            assert (await answer.json(content_type=None))["broker"] == other
        assert (await http.get(TOPIC, "/greetings/ada")).body.decode().count(other) == 1


async def _transfer(session: aiohttp.ClientSession, asked: str, hash_range: str, to: str) -> None:
    url = f"http://{asked}/admin/v2/namespaces/{NAMESPACE}/{hash_range}/unload"
    async with session.put(url, params={"destinationBroker": to}) as answer:
        assert answer.status == 204, await answer.text()
