"""The coordinator's port: what it answers to sense and to nonsense."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadmanager.consumers.coordinator.records import Partition
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.consumers.coordinator.web import served
from loadmanager.testing import NAMESPACE, embedded_cluster
from statechannel.adapters.kafka.group_commits import GroupInUse
from statechannel.adapters.sqlite.log import SqliteLog
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets
from tests.loadmanager.consumers.running import in_background

GROUP = f"/v1/groups/{NAMESPACE}/billing"
BEAT: dict[str, Any] = {"subscription": {"topics": ["orders"]}}


class Topics:
    """One topic. Commits of a group that Kafka has members of are refused."""

    in_use = False
    offsets = MemoryOffsets()

    async def sizes(self, topics: Iterable[str]) -> Mapping[str, int]:
        return {topic: 2 for topic in topics if topic == "orders"}

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        assert offsets
        if self.in_use:
            raise GroupInUse(f"{group} has other members")


class Port:
    """One broker's coordinator."""

    def __init__(self, session: aiohttp.ClientSession, topics: Topics) -> None:
        self._session = session
        self.topics = topics

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self._session.request(method, path, **options) as answer:
            text = await answer.text()
            return answer.status, (await answer.json(content_type=None) if text else None)

    async def beat(self, member: str, **more: Any) -> tuple[int, Any]:
        return await self.ask("POST", f"{GROUP}/members/{member}/heartbeat", json={**BEAT, **more})


@pytest_asyncio.fixture
async def port(tmp_path: Path) -> AsyncGenerator[Port]:
    async with AsyncExitStack() as stack:
        log = SqliteLog(tmp_path / "groups.db")
        await log.start(5)
        stack.push_async_callback(log.close)
        topics = Topics()
        coordinator = Coordinator(GroupStore(log), topics, time.monotonic, topics_every_s=0.05)
        await coordinator.start()
        await stack.enter_async_context(in_background(coordinator.run()))
        url = await stack.enter_async_context(served(coordinator))
        await stack.enter_async_context(embedded_cluster(lambda: coordinator, brokers=1, bundles=1))
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        yield Port(session, topics)


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
    status, found = await port.ask("POST", f"{GROUP}/members/a/commit", json=body)
    assert (status, list(found["refused"]["orders"])) == (200, ["9"])
    assert found["refused"]["orders"]["9"]["why"] == "not_yours"
    _, described = await port.ask("GET", GROUP)
    assert described["members"]["a"]["partitions"] == {"orders": [0, 1]}
    assert described["moving"] == []
    assert (await port.ask("GET", "/v1/groups"))[1] == [f"persistent://{NAMESPACE}/billing"]
    assert (await port.ask("DELETE", f"{GROUP}/members/a"))[0] == 204
    status, refused = await port.beat("a", epoch=answer["epoch"], sequence=99)
    assert (status, refused["why"]) == (409, "unknown_member")


async def test_settings_are_changed_and_shown(port: Port) -> None:
    await granted(port)
    assert (await port.ask("PUT", f"{GROUP}/settings", json={"strategy": "AVG"}))[0] == 204
    assert (await port.ask("POST", f"{GROUP}/rebalance", json={"weights": {"orders": {"0": 2.5}}}))[0] == 204
    assert (await port.ask("POST", f"{GROUP}/rebalance"))[0] == 204
    assert (await port.ask("GET", GROUP))[1]["settings"] == {"strategy": "AVG"}


async def test_commits_of_a_group_that_kafka_has_members_of_are_refused(port: Port) -> None:
    answer = await granted(port)
    port.topics.in_use = True
    body = {"epoch": answer["epoch"], "revision": answer["revision"], "offsets": {"orders": {"0": 7}}}
    status, found = await port.ask("POST", f"{GROUP}/members/a/commit", json=body)
    assert (status, found["detail"]) == (409, f"persistent://{NAMESPACE}/billing has other members")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", f"{GROUP}/members/a/heartbeat", b"{", 400, "Input data was truncated"),
        ("POST", f"{GROUP}/members/a/heartbeat", b"{}", 400, "missing required field `subscription`"),
        ("POST", f"{GROUP}/members/a/heartbeat", b'{"subscription": {"topics": []}}', 400, "subscribes to 0 topics"),
        ("POST", f"{GROUP}/members/a/heartbeat?wait_ms=-1", b'{"subscription": {"topics": ["t"]}}', 400, "wait_ms is"),
        ("POST", f"{GROUP}/members/a/heartbeat?wait_ms=99999", b'{"subscription": {"topics": ["t"]}}', 400, "to 30000"),
        ("POST", f"{GROUP}/members/a/commit", b'{"epoch": 1, "revision": 1, "offsets": {"t": {"x": 1}}}', 400, "int"),
        ("PUT", f"{GROUP}/settings", b'{"strategy": "LUCK"}', 400, "no strategy is called 'LUCK'"),
        ("PUT", f"{GROUP}/settings", b'{"mode": "anarchy"}', 400, "Invalid enum value 'anarchy'"),
        ("GET", GROUP, b"", 404, "no group is called"),
        ("GET", "/v1/groups/no/such/group", b"", 404, "there is no namespace no/such"),
        ("POST", f"{GROUP}/rebalance", b"", 404, "no group is called"),
    ],
)
async def test_nonsense_is_refused_with_a_reason(
    port: Port, method: str, path: str, body: bytes, status: int, says: str
) -> None:
    found, answer = await port.ask(method, path, data=body)
    assert found == status, answer
    assert says in answer["detail"]
