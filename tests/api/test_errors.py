"""Whatever goes wrong is a problem document, and costs this broker little."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.wiring import dependencies
from loadmanager.embedding.endpoints import listen, opened
from loadmanager.settings import Settings
from loadmanager_api import application
from loadmanager_api.server import NotLoopback, attach, check_reach
from statechannel.errors import CoordinationUnavailable, LogUnavailable
from tests.api.conftest import Cluster, Host, Refused


async def test_an_unknown_path_is_a_problem(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start()
    for path in ["/nothing", "/v1", "/v1/bundles/", "/admin/v3/brokers"]:
        with subtests.test(path=path):
            assert path in (await refused(404, "GET", path))["detail"]


async def test_a_wrong_method_is_a_problem_that_names_the_right_one(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    assert "GET" in (await refused(405, "DELETE", "/v1/bundles"))["detail"]
    assert (await cluster.ask("DELETE", "/v1/bundles"))[2]["Allow"] == "GET, HEAD, OPTIONS"


async def test_a_long_path_is_quoted_without_its_middle(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    detail = (await refused(404, "GET", f"/v1/{'pwd' * 9_000}"))["detail"]
    assert "/v1/pwdpwd" in detail
    assert "characters left out" in detail
    assert len(detail) < 2_100


@pytest.fixture
def fresh_routes() -> Generator[FastAPI]:
    """The routes of this test alone."""
    for cached in (application.routes_of_all, application.laid_out):
        cached.cache_clear()
    yield application.routes_of_all()
    for cached in (application.routes_of_all, application.laid_out):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LogUnavailable("the log is full"), 503),
        (CoordinationUnavailable("no answer"), 503),
        (RuntimeError("secret of the inside"), 500),
    ],
)
async def test_errors_of_the_inside_do_not_show_it(
    cluster: Cluster, fresh_routes: FastAPI, error: Exception, status: int
) -> None:
    @fresh_routes.get("/v1/fails")
    async def fail() -> None:
        raise error

    await cluster.start()
    found, body, headers = await cluster.ask("GET", "/v1/fails")
    assert found == body["status"] == status
    assert headers["Content-Type"] == "application/problem+json"
    assert ("Retry-After" in headers) == (status == 503)
    assert "secret" not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)


@pytest.mark.slow
async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(
    cluster: Cluster, refused: Refused
) -> None:
    await cluster.start(http_body_limit_bytes=65_536)
    body = b'{"topics": ["' + b"x" * 65_536 + b'"]}'

    async def chunks() -> Any:
        yield body[: len(body) // 2]
        yield body[len(body) // 2 :]

    json_type = {"Content-Type": "application/json"}
    assert "at most" in (await refused(413, "POST", "/v1/lookup", data=io.BytesIO(body), headers=json_type))["detail"]
    assert "at most" in (await refused(413, "POST", "/v1/lookup", data=chunks(), headers=json_type))["detail"]


async def test_a_body_that_does_not_arrive_is_given_up(cluster: Cluster) -> None:
    await cluster.start(http_body_timeout_s=0.05)
    host, port = cluster.brokers[0].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive" in answer


async def test_lookups_that_wait_leave_a_place_to_administration(cluster: Cluster) -> None:
    await cluster.start(http_requests=8)
    await cluster.create("t/n")
    cluster.brokers[0].host.gate.clear()
    counts = cluster.brokers[0].node.current.lookup.counts
    many = [asyncio.create_task(cluster.ask("POST", "/v1/lookup", json={"topics": ["t/n/a"]})) for _ in range(7)]
    await cluster.until(lambda: counts.waiting == 7)
    assert (await cluster.ask("GET", "/admin/v2/brokers/ready"))[0] == 200
    assert (await cluster.ask("GET", "/metrics"))[0] == 200
    status, body, headers = await cluster.ask("POST", "/v1/lookup", json={"topics": ["t/n/a"]})
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "7 watches and lookups" in body["detail"]
    assert (await cluster.ask("GET", "/v1/notes"))[0] == 200, "administration has places of its own"
    cluster.brokers[0].host.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*many)] == 7 * [200]
    assert (await cluster.ask("GET", "/v1/notes"))[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "some-host:0", "192.0.2.1:80", "127.0.0.1.example:80"])
def test_only_loopback_is_served_unless_told_otherwise(address: str) -> None:
    with pytest.raises(NotLoopback, match="--insecure"):
        check_reach(address, Settings())
    check_reach(address, Settings(insecure=True))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.1.2.3:80", "[::1]:0", "localhost:0"])
def test_loopback_may_be_served(address: str) -> None:
    check_reach(address, Settings())


async def test_the_endpoints_do_not_open_on_a_socket_that_others_reach(tmp_path: Path) -> None:
    settings = Settings(log=f"sqlite:{tmp_path / 'lm.db'}")
    node = Node(settings, Host(), HostRunner(), dependencies(settings))
    with socket.socket() as reachable:
        reachable.bind(("0.0.0.0", 0))  # bound, but it never listens
        with pytest.raises(NotLoopback):
            async with opened(attach, node, reachable):
                pytest.fail("the endpoints are open")


def test_an_address_that_is_taken_is_named() -> None:
    with listen("127.0.0.1:0") as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(OSError, match=address):
            listen(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:http", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        listen(address)


async def test_the_routes_describe_themselves(cluster: Cluster) -> None:
    await cluster.start()
    status, described, _ = await cluster.ask("GET", "/openapi.json")
    assert status == 200
    assert "/v1/lookup" in described["paths"]


async def test_they_describe_the_error_that_they_answer(cluster: Cluster) -> None:
    await cluster.start()
    described = (await cluster.ask("GET", "/openapi.json"))[1]
    shape = described["components"]["schemas"]["Problem"]
    status, problem, _ = await cluster.ask("POST", "/v1/lookup", json={"topics": 5})
    assert status == 400
    assert set(shape["required"]) <= set(problem) <= set(shape["properties"])
