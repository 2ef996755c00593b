"""What clients send is read on a thread of its own; the loop that renews proofs runs none of it and waits for none of
it."""

from __future__ import annotations

import asyncio
import http
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadmanager import Broker
from loadmanager.broker.node import Node
from loadmanager.embedding import handover
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager.testing import embedded_cluster
from loadmanager_api import application, routing
from loadmanager_api.server import attach
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token
from statechannel.law.transitions import State
from tests.api.conftest import WAIT_S, Host
from tests.api.raw import Raw
from tests.loadmanager.embedded import PATIENT

READERS = (
    *(
        "/uvicorn/",
        "/fastapi/",
        "/starlette/requests.py",
        "/starlette/routing.py",
        "/loadmanager_api/http/connections.py",
    ),
    *(
        "/loadmanager_api/http/guard.py",
        "/loadmanager_api/http/limits.py",
        "/loadmanager_api/http/lookups.py",
        "/json/",
        "/email/",
        "/urllib/",
        f"{Path(http.__file__).parent}/",
    ),
)
"""Whoever reads a request is among these."""


class Endpoint:
    """The installed endpoint, of which a test knows the loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = ""

    @asynccontextmanager
    async def __call__(self, handover: Handover, listening: socket.socket) -> AsyncGenerator[None]:
        self.loop, self.thread = asyncio.get_running_loop(), threading.current_thread().name
        async with attach(handover, listening):
            yield

    def block(self, until: threading.Event) -> threading.Event:
        """Hold up its loop with one synchronous call; set when that has begun."""
        begun = threading.Event()

        def hold() -> None:
            begun.set()
            until.wait(WAIT_S)

        assert self.loop is not None
        self.loop.call_soon_threadsafe(hold)
        return begun


class Embedded:
    """A broker on its control thread, with an endpoint that a test can hold up."""

    def __init__(self, broker: Broker, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self._session = session

    @property
    def url(self) -> str:
        return f"http://{self.broker.name}"

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, str, Any]:
        async with self._session.request(method, self.url + path, **options) as answer:
            return answer.status, await answer.text(), answer.headers

    async def on_control(self, work: Any) -> None:
        async def done(_: Node) -> None:
            work()

        await self.broker.ask(done)


@asynccontextmanager
async def opened(directory: Path, **settings: Any) -> AsyncGenerator[Embedded]:
    endpoint = Endpoint()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session,
        Broker(log=f"sqlite:{directory / 'lm.db'}", endpoint=endpoint, drain_timeout_s=0.1, **settings) as broker,
    ):
        await broker.ensure_namespace("t/n", 4)
        yield Embedded(broker, endpoint, session)


@pytest_asyncio.fixture
async def embedded(tmp_path: Path) -> AsyncGenerator[Embedded]:
    async with opened(tmp_path, **PATIENT) as embedded:
        yield embedded


async def test_no_request_is_read_or_answered_on_the_control_loop(embedded: Embedded) -> None:
    ran: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            ran.setdefault(frame.f_code.co_filename, set()).add(frame.f_code.co_name)

    await embedded.on_control(lambda: sys.setprofile(note))
    try:
        raw = await Raw.to(embedded.url)
        await raw.send(b"\x00\x01 no HTTP at all\r\n\r\n")
        assert b" 400 " in await raw.head()
        raw.close()
        json_type = {"Content-Type": "application/json"}
        for method, path, body, wanted in (
            ("GET", "/lookup/v2/topic/persistent/t/n/a", None, 200),
            ("GET", "/lookup/v2/topic/persistent/t/n/a?authoritative=true", None, 200),
            ("POST", "/v1/lookup", b'{"topics": ["t/n/a", "t/n/b", "no/such/topic"]}', 200),
            ("POST", "/v1/lookup", b'{"topics": ', 400),
            ("PUT", "/v1/policies/namespace/t/n", b'{"exclusive": true}', 200),
            ("PUT", "/v1/policies/namespace/t/n", b"{", 412),
            ("PUT", "/admin/v2/namespaces/t/m", b'{"numBundles": 2}', 204),
            ("GET", "/v1/bundles?limit=2", None, 200),
            ("GET", "/admin/v2/brokers/health", None, 200),
            ("GET", "/metrics", None, 200),
        ):
            status, text, _ = await embedded.ask(method, path, data=body, headers=json_type if body else {})
            assert status == wanted, (path, text)
    finally:
        await embedded.on_control(lambda: sys.setprofile(None))
    assert any(file.endswith("/loadmanager/channel/operations.py") for file in ran), "the endpoints do run there"
    read = {file: names for file, names in ran.items() if any(part in file for part in READERS)}
    assert not read, read


def test_what_runs_beside_the_control_loop_is_little_and_named() -> None:
    """Each of these was looked at: it reads nothing of the node that only the control loop may read."""
    application.routes_of_all()
    named = {endpoint.__name__ for endpoint in routing._as_they_are if not hasattr(endpoint, "__wrapped__")}
    assert named == {
        *("health", "ready", "live", "version", "metrics", "show_tasks", "watch", "look_up_many", "openapi"),
        *("show_dashboard", "show_docs", "show_file", "show_me", "show_usage", "show_namespace", "show_bundles"),
        *("list_groups", "show_group", "list_members", "list_rebalances"),
        *("show_backlog", "list_topic_backlogs", "list_partition_backlogs", "list_policies"),
        "estimate_filtered_backlog",
        *("show_load_history", "list_analyses", "show_analysis", "show_report", "show_picture", "show_result"),
    }


async def test_a_door_that_hangs_keeps_no_proof_from_being_renewed(embedded: Embedded) -> None:
    await embedded.ask("GET", "/lookup/v2/topic/persistent/t/n/a")
    serving = embedded.broker.node.serving
    assert serving is not None
    over = threading.Event()
    begun = embedded.endpoint.block(over)
    try:
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        asking = asyncio.create_task(embedded.ask("GET", "/admin/v2/brokers/health"))
        proofs_s = {max(serving.until_s())}
        while max(proofs_s) - min(proofs_s) < PATIENT["proof_validity_s"]:
            assert embedded.broker.claim("t/n/a") is not None, "its proof has run out"
            proofs_s.add(max(serving.until_s()))
            await asyncio.sleep(0.02)
        assert not asking.done()
    finally:
        over.set()
    assert (await asking)[0] == 200
    assert embedded.endpoint.thread == "loadmanager-endpoints"


@pytest_asyncio.fixture
async def nervous(tmp_path: Path) -> AsyncGenerator[Embedded]:
    """Its proofs run out long before its control loop counts as dead."""
    async with opened(tmp_path, proof_validity_s=0.8, session_timeout_s=8.0) as embedded:
        yield embedded


async def test_a_control_loop_that_hangs_is_told_to_who_asks(
    nervous: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded, over = nervous, threading.Event()
    async with asyncio.timeout(WAIT_S):
        while (await embedded.ask("GET", "/lookup/v2/topic/persistent/t/n/a"))[0] != 200:
            await asyncio.sleep(0.02)
    monkeypatch.setattr(handover, "BEGUN_WITHIN_S", 0.3)
    hanging = asyncio.create_task(embedded.on_control(lambda: over.wait(WAIT_S)))
    try:
        async with asyncio.timeout(WAIT_S):
            while (await embedded.ask("GET", "/admin/v2/brokers/health"))[0] != 503:  # its proofs run out
                await asyncio.sleep(0.02)
            assert (await embedded.ask("GET", "/admin/v2/brokers/live"))[0] == 200, "not for so short a time"
            while (await embedded.ask("GET", "/admin/v2/brokers/live"))[0] != 503:
                await asyncio.sleep(0.02)
        status, text, headers = await embedded.ask("GET", "/v1/notes")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "has not turned" in text
        assert (await embedded.ask("GET", "/metrics"))[0] == 503
        tasks = (await embedded.ask("GET", "/v1/tasks"))[1]
        assert "loadmanager-control" in tasks
        assert "wait" in tasks
    finally:
        over.set()
        await hanging
    async with asyncio.timeout(WAIT_S):
        while (await embedded.ask("GET", "/v1/notes"))[0] != 200:
            await asyncio.sleep(0.02)
        while (await embedded.ask("GET", "/admin/v2/brokers/live"))[0] != 200:
            await asyncio.sleep(0.02)


class Slow(Host):
    """A service that does not take what is moved to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.held[bundle] = token


async def test_a_transfer_asked_of_a_broker_that_leaves_is_told_to_ask_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session,
        embedded_cluster(
            Slow, brokers=2, directory=tmp_path, namespace="t/n", drain_timeout_s=0.1, **PATIENT
        ) as brokers,
    ):
        asked, other = brokers.brokers
        table = asked.node.channel.table
        entry = next(entry for entry in table if entry.holder is not None and entry.holder.name == asked.name)
        path = f"http://{asked.name}/admin/v2/namespaces/{entry.bundle}/unload"

        async def unload() -> tuple[int, str, str]:
            async with session.put(path, params={"destinationBroker": other.name}) as answer:
                return answer.status, answer.headers["Retry-After"], await answer.text()

        asking = asyncio.create_task(unload())
        await brokers.until(lambda: table.in_state(State.TRANSFERRING) == (entry.bundle,))
        brokers.brokers.remove(asked)
        await asked.stop()
        status, retry_after, text = await asking
        brokers.host(other).gate.set()
    assert (status, retry_after) == (503, "1"), text
    assert "Traceback" not in caplog.text


# --- the handover by itself


@pytest_asyncio.fixture
async def crossed(tmp_path: Path) -> AsyncGenerator[Crossed]:
    found = Crossed(Handover(None, handed_at_most=3))  # type: ignore[arg-type]
    yield found
    found.close()


class Crossed:
    """A handover whose other side is a thread of this test."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self.loop).result()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    async def _open(self) -> None:
        self.handover.open()

    def ask(self, work: Any, **how: Any) -> asyncio.Future[Any]:
        """As somebody at the endpoint would."""

        async def asking() -> Any:
            return await self.handover.ask(work, **how)

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking(), self.loop))

    def settle(self) -> None:
        """Block until the endpoints' loop has done what it has to do now; ours stands still meanwhile."""
        for _ in range(3):
            done = threading.Event()
            self.loop.call_soon_threadsafe(done.set)
            assert done.wait(WAIT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)


async def thread() -> str:
    return threading.current_thread().name


async def fails() -> None:
    raise ValueError("as it is")


async def test_work_is_done_on_the_control_loop_and_its_error_comes_back(crossed: Crossed) -> None:
    assert await crossed.ask(thread) == threading.current_thread().name
    with pytest.raises(ValueError, match="as it is"):
        await crossed.ask(fails)


async def test_work_has_the_context_of_whoever_asked(crossed: Crossed) -> None:
    name: ContextVar[str] = ContextVar("name")

    async def work() -> str:
        return name.get()

    asked: list[asyncio.Future[str]] = []
    for who in ("ann", "bob", "cid"):
        name.set(who)
        asked.append(crossed.ask(work))
    crossed.settle()  # this loop has not turned: all three begin in one go
    assert await asyncio.gather(*asked) == ["ann", "bob", "cid"]


async def test_more_than_may_wait_is_refused_but_not_what_goes_first(crossed: Crossed) -> None:
    order: list[int] = []

    def noting(number: int) -> Any:
        async def note() -> None:
            order.append(number)

        return note

    waiting = [crossed.ask(noting(number)) for number in range(3)]
    crossed.settle()  # this loop has not turned: all three wait
    refused, first = crossed.ask(noting(3)), crossed.ask(noting(4), first=True)
    crossed.settle()
    with pytest.raises(Unavailable, match="wait here for their turn"):
        await refused
    assert crossed.handover.refused == 1
    await asyncio.gather(*waiting, first)
    assert order == [4, 0, 1, 2]


@pytest.mark.parametrize(("light", "at_once"), [(False, 1), (True, handover.LIGHT_A_TURN)])
async def test_one_heavy_work_or_some_light_ones_are_begun_in_a_turn(
    crossed: Crossed, light: bool, at_once: int
) -> None:
    crossed.handover._handed_at_most = 1_000
    turn, begun = 0, list[int]()

    async def work() -> None:
        begun.append(turn)

    many = [crossed.ask(work, light=light) for _ in range(100)]
    crossed.settle()
    async with asyncio.timeout(WAIT_S):
        while not all(each.done() for each in many):
            turn += 1
            await asyncio.sleep(0)
    assert max(begun.count(each) for each in set(begun)) == at_once


@pytest.mark.parametrize(("light", "at_once"), [(False, handover.ANSWERED_A_TURN), (True, 20)])
async def test_the_endpoints_go_on_with_few_heavy_answers_in_a_turn(
    crossed: Crossed, light: bool, at_once: int
) -> None:
    crossed.handover._handed_at_most = 1_000
    turn, answered, gate = 0, list[int](), asyncio.Event()

    def turns() -> None:
        nonlocal turn
        turn += 1
        if len(answered) < 20:
            crossed.loop.call_soon(turns)

    async def asking() -> None:
        await crossed.handover.ask(gate.wait, light=light)
        answered.append(turn)

    many = [asyncio.run_coroutine_threadsafe(asking(), crossed.loop) for _ in range(20)]
    await asyncio.sleep(0)
    crossed.loop.call_soon_threadsafe(turns)
    async with asyncio.timeout(WAIT_S):
        while len(crossed.handover._tasks) < 20:
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*map(asyncio.wrap_future, many))
    assert max(answered.count(each) for each in set(answered)) == at_once


async def test_who_gives_up_has_the_work_given_up(crossed: Crossed) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asking = crossed.ask(long)
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        asking.cancel()
        await ended.wait()


async def test_after_the_close_nothing_is_taken_and_nobody_waits(crossed: Crossed) -> None:
    begun = asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    asking = crossed.ask(long)
    await begun.wait()
    await crossed.handover.close()
    for each in (asking, crossed.ask(thread), crossed.ask(thread, first=True)):
        with pytest.raises(Unavailable, match="leaving"):
            await asyncio.wait_for(each, WAIT_S)


async def test_work_that_was_called_off_before_it_began_is_answered(crossed: Crossed) -> None:
    asking = crossed.ask(thread)
    crossed.settle()
    crossed.handover._take()  # its task is there, and has not had its first turn
    crossed.handover.abandon()
    with pytest.raises(Unavailable, match="leaving"):
        await asyncio.wait_for(asking, WAIT_S)


async def test_a_stream_is_read_ahead_by_a_bounded_number_and_ends(crossed: Crossed) -> None:
    given: list[int] = []
    ended = asyncio.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(1_000):
                given.append(number)
                yield number
        finally:
            ended.set()

    read: list[int] = []

    async def reading() -> None:
        async for number in crossed.handover.stream(numbers):
            read.append(number)
            assert len(given) - len(read) <= 2 * handover.PIECES_AHEAD + 2

    async with asyncio.timeout(WAIT_S):
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading(), crossed.loop))
        await ended.wait()
    assert read == list(range(1_000))
