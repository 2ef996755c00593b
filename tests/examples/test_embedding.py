"""The ten-line examples, as processes: each serves a request, and sends it on when its bundle has moved."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from loadmanager.client import HttpRouter, Router
from stack.servers import free_port

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0
"""For what has hung: a busy machine takes its time."""
NAMESPACE = "examples/greetings"
TOPIC = f"{NAMESPACE}/ada"


@asynccontextmanager
async def _example(module: str, log: str) -> AsyncGenerator[tuple[str, str, Process]]:
    """Runs it; gives its URL, its broker's name, and the process."""
    arguments, environment = [log], dict(os.environ)
    command = [sys.executable, "-m", f"examples.{module}"]
    if module == "embed_flask":
        command = [sys.executable, "-m", "gunicorn", "--no-control-socket"]
        command += ["-c", f"python:examples.{module}_gunicorn", f"examples.{module}:app"]
    if module in {"embed_fastapi", "embed_flask"}:
        arguments, environment = [], {**environment, "GREETINGS_LOG": log, "GREETINGS_PORT": str(free_port())}
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, cwd=ROOT, env=environment, stdout=PIPE, stdin=DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            url, name = (await process.stdout.readline()).decode().split()
        yield url, name, process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["embed_asyncio", "embed_sync", "embed_fastapi", "embed_flask"])
async def test_it_serves_and_sends_on_after_a_move(tmp_path: Path, module: str):
    async with AsyncExitStack() as stack:
        log = f"sqlite:{tmp_path}/cluster.db"
        running = [await stack.enter_async_context(_example(module, log)) for _ in range(2)]
        names = {name: url for url, name, _ in running}
        http = await stack.enter_async_context(HttpRouter(Router(f"http://{name}" for name in names)))
        known = await http.router.route(TOPIC)
        assert (await http.get(TOPIC, "/greetings/ada")).body.decode().count(known.broker) == 1

        other = next(name for name in names if name != known.broker)
        await _transfer(http.router.session, known.broker, known.bundle.range, other)
        async with http.router.session.get(f"{names[known.broker]}/greetings/ada") as answer:
            assert answer.status == 421
            assert (await answer.json(content_type=None))["broker"] == other
        assert (await http.get(TOPIC, "/greetings/ada")).body.decode().count(other) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "number"),
    [
        *itertools.product(("embed_asyncio", "embed_sync", "embed_fastapi"), (signal.SIGTERM, signal.SIGINT)),
        ("embed_flask", signal.SIGTERM),  # gunicorn takes SIGINT as the order to quit at once
    ],
)
async def test_it_moves_its_bundles_away_when_it_is_told_to_end(tmp_path: Path, module: str, number: signal.Signals):
    async with AsyncExitStack() as stack:
        log = f"sqlite:{tmp_path}/cluster.db"
        started = [await stack.enter_async_context(_example(module, log)) for _ in range(2)]
        running = {name: process for _, name, process in started}
        http = await stack.enter_async_context(HttpRouter(Router(f"http://{name}" for name in running)))
        known = await http.router.route(TOPIC)
        heir = next(name for name in running if name != known.broker)
        process = running[known.broker]
        process.send_signal(number)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() in {0, -number} if module == "embed_fastapi" else await process.wait() == 0
        assert (await http.get(TOPIC, "/greetings/ada")).body.decode().count(heir) == 1
        url = f"http://{heir}/v1/bundles/{known.bundle}/history"
        async with http.router.session.get(url) as answer:
            actions = [entry["action"] for entry in (await answer.json())["entries"]]
        assert "transfer" in actions
        assert "revoke" not in actions


@pytest.mark.slow
async def test_the_clients_of_the_page_find_the_owner(tmp_path: Path):
    async with _example("embed_asyncio", f"sqlite:{tmp_path}/cluster.db") as (_, name, _):
        async with asyncio.timeout(WAIT_S), HttpRouter(Router([f"http://{name}"])) as http:
            await http.get(TOPIC, "/greetings/ada", budget_s=WAIT_S)  # the page gives a request 5 s
        command = (sys.executable, "-m", "examples.clients", f"http://{name}", "ada", "grace")
        client = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
        async with asyncio.timeout(WAIT_S):
            told, _ = await client.communicate()
    greetings = [f"200 Hello {each}, from {name}" for each in ("ada", "grace")] * 2
    assert told.decode().splitlines() == [*greetings, "not found: there is no namespace no/such; create it first"]


FORKED = """
import os, sys, time
from loadmanager import SyncBroker

with SyncBroker(log=sys.argv[1], proof_validity_s=1.0) as broker:
    broker.ensure_namespace("t/n")
    broker.locate("t/n/a")
    with broker.admit("t/n/a"):
        pass
    child = os.fork()
    if not child:
        while broker.claim("t/n/a") is not None:
            time.sleep(0.01)
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    print(broker.claim("t/n/a") is not None)
"""


@pytest.mark.slow
async def test_a_forked_copy_of_a_broker_ceases_to_serve_and_the_broker_goes_on(tmp_path: Path):
    command = (sys.executable, "-W", "ignore", "-c", FORKED, f"sqlite:{tmp_path}/cluster.db")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stdin=DEVNULL)
    async with asyncio.timeout(WAIT_S):
        told, _ = await process.communicate()
    assert told == b"True\n"


SLOW = """
import asyncio, sys, time
from loadmanager import Broker, SyncBroker

class Slow:
    def prepare(self, bundle): pass
    def acquire(self, bundle, token, hand_off): pass
    def release(self, bundle, to):
        print("leaving", flush=True)
        time.sleep(60)
    def abandon(self, bundle): time.sleep(60)
    def load(self): return {}

async def main():
    async with Broker(Slow(), log=sys.argv[1], host_acquire_timeout_s=120) as broker:
        await broker.ensure_namespace("t/n")
        await broker.locate("t/n/a")
        await broker.run_until_signal(lambda: print("ready", flush=True))

def sync_main():
    with SyncBroker(Slow(), log=sys.argv[1], host_acquire_timeout_s=120) as broker:
        broker.ensure_namespace("t/n")
        broker.locate("t/n/a")
        broker.run_until_signal(lambda: print("ready", flush=True))

sync_main() if sys.argv[2] == "sync" else asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(tmp_path: Path, kind: str, number: signal.Signals):
    command = (sys.executable, "-c", SLOW, f"sqlite:{tmp_path}/cluster.db", kind)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stdin=DEVNULL)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert await process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert await process.stdout.readline() == b"leaving\n"
            assert process.returncode is None
            process.send_signal(number)
            assert await process.wait() == 128 + number
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _transfer(session: aiohttp.ClientSession, asked: str, hash_range: str, to: str) -> None:
    url = f"http://{asked}/admin/v2/namespaces/{NAMESPACE}/{hash_range}/unload"
    async with session.put(url, params={"destinationBroker": to}) as answer:
        assert answer.status == 204, await answer.text()
