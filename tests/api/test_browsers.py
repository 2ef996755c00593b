"""Nobody's web page changes anything here, whatever it makes a browser send; whoever is no browser notices nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadmanager.settings import Settings
from loadmanager_api.http.guard import Names
from statechannel.law.bundle import Key
from tests.api.access.conftest import attacked as cluster
from tests.api.access.conftest import without_access
from tests.api.conftest import Cluster
from tests.api.raw import connected

__all__ = ["cluster"]

EVIL = "http://evil.example"
NAMESPACE = "/admin/v2/namespaces/t/n"


async def send(cluster: Cluster, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, Any]:
    """One request over a socket of its own, with just these headers: what a browser forbids a page to set, too."""
    raw = await connected(cluster)
    headers = {**cluster.credentials, "Connection": "close", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    await raw.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    answer = await raw.answer()
    raw.close()
    content = answer.partition(b"\r\n\r\n")[2]
    return int(answer.split()[1]), json.loads(content) if content.startswith(b"{") else content.decode()


WRITES = [
    ("PUT", f"{NAMESPACE}/unload", b""),
    ("POST", "/v1/balancing/pause", b"{}"),
    ("PUT", f"{NAMESPACE}/0x00000000_0x40000000/split", b""),
    ("DELETE", NAMESPACE, b""),
    ("POST", "/admin/v2/brokers/configuration/balancing/false", b""),
]


ORIGINS: list[dict[str, str]] = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
]


async def test_a_page_of_another_origin_changes_nothing(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    before = cluster.history()
    host = cluster.brokers[0].url.partition("://")[2]
    for told in ORIGINS:
        with subtests.test(told=told):
            for method, path, body in WRITES:
                headers = {"Host": host, "Content-Length": str(len(body)), "Content-Type": "application/json", **told}
                status, problem = await send(cluster, method, path, headers, body)
                assert status == 403, path
                assert "command line" in problem["detail"]
            await cluster.agree()
            assert cluster.history() == before


async def test_a_page_that_the_broker_served_itself_may_change_something(cluster: Cluster) -> None:
    await cluster.start()
    host = cluster.brokers[0].url.partition("://")[2]
    for origin in (f"http://{host}", f"https://{host}"):  # with TLS in front of it
        told = {"Host": host, "Origin": origin, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        assert (await send(cluster, "POST", "/v1/balancing/pause", {**told, "Content-Length": "2"}, b"{}"))[0] == 200


async def test_a_name_that_was_rebound_to_this_address_reaches_nothing(cluster: Cluster) -> None:
    """The page's own name leads here by now: for the browser this is its origin, and it may read and write freely."""
    await cluster.start()
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    before, port = cluster.history(), cluster.brokers[0].url.rpartition(":")[2]
    rebound = {"Host": f"evil.example:{port}", "Origin": f"{EVIL}:{port}", "Sec-Fetch-Site": "same-origin"}
    for method, path in (
        ("PUT", f"{NAMESPACE}/unload"),
        ("GET", "/v1/settings"),
        ("GET", "/lookup/v2/topic/persistent/t/n/a"),
        ("GET", "/admin/v2/brokers/health"),
    ):
        status, problem = await send(cluster, method, path, rebound)
        assert status == 421, path
        assert "'evil.example" in problem["detail"]
        assert "http_hosts" in problem["detail"]
    await cluster.agree()
    assert cluster.history() == before


@pytest.mark.parametrize(
    ("host", "known"),
    [
        (b"localhost", True),
        (b"LocalHost:8080", True),
        (b"127.0.0.1:1", True),
        (b"[::1]:8080", True),
        (b"10.1.2.3", True),
        (b"broker-1.example:8080", True),
        (b"Broker-1.example.", True),
        (b"lb.example", True),
        (b"other.example:443", True),
        (b"bound.example:80", True),
        (b"example", False),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"broker-1.example.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"", False),
        (b"\xff", False),
    ],
)
def test_a_broker_is_known_by_its_own_names_and_by_addresses(host: bytes, known: bool) -> None:
    names = Names(
        Settings(advertised="broker-1.example:8080", http_hosts=" lb.example, other.example"), "bound.example:80"
    )
    assert names.know(host) == known
    assert names.know(host) == known, "also when it is asked again"


def test_what_is_remembered_of_names_is_bounded() -> None:
    names = Names(Settings())
    for number in range(3_000):
        assert not names.know(b"%d.example" % number)
    assert len(names._known) <= 1_024


def test_a_long_name_is_not_remembered() -> None:
    names = Names(Settings())
    for number in range(100):
        assert not names.know(b"%d.%s.example" % (number, b"x" * 30_000))
    assert not names._known


HOSTS: list[tuple[list[str], int]] = [
    ([], 400),
    (["localhost", "localhost"], 400),
    (["localhost"], 200),
    (["evil.example"], 421),
]


@without_access
async def test_a_request_has_one_host_that_is_known(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    for hosts, wanted in HOSTS:
        with subtests.test(hosts=hosts, wanted=wanted):
            for path in ("/lookup/v2/topic/persistent/t/n/a", "/v1/notes"):
                raw = await connected(cluster)
                headers = [
                    *(f"{name}: {value}" for name, value in cluster.credentials.items()),
                    *(f"Host: {h}" for h in hosts),
                ]
                await raw.send("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())
                assert int((await raw.head()).split()[1]) == wanted
                raw.close()


@without_access
async def test_an_old_client_without_a_host_is_answered(cluster: Cluster) -> None:
    await cluster.start()
    raw = await connected(cluster)
    await raw.send(b"GET /admin/v2/brokers/ready HTTP/1.0\r\n\r\n")
    assert (await raw.answer()).startswith(b"HTTP/1.1 200 ")
    raw.close()


@without_access
async def test_a_body_is_taken_as_json_only(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """The kinds that a page may send without asking first; none at all is one of them."""
    await cluster.start()
    for kind in [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]:
        with subtests.test(kind=kind):
            told = {"Host": "localhost"} | ({"Content-Type": kind} if kind else {})
            status, problem = await send(cluster, "POST", "/v1/balancing/pause", {**told, "Content-Length": "2"}, b"{}")
            assert status == 415
            assert "application/json" in problem["detail"]
            chunked = {**told, "Transfer-Encoding": "chunked"}
            status, _ = await send(cluster, "POST", "/v1/balancing/pause", chunked, b"2\r\n{}\r\n0\r\n\r\n")
            assert status == 415


@without_access
async def test_a_write_without_a_body_needs_no_kind(cluster: Cluster) -> None:
    """As curl sends it, with `-d ''` too."""
    await cluster.start()
    await cluster.create("t/n")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for told in ({}, {"Content-Length": "0"}, {"Content-Length": "0", **form}):
        assert (await send(cluster, "PUT", f"{NAMESPACE}/unload", {"Host": "localhost", **told}))[0] == 204


PULSAR_ADMIN: list[tuple[str, str, bytes, int]] = [
    ("PUT", f"{NAMESPACE}/unload", b"", 204),
    ("PUT", f"{NAMESPACE}/0x00000000_0x40000000/split?unload=false", b"", 204),
    ("POST", "/admin/v2/brokers/configuration/loadBalancerSheddingIntervalMinutes/1", b"", 200),
    ("PUT", "/admin/v2/tenants/rec", b'{"adminRoles":[],"allowedClusters":["peer"]}', 204),
    ("DELETE", f"{NAMESPACE}/antiAffinity", b"", 204),
]


@without_access
async def test_pulsar_admin_is_taken_for_no_browser(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """With the headers of the real tool, as they were recorded."""
    await cluster.start()
    await cluster.create("t/n")
    for method, path, body, status in PULSAR_ADMIN:
        with subtests.test(method=method, path=path):
            await cluster.assign("t/n/a")
            topic = next(f"t/n/{i}" for i in range(100) if Key.parse(f"t/n/{i}").position < 0x40000000)
            await cluster.assign(topic)
            told = {"Accept": "application/json", "host": cluster.brokers[0].url.partition("://")[2]}
            told |= {"accept-encoding": "gzip", "user-agent": "Pulsar-Java-v4.0.8"}
            if method != "DELETE":
                told |= {"Content-Type": "application/json", "content-length": str(len(body))}
            assert (await send(cluster, method, path, told, body))[0] == status
