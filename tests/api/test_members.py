"""What members of groups ask at the admin endpoint: what it answers to sense and to nonsense, and to whom."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from loadmanager.client import HttpRouter, Router
from loadmanager.client.credentials import Credentials
from loadmanager.consumer.session import GroupClient
from loadmanager.consumers.coordinator.messages import PROTOCOL, Answer, Beat, Refusal
from loadmanager.consumers.coordinator.records import Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.errors import Forbidden
from loadmanager.testing import NAMESPACE, embedded_cluster
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.embedded import PATIENT

GROUP = f"/v1/groups/{NAMESPACE}/billing"
BEATS_A = f"{GROUP}/members/a/heartbeat"
FIRST = Beat(Subscription(("orders",)))
BEAT: dict[str, Any] = {"subscription": {"topics": ["orders"]}}


class Port:
    """One broker's coordinator."""

    def __init__(
        self, session: aiohttp.ClientSession, topics: KnownTopics, coordinator: Coordinator | None = None
    ) -> None:
        self._session = session
        self.topics = topics
        self._coordinator = coordinator

    @property
    def coordinator(self) -> Coordinator:
        assert self._coordinator is not None
        return self._coordinator

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self._session.request(method, path, **options) as answer:
            text = await answer.text()
            return answer.status, (await answer.json(content_type=None) if text else None)

    async def beat(self, member: str, **more: Any) -> tuple[int, Any]:
        return await self.ask("POST", f"{GROUP}/members/{member}/heartbeat", json={**BEAT, **more})


@pytest_asyncio.fixture
async def port(tmp_path: Path) -> AsyncGenerator[Port]:
    async with AsyncExitStack() as stack:
        topics = KnownTopics({"orders": 2})
        coordinator = await running(stack, tmp_path, topics)
        cluster = await stack.enter_async_context(
            embedded_cluster(lambda: coordinator, brokers=1, bundles=1, http_body_limit_bytes=65_536, **PATIENT)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(cluster.admin_urls[0]))
        yield Port(session, topics, coordinator)


async def granted(port: Port) -> dict[str, Any]:
    """A member that may read both partitions."""
    beat, sequence = {}, 0
    while True:
        sequence += 1
        status, answer = await port.beat("a", **beat, sequence=sequence)
        assert status == 200, answer
        if answer["partitions"]:
            return answer
        beat = {"epoch": answer["epoch"], "acked": answer["revision"]}


async def test_a_member_reads_commits_and_leaves(port: Port) -> None:
    answer = await granted(port)
    assert answer["partitions"] == {"orders": [0, 1]}
    assert answer["lease_ms"] == 10_000
    body = {"epoch": answer["epoch"], "revision": answer["revision"], "offsets": {"orders": {"0": 7, "9": 1}}}
    status, found = await port.ask("POST", f"{GROUP}/members/a/commit", json=body | {"pulled": {"orders": {"0": 9}}})
    assert (status, list(found["refused"]["orders"])) == (200, ["9"])
    assert (port.topics.changed, port.topics.pulled) == ({("orders", 0): 7}, {("orders", 0): 9})
    assert found["refused"]["orders"]["9"]["why"] == "not_yours"
    assert (await port.ask("DELETE", f"{GROUP}/members/a"))[0] == 204
    status, refused = await port.beat("a", epoch=answer["epoch"], sequence=99)
    assert (status, refused["why"]) == (409, "unknown_member")


async def test_commits_of_a_group_that_kafka_has_members_of_are_refused(port: Port) -> None:
    answer = await granted(port)
    port.topics.in_use = True
    body = {"epoch": answer["epoch"], "revision": answer["revision"], "offsets": {"orders": {"0": 7}}}
    status, found = await port.ask("POST", f"{GROUP}/members/a/commit", json=body)
    assert (status, found["detail"]) == (409, f"persistent://{NAMESPACE}/billing has other members")


NONSENSE: list[tuple[str, str, bytes, int, str]] = [
    ("POST", f"{GROUP}/members/a/heartbeat", b"{", 400, "Input data was truncated"),
    ("POST", f"{GROUP}/members/a/heartbeat", b"{}", 400, "missing required field `subscription`"),
    ("POST", f"{GROUP}/members/a/heartbeat", b'{"subscription": {"topics": []}}', 412, "subscribes to 0 topics"),
    ("POST", f"{GROUP}/members/a/heartbeat?wait_ms=-1", b'{"subscription": {"topics": ["t"]}}', 412, "wait_ms is"),
    ("POST", f"{GROUP}/members/a/heartbeat?wait_ms=99999", b'{"subscription": {"topics": ["t"]}}', 412, "to 30000"),
    ("POST", f"{GROUP}/members/a/commit", b'{"epoch": 1, "revision": 1, "offsets": {"t": {"x": 1}}}', 400, "int"),
    ("POST", f"{GROUP}/members/a/commit", b'{"epoch": 1, "revision": 1, "offsets": {"t": {"0": -1}}}', 400, ">= 0"),
    ("DELETE", "/v1/groups/no/such/group/members/a", b"", 404, "there is no namespace no/such"),
    ("DELETE", "/v1/groups/a%20b/such/group/members/a", b"", 412, "'persistent://a b/such/group' is not a topic"),
]


async def test_nonsense_is_refused_with_a_reason(port: Port, subtests: pytest.Subtests) -> None:
    for method, path, body, status, says in NONSENSE:
        with subtests.test(path=path, body=body):
            found, answer = await port.ask(method, path, data=body, headers={"Content-Type": "application/json"})
            assert found == status, answer
            assert says in answer["detail"]


async def test_a_broker_that_hosts_something_else_says_so() -> None:
    async with (
        embedded_cluster(brokers=1, bundles=1, **PATIENT) as cluster,
        aiohttp.ClientSession(cluster.admin_urls[0]) as session,
    ):
        found, answer = await Port(session, KnownTopics()).beat("a")
    assert (found, "coordinates no consumer groups" in answer["detail"]) == (404, True)


async def test_a_heartbeat_waits_for_news_and_no_longer(port: Port) -> None:
    answer = await granted(port)
    beat = {"epoch": answer["epoch"], "acked": answer["revision"], "sequence": 50}
    waiting = asyncio.create_task(port.ask("POST", f"{BEATS_A}?wait_ms=30000", json={**BEAT, **beat}))
    while not port.coordinator.waiting:
        await asyncio.sleep(0.01)
    await port.beat("b")
    status, told = await waiting
    assert (status, len(told["partitions"]["orders"])) == (200, 1)


async def test_who_leaves_does_not_go_on_waiting(port: Port) -> None:
    answer = await granted(port)
    beat = {"epoch": answer["epoch"], "acked": answer["revision"], "sequence": 50}
    waiting = asyncio.create_task(port.ask("POST", f"{BEATS_A}?wait_ms=30000", json={**BEAT, **beat}))
    while not port.coordinator.waiting:
        await asyncio.sleep(0.01)
    waiting.cancel()
    async with asyncio.timeout(10):
        while port.coordinator.waiting:
            await asyncio.sleep(0.01)


async def test_a_heartbeat_that_waits_keeps_no_broker_from_ending(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await running(stack, tmp_path, KnownTopics({"orders": 2}))
        cluster = await stack.enter_async_context(
            embedded_cluster(lambda: coordinator, brokers=1, bundles=1, **PATIENT)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(cluster.admin_urls[0]))
        port = Port(session, KnownTopics(), coordinator)
        answer = await granted(port)
        beat = {"epoch": answer["epoch"], "acked": answer["revision"], "sequence": 50}
        waiting = asyncio.create_task(port.ask("POST", f"{BEATS_A}?wait_ms=30000", json={**BEAT, **beat}))
        while not coordinator.waiting:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await cluster.brokers[0].stop(drain_timeout_s=0.1)
            status, answer = await waiting
        assert status == 503, answer


async def test_the_body_is_bounded(port: Port) -> None:
    body = io.BytesIO(msgspec.json.encode({**BEAT, "claims": [["orders", 0]] * 6_000}))
    status, answer = await port.ask("POST", BEATS_A, data=body, headers={"Content-Type": "application/json"})
    assert (status, "65,536 bytes" in answer["detail"]) == (413, True)


async def test_members_need_the_role_of_a_client_in_their_namespace(tmp_path: Path) -> None:
    issuer, certificates = Issuer("k1"), Certificates(tmp_path / "tls")
    (tmp_path / "keys.json").write_bytes(jwks(issuer))
    certificate, key = certificates.issue("broker", "127.0.0.1")
    settings: dict[str, Any] = {"token_keys": str(tmp_path / "keys.json"), "superusers": "root"}
    tls: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key}
    async with AsyncExitStack() as stack:
        coordinators = [await running(stack, tmp_path, KnownTopics({"orders": 2})) for _ in range(2)]
        cluster = await stack.enter_async_context(
            embedded_cluster(coordinators.pop, brokers=2, bundles=2, **{**PATIENT, **settings}, **tls)
        )
        urls = [url.replace("http://", "https://") for url in cluster.admin_urls]

        async def beat(principal: str) -> Answer | Refusal:
            credentials = Credentials(token=issuer.token(principal), ca=certificates.ca)
            router = Router(urls, credentials=credentials)
            async with HttpRouter(router, protocol=PROTOCOL, credentials=credentials) as http:
                return await GroupClient(http, f"{NAMESPACE}/billing").heartbeat(principal, FIRST, 0, 10.0)

        with pytest.raises(Forbidden, match="ann is not client in any namespace"):
            await beat("ann")
        assert isinstance(await beat("root"), Answer)
        group = f"persistent://{NAMESPACE}/billing"
        owner = cluster.owner(group)
        assert owner is not None
        assert (await cluster.host(owner).describe(group)).creator == "root"
        headers = {"Authorization": f"Bearer {issuer.token('ann')}"}
        verify = ssl.create_default_context(cafile=certificates.ca)
        async with aiohttp.ClientSession(headers=headers) as session:
            for method, path in (
                ("POST", BEATS_A),
                ("POST", f"{GROUP}/members/a/commit"),
                ("DELETE", f"{GROUP}/members/a"),
            ):
                async with session.request(method, urls[0] + path, json={}, ssl=verify) as response:
                    assert (response.status, (await response.json(content_type=None))["detail"]) == (
                        403,
                        f"ann is not client in {NAMESPACE}: an access policy would have to say so",
                    )
