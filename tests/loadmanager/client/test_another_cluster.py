"""A broker of another cluster at the address of a dead one: real brokers, and none of their clients mixes clusters."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from loadmanager import Broker, Conflict, Moved, NotServing
from loadmanager.client import BudgetSpent, HttpRouter, Router, SyncRouter
from loadmanager.client.cluster import WHO, Pin, check_request, cluster_in, continues, header_of
from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import CLUSTER_HEADER, AnotherCluster, problem_of
from loadmanager.client.route import Route, RouteTable
from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.errors import Invalid, Unavailable
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity
from tests.loadmanager.embedded import NAMESPACE, PATIENT, TOPIC, Host, embedded

BLUE = ClusterIdentity("blue", "1a2b-1", 0)


def test_the_header_is_read_back_and_a_name_alone_is_one():
    odd = ClusterIdentity("größe.x", "import-2-ab/cd", 3)
    assert cluster_in(header_of(BLUE)) == BLUE
    assert cluster_in(header_of(odd)) == odd
    assert cluster_in("blue") == ClusterIdentity("blue", "", -1)
    assert header_of(ClusterIdentity("blue", "", -1)) == "blue"
    for wrong in ("", "a/b", "a/b/c", "a/b/-1", "//1", "a/b/1/2", "é/b/1", "a" * 2_000, "a/b/" + "9" * 50):
        assert cluster_in(wrong) is None, wrong


def test_a_cluster_goes_on_in_a_later_log_and_never_in_an_earlier_one():
    later = ClusterIdentity("blue", "9f-1", 1)
    assert continues(later, BLUE)
    assert not continues(BLUE, later)
    assert not continues(ClusterIdentity("blue", "other", 0), BLUE)
    assert not continues(ClusterIdentity("green", "9f-1", 1), BLUE)
    check_request(later, header_of(BLUE))
    check_request(BLUE, None)
    check_request(BLUE, "blue")
    with pytest.raises(AnotherCluster, match=r"blue/1a2b-1/0.*green"):
        check_request(BLUE, "green")


def test_a_client_pins_what_it_is_given_or_what_comes_first():
    pin = Pin()
    pin.take({}, "x:1")
    assert pin.headers() == {}
    pin.take({CLUSTER_HEADER: header_of(BLUE)}, "x:1")
    assert pin.headers() == {CLUSTER_HEADER: "blue/1a2b-1/0"}
    with pytest.raises(AnotherCluster, match=r"y:1 belongs to cluster 'green/7/0', not to blue/1a2b-1/0"):
        pin.check({CLUSTER_HEADER: "green/7/0"}, "y:1")
    with pytest.raises(AnotherCluster):
        Pin("blue").check({CLUSTER_HEADER: "green/7/0"}, "y:1")
    with pytest.raises(Invalid):
        Pin("blue/7")


def test_a_later_log_is_learned_from_brokers_alone():
    pin, later = Pin(header_of(BLUE)), {CLUSTER_HEADER: "blue/9f-1/1"}
    pin.check(later, "a service")
    assert pin.cluster == BLUE
    pin.take(later, "a broker")
    with pytest.raises(AnotherCluster):
        pin.check({CLUSTER_HEADER: header_of(BLUE)}, "a service")


async def test_one_text_is_one_url_and_what_is_no_url_is_refused():
    async with Router("http://127.0.0.1:1") as router:
        assert router.directory.urls == ["http://127.0.0.1:1"]
    for wrong in ("127.0.0.1:1", ["127.0.0.1:1"], "http://a:1,http://b:2", [], ["http://"]):
        for use in (
            Router,
            SyncRouter,
            lambda urls: GroupConsumer("a/b/c", ["topic"], brokers=urls, kafka={"bootstrap.servers": "127.0.0.1:1"}),
        ):
            with pytest.raises(Invalid, match="URL"):
                use(wrong)


def test_a_consumer_keeps_its_name_and_refuses_what_is_no_cluster():
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    consumer = GroupConsumer("a/b/c", ["topic"], brokers=["http://a:1"], kafka=kafka, name="eu", cluster="blue")
    assert consumer._session.subscription.name == "eu"
    consumer.close()
    with pytest.raises(Invalid, match="blue/7"):
        GroupConsumer("a/b/c", ["topic"], brokers=["http://a:1"], kafka=kafka, cluster="blue/7")


class Address:
    """An address where a broker of some cluster answers lookups; it notes which credentials it is sent.

    Without a cluster its answers have no header. While `hangs`, it answers only the question which cluster it is of.
    """

    def __init__(self) -> None:
        self.cluster = ""
        self.status = 200
        self.hangs = False
        self.asked = asyncio.Event()
        self.tokens: list[str] = []
        self.runner: web.AppRunner

    async def answer(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self.tokens.append(self.cluster)
        if self.hangs and request.path != WHO:
            self.asked.set()
            await asyncio.Event().wait()
        named = {CLUSTER_HEADER: self.cluster} if self.cluster else {}
        answer = {"topic": TOPIC, "bundle": f"{NAMESPACE}/0x00000000_0xffffffff", "broker": "b", "urls": {}}
        return web.json_response({"answers": [answer]}, status=self.status, headers={**named, "Connection": "close"})

    async def begin(self, port: int = 0) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"


async def test_credentials_go_to_no_address_that_does_not_name_the_cluster_first():
    address = Address()
    url = await address.begin()
    port = address.runner.addresses[0][1]
    try:
        async with Router([url], cluster="blue", credentials=Credentials(token="secret")) as router:
            address.cluster = "green/1/0"
            with pytest.raises(Unavailable, match=r"green/1/0.*not to blue"):
                await router.directory.locate(TOPIC, 1.0)
            assert address.tokens == []
            address.cluster = "blue/1/0"
            for _ in range(2):
                await router.directory.locate(TOPIC, 1.0)
            assert address.tokens == ["blue/1/0"] * 2
            await address.runner.cleanup()
            with pytest.raises(Unavailable):
                await router.directory.locate(TOPIC, 1.0)
            address.cluster = "blue/2/0"
            await address.begin(port)
            with pytest.raises(Unavailable, match=r"blue/2/0.*not to blue/1/0"):
                await router.directory.locate(TOPIC, 1.0)
            assert address.tokens == ["blue/1/0"] * 2
    finally:
        await address.runner.cleanup()


Ask = Callable[[HttpRouter, str, float], Coroutine[Any, Any, None]]


async def looked_up(http: HttpRouter, url: str, budget_s: float) -> None:
    await http.router.directory.locate(TOPIC, budget_s)


async def called(http: HttpRouter, url: str, budget_s: float) -> None:
    async def send(route: Route) -> None:
        raise AssertionError("no broker may have said where it is served")

    await http.router.call(TOPIC, send, budget_s=budget_s)


async def requested(http: HttpRouter, url: str, budget_s: float) -> None:
    http.router.routes.learn(Route(Bundle.parse(f"{NAMESPACE}/0x00000000_0xffffffff"), "b", {"admin": url}))
    await http.get(TOPIC, "/x", budget_s=budget_s)


def of_blue(url: str, cluster: str = "blue") -> HttpRouter:
    mine = Credentials(token="secret")
    return HttpRouter(Router([url], cluster=cluster, credentials=mine), protocol="admin", credentials=mine)


@pytest.mark.parametrize(("cluster", "status"), [("blue", 404), ("blue", 503), ("", 200)])
@pytest.mark.parametrize("ask", [looked_up, called, requested])
async def test_no_token_goes_to_what_names_no_cluster(ask: Ask, cluster: str, status: int):
    address = Address()
    address.status = status
    url = await address.begin()
    try:
        async with of_blue(url, cluster) as http:
            with pytest.raises(Unavailable, match=f"{url} names no cluster"):
                await ask(http, url, 0.5)
            assert address.tokens == []
            address.cluster, address.status = "blue/1/0", 200
            await requested(http, url, 5.0)
            assert set(address.tokens) == {"blue/1/0"}, "a broker names it as soon as it has read its log"
    finally:
        await address.runner.cleanup()


@pytest.mark.parametrize("cluster", ["blue", ""])
@pytest.mark.parametrize("ask", [looked_up, requested])
async def test_a_cancelled_request_leaves_neither_trust_in_its_address_nor_its_route(ask: Ask, cluster: str):
    address = Address()
    address.cluster, address.hangs = "blue/1/0", True
    url = await address.begin()
    port = address.runner.addresses[0][1]
    try:
        async with of_blue(url, cluster) as http:
            asking = asyncio.create_task(ask(http, url, 60.0))
            await address.asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert http.router.cached(TOPIC) is None, "an owner that hangs may have a successor"
            await address.runner.cleanup()
            address.cluster, address.hangs = "green/1/0", False
            await address.begin(port)
            with pytest.raises(Unavailable, match=r"green/1/0.*not to blue/1/0"):
                await ask(http, url, 0.5)
            assert address.tokens == ["blue/1/0"]
    finally:
        await address.runner.cleanup()


class Shop(Host):
    """A service with one route, which does what every service does."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.runner: web.AppRunner

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/add/{key}", self.add)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def add(self, request: web.Request) -> web.Response:
        try:
            key, cluster = f"{NAMESPACE}/{request.match_info['key']}", request.headers.get(CLUSTER_HEADER)
            async with self.broker.admit(key, cluster=cluster):
                self.writes += 1
                return web.json_response({"cluster": self.broker.node.settings.cluster})
        except (Moved, NotServing) as error:
            status, headers, body = problem_of(error)
            return web.Response(status=status, headers=headers, body=body)


@asynccontextmanager
async def shop(
    directory: Path, name: str, advertised: str = "127.0.0.1:0", leaving_s: float = 0.0
) -> AsyncGenerator[tuple[Broker, Shop]]:
    service = Shop()
    urls = {"http": await service.start()}
    settings = {**PATIENT, "cluster": name, "log": f"sqlite:{directory}/{name}.db", "advertised": advertised}
    broker = embedded(directory, service, endpoint=True, urls=urls, partitions=1, balancing=False, **settings)
    try:
        await broker.start()
        await broker.ensure_namespace(NAMESPACE, 2)
        yield broker, service
    finally:
        await broker.stop(leaving_s)
        await service.runner.cleanup()


async def written(http: HttpRouter, count: int = 20) -> Counter[str]:
    found: Counter[str] = Counter()
    for i in range(count):
        found[(await http.post(f"{NAMESPACE}/{i}", f"/add/{i}", {}, budget_s=5.0)).json()["cluster"]] += 1
    return found


@pytest.mark.slow
async def test_no_write_goes_to_the_cluster_that_took_a_dead_brokers_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with AsyncExitStack() as stack:
        blue, _ = await stack.enter_async_context(shop(tmp_path, "blue"))
        async with shop(tmp_path, "blue", leaving_s=5.0) as (dying, _):
            name = dying.name
            urls = [f"http://{name}", f"http://{blue.name}"]
            old = await stack.enter_async_context(HttpRouter(Router(urls)))
            assert await written(old) == {"blue": 20}
        _, green = await stack.enter_async_context(shop(tmp_path, "green", name))

        with caplog.at_level(logging.WARNING, "loadmanager.client"):
            for _ in range(3):
                old.router.routes = RouteTable()  # so that it asks again, both brokers in turn
                assert await written(old) == {"blue": 20}
        assert green.writes == 0
        (warning,) = (each.getMessage() for each in caplog.records if each.name.startswith("loadmanager.client"))
        assert "green/" in warning
        assert "blue/" in warning

        async with HttpRouter(Router(urls)) as undecided:
            with pytest.raises(Conflict, match=r"to different clusters, .*/.* to .*/.*: name one"):
                await undecided.post(TOPIC, "/add/alice", {}, budget_s=0.5)
        for cluster in ("blue", next(iter(old.router.directory.pin.headers().values()))):
            async with HttpRouter(Router(urls, cluster=cluster)) as told:
                assert await written(told) == {"blue": 20}
        third, _ = await stack.enter_async_context(shop(tmp_path, "blue"))
        async with HttpRouter(Router([*urls, f"http://{third.name}"])) as most:
            assert await written(most) == {"blue": 20}
        async with HttpRouter(Router([urls[0]], cluster="blue")) as lost:
            with pytest.raises(BudgetSpent, match=r"green/.* not to blue"):
                await lost.post(TOPIC, "/add/alice", {}, budget_s=0.5)
        assert green.writes == 0


async def test_brokers_and_services_refuse_requests_for_another_cluster_and_say_which_they_are(tmp_path: Path):
    async with shop(tmp_path, "blue") as (broker, service), aiohttp.ClientSession() as session:
        admin, ours = f"http://{broker.name}", broker.node.channel.table.cluster_identity
        assert ours is not None
        lookup = f"/lookup/v2/topic/persistent/{TOPIC}"
        for path in (lookup, lookup, "/admin/v2/brokers/health", "/v1/brokers", "/metrics", "/no/such/route"):
            async with session.get(admin + path) as answer:
                assert answer.headers[CLUSTER_HEADER] == header_of(ours), path
            for mine in ("blue", header_of(ours)):
                async with session.get(admin + path, headers={CLUSTER_HEADER: mine}) as answer:
                    assert answer.status == (404 if path.startswith("/no") else 200), path
            for other in ("green", "green/1/0", "blue/1/0", "blue/x"):
                async with session.get(admin + path, headers={CLUSTER_HEADER: other}) as answer:
                    assert answer.status == 421, path
                    assert answer.headers[CLUSTER_HEADER] == header_of(ours)
                    problem = await answer.json()
                assert problem["type"] == "urn:loadmanager:problem:another-cluster"
                assert header_of(ours) in problem["detail"]
                assert other in problem["detail"]
        async with session.get(f"{admin}/v1/watch") as stream:
            assert stream.headers[CLUSTER_HEADER] == header_of(ours)
        url = broker.node.registration.urls["http"]
        async with session.post(f"{url}/add/alice", headers={CLUSTER_HEADER: "green/1/0"}) as answer:
            assert answer.status == 421
            assert (await answer.json())["type"] == "urn:loadmanager:another-cluster"
            assert answer.headers[CLUSTER_HEADER] == header_of(ours)
        assert service.writes == 0


async def test_no_route_answers_a_request_for_another_cluster(tmp_path: Path):
    async with shop(tmp_path, "blue") as (broker, _), aiohttp.ClientSession() as session:
        url = f"http://{broker.name}"
        async with session.get(f"{url}/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        asked = [(method, path) for path, methods in paths.items() for method in methods]
        asked += [("get", path) for path in ("/", "/metrics", "/openapi.json", "/admin/v2/brokers/live", "/no/such")]
        asked += [
            ("post", "/v1/groups/shop/orders/billing/members/m/heartbeat"),
            ("get", f"/lookup/v2/topic/persistent/{TOPIC}"),
        ]
        assert len(asked) > 100
        for method, path in asked:
            filled = re.sub(r"\{[^}]*\}", "x", path)
            async with session.request(method, url + filled, headers={CLUSTER_HEADER: "green/1/0"}) as answer:
                assert answer.status == 421, (method, path)
                detail = (await answer.json())["detail"] if method != "head" else "green/1/0 blue/"
                assert "green/1/0" in detail, (method, path)
                assert "blue/" in detail, (method, path)
