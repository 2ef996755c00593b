"""The client router: its memory by itself, and its following of moves against real brokers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from loadmanager import Broker, Bundle, Claim, Moved, NotFound, NotServing, Token
from loadmanager.client import BudgetSpent, HttpRouter, Route, Router, SyncRouter
from loadmanager.client.redirection import TOKEN_HEADER, error_of, problem_of
from loadmanager.client.route import RouteTable, SeenTokens
from loadmanager.errors import Invalid
from loadmanager_api.server import attach
from statechannel.law.bundle import FULL_UPPER, Key
from tests.loadmanager.embedded import NAMESPACE, TOPIC, Host, bundle_of, bundles_of, cluster, until

HALF = 0x80000000


def route(lo: int, hi: int, broker: str = "a:1", offset: int | None = 1) -> Route:
    token = None if offset is None else Token(0, 0, offset)
    return Route(Bundle(NAMESPACE, lo, hi), broker, {"http": f"http://{broker}"}, token)


# --- memory


def test_one_route_serves_all_topics_of_its_range():
    table = RouteTable()
    known = route(0, FULL_UPPER)
    assert table.cached(TOPIC) is None
    table.learn(known)
    assert all(table.cached(f"{NAMESPACE}/{i}") is known for i in range(100))
    assert table.cached("other/namespace/x") is None


def test_what_led_nowhere_is_forgotten_but_not_what_was_learned_meanwhile():
    table = RouteTable()
    old, new = route(0, FULL_UPPER, "a:1", 1), route(0, FULL_UPPER, "b:1", 2)
    table.learn(old)
    assert table.cached(TOPIC) == old
    table.learn(new)
    table.forget(old)
    assert table.cached(TOPIC) == new
    table.forget(new)
    assert table.cached(TOPIC) is None


def test_an_older_answer_does_not_replace_a_newer_one():
    table = RouteTable()
    assert table.learn(route(0, FULL_UPPER, "b:1", 7))
    assert not table.learn(route(0, FULL_UPPER, "a:1", 6))
    assert table.learn(route(0, FULL_UPPER, "c:1", None))
    assert not table.learn(route(0, FULL_UPPER, "a:1", 6))
    current = table.cached(TOPIC)
    assert current is not None
    assert current.broker == "c:1"


def test_the_ranges_of_a_split_replace_their_parent_and_a_merge_its_parts():
    table = RouteTable()
    topics = [f"{NAMESPACE}/{i}" for i in range(50)]
    whole, lower, upper = route(0, FULL_UPPER, "w:1"), route(0, HALF, "l:1"), route(HALF, FULL_UPPER, "u:1")

    def owners() -> set[str | None]:
        return {None if (known := table.cached(topic)) is None else known.broker for topic in topics}

    table.learn(whole)
    assert owners() == {"w:1"}
    table.learn(lower)
    assert owners() == {"l:1", None}
    table.learn(upper)
    assert owners() == {"l:1", "u:1"}
    table.learn(whole)
    assert owners() == {"w:1"}


def test_topics_beyond_the_bound_are_looked_up_by_range_again():
    table = RouteTable(topics_kept=10)
    table.learn(route(0, FULL_UPPER))
    assert all(table.cached(f"{NAMESPACE}/{i}") for i in range(100))
    assert len(table._by_topic) <= 10


def test_a_key_never_believes_an_older_token_and_only_the_last_keys_are_kept():
    seen = SeenTokens(kept=2)
    assert seen.accept("x", Token(0, 0, 5))
    assert seen.accept("x", Token(0, 0, 5))
    assert not seen.accept("x", Token(0, 0, 4))
    assert seen.accept("x", Token(1, 0, 0))
    assert seen.accept("y", Token(0, 0, 1))
    assert seen.accept("z", Token(0, 0, 1))
    assert seen.accept("x", Token(0, 0, 1)), "x was forgotten: y and z were used later"


def test_the_contract_over_http_says_the_same_on_both_sides():
    moved = Moved("b:1", {"http": "http://b:1"}, Bundle(NAMESPACE, 0, HALF))
    read = error_of(*problem_of(moved))
    assert isinstance(read, Moved)
    assert (read.broker, read.urls, read.bundle) == (moved.broker, moved.urls, moved.bundle)
    read = error_of(*problem_of(NotServing("later", 3.0)))
    assert isinstance(read, NotServing)
    assert read.retry_after_s == 3.0
    assert str(read) == "later"
    assert str(error_of(503, {}, b'{"type": "urn:x", "title": "Busy", "detail": "http_requests are open"}')) == (
        "http_requests are open"
    )
    assert error_of(200, {}, b"") is None
    assert error_of(421, {}, b"a proxy's own idea of 421") is None
    assert isinstance(error_of(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"<html>"), NotServing)


# --- against brokers


@pytest.fixture(autouse=True)
def patient_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here tries how long a broker defers a lookup; a machine may stall for longer than it usually does."""
    monkeypatch.setattr("loadmanager.client.router.LOOKUP_TIMEOUT_S", 30.0)


@asynccontextmanager
async def routed(directory: Path, brokers: int = 2, *more: str) -> AsyncGenerator[tuple[list[Broker], Router]]:
    hosts = [Host() for _ in range(brokers)]
    async with (
        cluster(directory, *hosts, endpoint=attach) as running,
        Router([*more, *(f"http://{broker.name}" for broker in running)]) as router,
    ):
        yield running, router


class Service:
    """Sends in this process: asks the broker that the route names."""

    def __init__(self, brokers: list[Broker]) -> None:
        self._brokers = {broker.name: broker for broker in brokers}
        self.asked: list[str] = []

    async def __call__(self, route: Route) -> Claim:
        self.asked.append(route.broker)
        async with self._brokers[route.broker].admit(TOPIC, 3.0) as claim:
            return claim


async def test_a_hundred_callers_of_one_bundle_cost_one_lookup(tmp_path: Path):
    async with routed(tmp_path) as (brokers, router):
        routes = await asyncio.gather(*(router.route(TOPIC) for _ in range(100)))
        assert router.lookups == 1
        assert {known.broker for known in routes} == {brokers[0].name}
        same_bundle = next(
            topic
            for i in range(1_000)
            if bundle_of(brokers[0], topic := f"{NAMESPACE}/{i}") == routes[0].bundle and topic != TOPIC
        )
        assert router.cached(same_bundle) == routes[0]


async def test_many_callers_of_unknown_ranges_cost_a_bounded_number_of_lookups(tmp_path: Path):
    async with routed(tmp_path) as (brokers, router):
        topics = [f"{NAMESPACE}/{i}" for i in range(1_000)]
        routes = await asyncio.gather(*(router.route(topic) for topic in topics))
        assert {known.bundle for known in routes} == set(bundles_of(brokers[0]))
        assert router.lookups <= 64


async def test_lookup_that_just_ended_is_not_awaited_by_a_key_of_another_bundle(
    monkeypatch: pytest.MonkeyPatch,
):
    lower, upper = Bundle(NAMESPACE, 0, 1 << 25), Bundle(NAMESPACE, 1 << 25, 1 << 26)  # what one lookup may be for
    low, high = (
        next(name for i in range(10_000) if Key.parse(name := f"{NAMESPACE}/{i}").position in bundle)
        for bundle in (lower, upper)
    )
    late: list[asyncio.Task[Route]] = []

    async with Router(["http://127.0.0.1:1"]) as router:

        async def locate(topic: str, _: float) -> Route:
            if topic == high:
                return Route(upper, "a:1", {})
            late.append(asyncio.create_task(router.route(high)))  # it runs before anybody hears of this answer
            return Route(lower, "a:1", {})

        monkeypatch.setattr(router.directory, "locate", locate)
        assert (await router.route(low)).bundle == lower
        assert (await late[0]).bundle == upper
        assert not router._lookups


async def test_a_move_is_followed_by_its_hint_without_a_lookup(tmp_path: Path):
    async with routed(tmp_path) as (brokers, router):
        service = Service(brokers)
        before = await router.call(TOPIC, service)
        await brokers[0].transfer(before.bundle, brokers[1].name)
        after = await router.call(TOPIC, service)
        assert service.asked[-1] == brokers[1].name
        assert after.token > before.token
        assert router.lookups == 1


async def test_a_call_during_a_hand_over_is_held_and_then_answered(tmp_path: Path):
    async with routed(tmp_path) as (brokers, router):
        source, target = brokers
        service = Service(brokers)
        await router.call(TOPIC, service)
        async with source.admit(TOPIC):
            move = asyncio.create_task(source.transfer(bundle_of(source), target.name))
            await until(lambda: not source.serving(bundle_of(source)))
            call = asyncio.create_task(router.call(TOPIC, service))
            await until(lambda: target.name in service.asked)
            assert not call.done()
        await move
        claim = await call
        assert target.serving(claim.bundle)


async def test_brokers_that_do_not_answer_are_passed_over(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with routed(tmp_path, 1, nobody) as (brokers, router):
            for _ in range(4):
                known = await router.route(TOPIC)
                assert known.broker == brokers[0].name
                router.routes.forget(known)


async def test_other_brokers_are_learned_from_the_answers(tmp_path: Path):
    async with routed(tmp_path) as ([owner, other], _), Router([f"http://{other.name}"]) as router:
        await router.route(TOPIC)
        assert f"http://{owner.name}" in router.directory.urls
    with pytest.raises(Invalid, match="at least one"):
        Router([])


async def test_an_error_names_who_said_it_and_why(tmp_path: Path):
    async with routed(tmp_path, 1) as ([broker], router):
        with pytest.raises(NotFound, match="nobody/knows") as unknown:
            await router.route("nobody/knows/this")
        assert unknown.value.said_by == f"http://{broker.name}"

        async def answer(_: web.Request) -> web.Response:
            status, headers, body = problem_of(NotServing("the cart is not loaded"))
            return web.Response(status=status, headers=headers, body=body)

        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            route = await router.route(TOPIC)
            urls = {"http": f"http://127.0.0.1:{runner.addresses[0][1]}"}
            router.route = _always(msgspec.structs.replace(route, urls=urls))  # type: ignore[method-assign]
            with pytest.raises(BudgetSpent, match=f"{broker.name} said: the cart is not loaded") as spent:
                await HttpRouter(router).get(TOPIC, "/", budget_s=5.0)
        finally:
            await runner.cleanup()
        assert spent.value.said_by == broker.name
        assert isinstance(spent.value.reason, NotServing)


def _always(route: Any) -> Any:
    async def answer(_: str) -> Any:
        return route

    return answer


async def test_a_router_for_threads_finds_owners_follows_them_and_keeps_its_budget(tmp_path: Path):
    async with routed(tmp_path, 2) as (brokers, _):

        def work() -> None:
            with SyncRouter(f"http://{broker.name}" for broker in brokers) as router:
                assert router.cached(TOPIC) is None
                route = router.route(TOPIC)
                assert router.cached(TOPIC) == route
                asked: list[str] = []

                def send(to: Route) -> str:
                    asked.append(to.broker)
                    if len(asked) == 1:
                        raise ConnectionResetError
                    return "done"

                assert router.call(TOPIC, send) == "done"
                assert asked == [route.broker] * 2
                with pytest.raises(NotFound):
                    router.route("nobody/knows/this")
                with SyncRouter([f"http://{brokers[0].name}"], protocol="gopher") as other:
                    other.route(TOPIC)
                    with pytest.raises(BudgetSpent, match="registered no gopher URL"):
                        other.get(TOPIC, "/", budget_s=0.3)
            router.close()

        await asyncio.to_thread(work)
        with pytest.raises(Invalid, match="at least one"):
            SyncRouter([])


async def test_the_budget_bounds_everything_and_tells_what_went_wrong(tmp_path: Path):
    async with routed(tmp_path, 1) as (_, router):

        async def refuse(_: Route) -> None:
            raise ConnectionResetError("nobody at home")

        await router.route(TOPIC)  # so that the first attempt waits for nothing
        begun_s = time.monotonic()
        with pytest.raises(BudgetSpent, match="nobody at home") as spent:
            await router.call(TOPIC, refuse, budget_s=0.3)
        assert isinstance(spent.value.__cause__, ConnectionResetError)
        assert spent.value.reason is spent.value.__cause__

        async def hang(_: Route) -> None:
            await asyncio.Event().wait()

        await router.route(TOPIC)
        with pytest.raises(BudgetSpent, match="first attempt was still under way"):
            await router.call(TOPIC, hang, budget_s=0.3)
        assert time.monotonic() - begun_s < 15, "twice the usual budget is more"
        assert router.cached(TOPIC) is None, "an owner that hangs may have a successor: it is looked up again"


async def test_what_the_service_itself_raises_comes_through(tmp_path: Path):
    async with routed(tmp_path, 1) as (_, router):

        async def broken(_: Route) -> None:
            raise KeyError("a bug")

        with pytest.raises(KeyError):
            await router.call(TOPIC, broken)
        with pytest.raises(NotFound):
            await router.call("no/such/namespace", broken)


async def test_an_answer_with_an_older_token_is_refused_and_asked_for_again(tmp_path: Path):
    async with routed(tmp_path, 1) as (_, router):
        answers = [Token(0, 0, 9), Token(0, 0, 3), Token(0, 0, 4), Token(0, 0, 9)]
        given = iter(answers)

        async def send(_: Route) -> Token:
            return next(given)

        assert await router.call(TOPIC, send, token_of=lambda token: token) == answers[0]
        assert await router.call(TOPIC, send, token_of=lambda token: token) == answers[3]


async def test_a_service_over_http_is_followed_by_the_contract(tmp_path: Path):
    """Two little servers: the first has lost the key to the second, which is not ready at once."""
    asked: list[str] = []
    async with routed(tmp_path, 1) as (brokers, router):
        bundle = bundle_of(brokers[0])
        refusals: list[Moved | NotServing] = []
        async with _server(asked, "second", []) as second, _server(asked, "first", refusals) as first:
            refusals.append(Moved("second", {"http": second}, bundle))
            router.routes.learn(Route(bundle, "first", {"http": first}))
            answer = await HttpRouter(router).post(TOPIC, "/echo", {"say": "hello"})
        assert asked == ["first", "second"]
        assert (answer.status, answer.json(), answer.token) == (200, {"say": "hello"}, Token(0, 0, 1))


async def test_a_service_that_is_not_serving_is_looked_up_and_asked_again(tmp_path: Path):
    asked: list[str] = []
    refusals: list[Moved | NotServing] = [NotServing("not yet", 0.0)] * 3
    async with (
        _server(asked, "slow", refusals) as url,
        cluster(tmp_path, Host(), endpoint=attach, urls={"http": url}) as [broker],
        HttpRouter(Router([f"http://{broker.name}"])) as http,
    ):
        answer = await http.post(TOPIC, "/echo", [1])
        assert answer.json() == [1]
        assert len(asked) == 4
        assert (await http.post(TOPIC, "/echo")).body == b"", "without a body, none is sent"
        missing = await http.get(TOPIC, "/nothing")
        assert missing.status == 404, "an ordinary answer, and the caller's business"
        nowhere = HttpRouter(http.router, protocol="gopher")
        with pytest.raises(BudgetSpent, match="registered no gopher URL"):
            await nowhere.get(TOPIC, "/", budget_s=0.2)


@asynccontextmanager
async def _server(asked: list[str], name: str, refusals: list[Moved | NotServing]) -> AsyncGenerator[str]:
    async def echo(request: web.Request) -> web.Response:
        asked.append(name)
        if refusals:
            status, headers, body = problem_of(refusals.pop())
            return web.Response(status=status, headers=headers, body=body)
        return web.Response(body=await request.read(), headers={TOKEN_HEADER: str(Token(0, 0, 1))})

    app = web.Application()
    app.router.add_post("/echo", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
