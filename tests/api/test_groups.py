"""`/v1/groups` and `loadmanager groups`: three coordinators, members, and whoever looks and changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from yarl import URL

from loadmanager.client import HttpRouter, Router
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.consumer.assignment import Membership
from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.consumer.session import GroupClient
from loadmanager.consumers.coordinator.messages import PROTOCOL, Answer
from loadmanager.consumers.coordinator.records import Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.targets import STRATEGIES
from loadmanager.errors import Invalid
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from loadmanager_api.cli import groups as cli_groups
from loadmanager_api.cli.main import main
from statechannel.errors import InvalidName
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.embedded import PATIENT

GROUP = f"{NAMESPACE}/billing"
AT = f"/v1/groups/{GROUP}"
BROKERS = 2


class World:
    """Brokers, their topics, a client, and members of one group."""

    def __init__(
        self, cluster: EmbeddedCluster[Coordinator], topics: KnownTopics, session: aiohttp.ClientSession
    ) -> None:
        self.cluster = cluster
        self.topics = topics
        self._session = session
        self._members: dict[str, Membership] = {}
        self.in_racks: dict[str, str] = {}

    async def ask(self, method: str, path: str, *, at: int | None = None, **options: Any) -> tuple[int, Any, Any]:
        """Status, body and headers, following redirects unless `at` says which broker is asked."""
        url = self.cluster.admin_urls[at or 0] + path
        async with self._session.request(method, url, allow_redirects=at is None, **options) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None, answer.headers

    async def cli(self, *arguments: str) -> Result:
        urls = ",".join(self.cluster.admin_urls)
        return await asyncio.to_thread(CliRunner().invoke, main, ["--admin-url", urls, "groups", *arguments])

    async def beat(self, name: str) -> None:
        """A heartbeat of a member that does at once what it is told."""
        rack = self.in_racks.get(name, "")
        subscription = Subscription(("orders",), rack=rack, client_id=f"billing-{name}", host="node-7")
        member = self._members.setdefault(name, Membership(name, subscription))
        member.subscription = subscription
        async with asyncio.timeout(20):
            while True:
                beat, owner = member.beat(0), self.cluster.owner(GROUP)
                try:
                    assert owner is not None
                    answer = await self.cluster.host(owner).heartbeat(f"persistent://{GROUP}", name, beat)
                except (AssertionError, Moved, NotServing):
                    await asyncio.sleep(0.02)
                else:
                    assert isinstance(answer, Answer)
                    member.given_up(member.answered(beat.sequence, answer).revoked)
                    return

    async def settle(self, *names: str) -> None:
        """Heartbeats until nothing moves."""
        async with asyncio.timeout(20):
            while True:
                for name in names:
                    await self.beat(name)
                found = (await self.ask("GET", AT))[1]
                if found.get("members") == len(names) and not found["moving"] and found["partitions"] == 6:
                    return


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    topics = KnownTopics()
    topics.offsets.topics = {"orders": [(0, 100)] * 6}
    topics.offsets.groups_committed = {GROUP: {"orders": dict.fromkeys(range(6), 40)}, "plain": {}}
    async with AsyncExitStack() as stack:
        coordinators = [await running(stack, tmp_path, topics, lag_every_s=0.05) for _ in range(BROKERS)]
        cluster = await stack.enter_async_context(
            embedded_cluster(coordinators.pop, brokers=BROKERS, bundles=4, **PATIENT)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        world = World(cluster, topics, session)
        await world.settle("a", "b")
        yield world


async def test_a_group_is_shown_with_its_members(world: World) -> None:
    status, found, _ = await world.ask("GET", AT)
    assert status == 200
    names = ("group", "strategy", "mode", "members", "partitions", "moving", "topics")
    assert [found[name] for name in names] == [GROUP, "STICKY", "server", 2, 6, 0, ["orders"]]
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    assert found["coordinator"] == owner.name
    members = (await world.ask("GET", f"{AT}/members"))[1]
    assert [each["member"] for each in members] == ["a", "b"]
    assert sorted(number for each in members for number in each["partitions"]["orders"]) == list(range(6))
    assert [each["giving_up"] for each in members] == [{}, {}]
    assert [(each["client_id"], each["host"]) for each in members] == [("billing-a", "node-7"), ("billing-b", "node-7")]


async def test_any_broker_sends_to_the_coordinator(world: World) -> None:
    names = [broker.name for broker in world.cluster.brokers]
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    here = names.index(owner.name)
    elsewhere = 1 - here
    status, _, headers = await world.ask("GET", f"{AT}/members?limit=1", at=elsewhere)
    assert (status, headers["Location"]) == (307, f"http://{owner.name}{AT}/members?limit=1")
    for method, path, body, done in (
        ("PATCH", AT, {"mode": "client"}, 204),
        ("POST", f"{AT}/rebalance", {}, 204),
        ("PUT", f"{AT}/offsets?dry_run=true", {"to": "latest"}, 200),
    ):
        key = {"Idempotency-Key": path}
        assert (await world.ask(method, path, at=elsewhere, json=body, headers=key))[0] == 307, path
        assert (await world.ask(method, path, at=here, json=body, headers=key))[0] == done, path
        later = {"Prefer": "respond-async"}
        assert (await world.ask(method, path, at=elsewhere, json=body, headers=later))[0] == 307, path


async def test_pages_of_members_groups_and_rebalances(world: World) -> None:
    for path, count in ((f"{AT}/members", 2), (f"{AT}/rebalances", 2), ("/v1/groups", 2)):
        found: list[Any] = []
        following = f"{path}?limit=1"
        while following:
            status, page, headers = await world.ask("GET", following)
            assert (status, len(page)) == (200, 1), page
            found += page
            following = headers.get("Link", "").removeprefix("<").removesuffix('>; rel="next"')
        assert found == (await world.ask("GET", path))[1]
        assert len(found) >= count
        status, problem, _ = await world.ask("GET", f"{path}?cursor=")
        assert (status, "cursor of this list" in problem["detail"]) == (400, True), path


async def test_groups_are_listed_beside_those_of_kafka(world: World) -> None:
    found = (await world.ask("GET", "/v1/groups"))[1]
    assert found == [{"group": "plain", "coordinated": False}, {"group": GROUP, "coordinated": True}]
    assert (await world.ask("GET", "/v1/groups?coordinated=false"))[1] == found[:1]
    assert (await world.ask("GET", "/v1/groups?coordinated=true"))[1] == found[1:]


async def test_rebalances_say_why_what_moved_and_for_how_long(world: World) -> None:
    found = {each["why"]: each for each in (await world.ask("GET", f"{AT}/rebalances"))[1]}
    assert {"a joined", "b joined"} <= found.keys()
    second = found["b joined"]
    assert (second["moved"], second["kept"], second["stickiness"], second["members"]) == (3, 3, 0.5, 2)
    assert second["balance_degree"] == 0.0
    assert second["settled_ms"] >= second["pause_max_ms"] >= second["pause_mean_ms"] >= 0
    assert second["worst"].startswith("orders-")


async def test_strategy_and_mode_change_while_members_read(world: World) -> None:
    assert (await world.ask("PATCH", AT, json={"strategy": "AVG"}))[0] == 204
    await world.settle("a", "b")
    members = (await world.ask("GET", f"{AT}/members"))[1]
    assert [each["partitions"]["orders"] for each in members] == [[0, 1, 2], [3, 4, 5]]
    assert (await world.ask("PATCH", AT, json={"mode": "client"}))[0] == 204
    found = (await world.ask("GET", AT))[1]
    assert (found["strategy"], found["mode"]) == ("AVG", "client")


@pytest.mark.slow
async def test_settings_may_come_before_the_first_member(world: World) -> None:
    early = f"/v1/groups/{NAMESPACE}/early"
    assert (await world.ask("PATCH", early, json={"strategy": "WEIGHTED_STICKY"}))[0] == 204
    assert (await world.ask("GET", early))[1]["strategy"] == "WEIGHTED_STICKY"


async def test_lag_divides_a_weighted_group_anew(world: World) -> None:
    assert (await world.ask("PATCH", AT, json={"strategy": "WEIGHTED_STICKY"}))[0] == 204
    await world.settle("a", "b")
    heavy = (await world.ask("GET", f"{AT}/members"))[1][0]["partitions"]["orders"]
    for number in heavy:
        world.topics.offsets.topics["orders"][number] = (0, 1_000_000)
    async with asyncio.timeout(20):
        while True:
            for name in "ab":
                await world.beat(name)
            shared = [
                len(set(heavy) & set(each["partitions"].get("orders", [])))
                for each in (await world.ask("GET", f"{AT}/members"))[1]
            ]
            if max(shared) == 2:
                break
    whys = [each["why"] for each in (await world.ask("GET", f"{AT}/rebalances"))[1]]
    assert "one member had too much to read" in whys
    assert (await world.ask("POST", f"{AT}/rebalance", json={"by_lag": True}))[0] == 204
    assert (await world.ask("GET", f"{AT}/rebalances"))[1][0]["why"] == "asked for, by lag"


async def test_the_backlog_of_coordinated_groups_is_in_the_metrics(world: World) -> None:
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://{owner.name}/metrics") as answer:
                text = await answer.text()
            sample = f'loadmanager_consumer_lag_messages{{consumer_group="{GROUP}",topic="orders"}} 360.0'
            if sample in text:
                return


@pytest.mark.parametrize(
    ("to", "after", "skipped", "again"),
    [("earliest", 0, 0, 240), ("latest", 100, 360, 0), ("-10", 30, 0, 60), ("+10", 50, 60, 0), ("999", 100, 360, 0)],
)
async def test_offsets_are_reset_while_members_read(
    world: World, to: str, after: int, skipped: int, again: int
) -> None:
    planned = (await world.ask("PUT", f"{AT}/offsets?dry_run=true", json={"to": to}))[1]
    assert (planned["dry_run"], planned["skipped"], planned["again"], planned["partitions"]) == (
        True,
        skipped,
        again,
        6,
    )
    assert world.topics.changed == {}
    resetting = asyncio.create_task(world.ask("PUT", f"{AT}/offsets", json={"to": to}))
    async with asyncio.timeout(20):
        while not resetting.done():
            for name in "ab":
                await world.beat(name)
            await asyncio.sleep(0.01)
    status, found, _ = await resetting
    assert (status, found["skipped"], found["again"], found["dry_run"]) == (200, skipped, again, False)
    assert world.topics.committed == {("orders", number): after for number in range(6)}
    await world.settle("a", "b")


async def test_only_some_partitions_are_reset(world: World) -> None:
    body = {"to": "42", "topic": "orders", "partitions": [5, 1, 1]}
    resetting = asyncio.create_task(world.ask("PUT", f"{AT}/offsets", json=body))
    async with asyncio.timeout(20):
        while not resetting.done():
            for name in "ab":
                await world.beat(name)
            await asyncio.sleep(0.01)
    status, found, _ = await resetting
    assert (status, found["steps"]) == (
        200,
        [{"topic": "orders", "partition": each, "before": 40, "after": 42} for each in (1, 5)],
    )
    assert world.topics.changed == {("orders", 1): 42, ("orders", 5): 42}


async def test_a_shift_leaves_partitions_without_an_offset_alone(world: World) -> None:
    world.topics.offsets.groups_committed[GROUP] = {"orders": dict.fromkeys(range(5), 40)}
    status, found, _ = await world.ask("PUT", f"{AT}/offsets?dry_run=true", json={"to": "-50"})
    assert (status, found["partitions"], found["left"], found["again"]) == (200, 5, 1, 200)
    assert found["steps"][5] == {"topic": "orders", "partition": 5, "before": None, "after": None}


async def test_a_member_that_does_not_stop_keeps_its_offsets(world: World) -> None:
    status, problem, _ = await world.ask("PUT", f"{AT}/offsets", json={"to": "latest", "timeout_s": 0.3})
    assert (status, world.topics.changed) == (503, {}), problem
    await world.settle("a", "b")


NAMES = (
    "eu/billing",
    "x/members",
    "members",
    "bil\nling",
    "50%",
    "a%2Fb",
    "blank and ümlaut?#",
    "a/../b",
    "//",
    "☃" * 60,
)


@pytest.mark.slow
async def test_every_name_that_kafka_takes_works_for_members_routes_and_commands(
    world: World, subtests: pytest.Subtests
) -> None:
    async with HttpRouter(Router(world.cluster.admin_urls), protocol=PROTOCOL) as http:
        for name in NAMES:
            with subtests.test(name=name):
                group = f"{NAMESPACE}/{name}"
                if "/../" in name:
                    for reads in (GroupClient, consumer):
                        with pytest.raises(InvalidName):
                            reads(cast("Any", http), group)
                    continue
                client, member = GroupClient(http, group), Membership("m/1", Subscription(("orders",)))
                for _ in range(2):
                    beat = member.beat(0)
                    answer = await client.heartbeat("m/1", beat, 0, 10)
                    assert isinstance(answer, Answer)
                    member.answered(beat.sequence, answer)
                at = f"/v1/groups/{NAMESPACE}/{quote(name, safe='')}"
                for number in range(BROKERS):
                    url = URL(world.cluster.admin_urls[number] + at, encoded=True)
                    async with http.router.session.get(url) as shown:
                        assert (shown.status, (await shown.json()).get("group")) == (200, group)
                    async with http.router.session.get(URL(f"{url}/members", encoded=True)) as shown:
                        assert [each["member"] for each in await shown.json()] == ["m/1"]
                described = await world.cli("describe", group)
                assert (described.exit_code, "m/1" in described.stdout) == (0, True), described.output
                assert (await world.cli("set-strategy", group, "AVG")).exit_code == 0
                owner = world.cluster.owner(group)
                assert owner is not None
                await world.cluster.transfer(group, next(b for b in world.cluster.brokers if b is not owner))
                assert isinstance(await client.heartbeat("m/1", member.beat(0), 0, 10), Answer), "it moved along"
                await client.leave("m/1", member.process, 10)


def consumer(_: object, group: str, topics: Sequence[str] = ("orders",)) -> GroupConsumer:
    return GroupConsumer(group, topics, brokers=["http://127.0.0.1:9"], kafka={"bootstrap.servers": "127.0.0.1:9"})


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", ".."])
async def test_a_name_that_kafka_does_not_take_is_refused_at_once(name: str, world: World) -> None:
    group = f"{NAMESPACE}/{name}"
    with pytest.raises(InvalidName):
        consumer(None, group)
    assert (await world.cli("describe", group)).exit_code == 2
    if "\ud800" not in name and name:
        path = f"/v1/groups/{NAMESPACE}/{quote(name, safe='').replace('..', '%2E%2E')}/members/a/heartbeat"
        url = URL(world.cluster.admin_urls[0] + path, encoded=True)
        body = {"subscription": {"topics": ["orders"]}}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            assert answer.status in (400, 412), await answer.text()


@pytest.mark.parametrize("topics", [("a/b",), ("a b",), ("^all.*",), ("..",), ("",), ("x" * 250,), (), "orders"])
def test_a_topic_that_kafka_does_not_take_is_refused_at_once(topics: Sequence[str]) -> None:
    with pytest.raises(Invalid, match=r"is not a topic of Kafka|subscribes to 0 topics|topics is one text"):
        consumer(None, GROUP, topics)


NONSENSE: list[tuple[str, str, Any, int, str]] = [
    ("GET", f"/v1/groups/{NAMESPACE}/none", None, 404, "no group is called"),
    ("GET", "/v1/groups/no/such/group", None, 404, "there is no namespace no/such"),
    ("POST", f"/v1/groups/{NAMESPACE}/none/rebalance", {}, 404, "no group is called"),
    ("PATCH", AT, {}, 412, "say what to set"),
    ("PATCH", AT, {"strategy": "LUCK"}, 412, "no strategy is called 'LUCK'"),
    ("PATCH", AT, {"mode": "anarchy"}, 400, "mode"),
    ("POST", f"{AT}/rebalance", {"by_luck": True}, 400, "by_luck"),
    ("PUT", f"{AT}/offsets", {}, 400, "to"),
    ("PUT", f"{AT}/offsets", {"to": "yesterday"}, 412, "is not a position in a topic"),
    ("PUT", f"{AT}/offsets", {"to": "latest", "topic": "none"}, 404, "there is no topic 'none'"),
    ("PUT", f"{AT}/offsets", {"to": "latest", "partitions": [1]}, 412, "partitions are of one topic"),
    ("PUT", f"{AT}/offsets", {"to": "latest", "topic": "orders", "partitions": [6]}, 412, "partitions 0 to 5"),
    ("PUT", f"{AT}/offsets", {"to": "latest", "topic": "orders", "partitions": []}, 412, "partitions 0 to 5"),
    ("PUT", f"/v1/groups/{NAMESPACE}/none/offsets", {"to": "latest"}, 404, "has no offsets"),
    ("PUT", f"/v1/groups/{NAMESPACE}/none/offsets", {"to": "-5", "topic": "orders"}, 412, "no offset in orders"),
]


async def test_nonsense_is_refused_with_a_reason(world: World, subtests: pytest.Subtests) -> None:
    for method, path, body, status, says in NONSENSE:
        with subtests.test(path=path, body=body):
            found, problem, _ = await world.ask(method, path, json=body)
            assert (found, says in problem["detail"]) == (status, True), problem
            assert world.topics.changed == {}


async def test_kafkas_own_members_keep_the_offsets(world: World) -> None:
    world.topics.in_use = True
    path = f"/v1/groups/{NAMESPACE}/others/offsets"
    status, problem, _ = await world.ask("PUT", path, json={"to": "latest", "topic": "orders"})
    assert (status, "has other members" in problem["detail"]) == (409, True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_each_strategy_can_be_chosen(world: World, strategy: str) -> None:
    body: dict[str, Any] = {"strategy": strategy}
    if strategy == "CONFIG":
        body["config"] = {"reader-0": {"orders": [0, 1]}}
    assert (await world.ask("PATCH", AT, json=body))[0] == 204
    found = (await world.ask("GET", AT))[1]
    assert (found["strategy"], found["config"]) == (strategy, body.get("config", {}))
    assert found["unread"] == (6 if strategy == "CONFIG" else 0)
    assert (await world.ask("PATCH", AT, json={"mode": "client"}))[0] == 204
    found = (await world.ask("GET", AT))[1]
    assert (found["strategy"], found["mode"], found["config"]) == (strategy, "client", body.get("config", {}))
    assert (await world.ask("PATCH", AT, json={"strategy": "STICKY"}))[0] == 204
    found = (await world.ask("GET", AT))[1]
    assert (found["strategy"], found["config"], found["unread"]) == ("STICKY", {}, 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"strategy": "MACHINE_ROOM"}, ", ".join(STRATEGIES)),
        ({"strategy": "CONFIG"}, "CONFIG needs config"),
        ({"config": {"a": {"orders": [0]}}}, "config belongs to the strategy CONFIG, and this is STICKY"),
        ({"strategy": "CONFIG", "config": {"a": {"orders": [0]}, "b": {"orders": [0]}}}, "to a and to b: name one"),
        ({"strategy": "CONFIG", "config": {"a": {"orders": [*range(20_000)]}}}, "more than 65536 bytes"),
    ],
)
async def test_bad_settings_are_refused_and_change_nothing(world: World, body: Any, says: str) -> None:
    before = (await world.ask("GET", AT))[1]
    status, found, _ = await world.ask("PATCH", AT, json=body)
    assert (status, says in found["detail"]) == (412, True), found
    assert (await world.ask("GET", AT))[1] == before
    new = AT.replace("billing", "nobody")
    assert (await world.ask("PATCH", new, json=body))[0] == 412
    assert (await world.ask("GET", new))[0] == 404


async def test_racks_are_asked_for_when_a_member_has_one(world: World) -> None:
    racks = {("orders", number): "ab"[number % 2] for number in range(6)}
    world.topics.offsets.racks_of = racks
    world.in_racks = {"a": "a", "b": "b"}
    await world.settle("a", "b")
    async with asyncio.timeout(20):
        while True:
            await world.settle("a", "b")
            found = (await world.ask("GET", f"{AT}/members"))[1]
            if [each["partitions"] for each in found] == [{"orders": [0, 2, 4]}, {"orders": [1, 3, 5]}]:
                break
    assert [(each["member"], each["rack"]) for each in found] == [("a", "a"), ("b", "b")]


async def test_the_command_reads_a_configuration(world: World, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"reader-0": {"orders": [0, 1]}}))
    shown = await world.cli("set-strategy", GROUP, "config", "--config", str(file))
    assert (shown.exit_code, "is divided by CONFIG" in shown.stdout) == (0, True), shown.output
    assert (await world.ask("GET", AT))[1]["config"] == {"reader-0": {"orders": [0, 1]}}
    file.write_text("{")
    shown = await world.cli("set-strategy", GROUP, "config", "--config", str(file))
    assert (shown.exit_code, "is not JSON" in shown.stderr) == (2, True), shown.output
    shown = await world.cli("set-strategy", GROUP, "machine_room")
    assert (shown.exit_code, all(each.lower() in shown.stderr for each in STRATEGIES)) == (2, True), shown.output


async def test_a_group_is_deleted_with_its_offsets_only_if_that_is_asked_for(world: World) -> None:
    refused = await world.cli("delete", GROUP, "--offsets", "--yes")
    assert (refused.exit_code != 0, "has 2 members" in refused.stderr) == (True, True), refused.output
    assert (await world.ask("DELETE", AT + "?offsets=perhaps"))[0] == 400
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    for name in ("a", "b"):
        await world.cluster.host(owner).leave(f"persistent://{GROUP}", name)
    kept = await world.cli("delete", GROUP, "--yes")
    assert "Kafka keeps its offsets until they expire" in kept.stdout, kept.output
    assert world.topics.committed
    deleted = await world.cli("delete", GROUP, "--offsets", "--yes")
    assert "is deleted with its offsets" in deleted.stdout, deleted.output
    assert not world.topics.committed
    gone = await world.cli("delete", GROUP, "--offsets", "--yes")
    assert "Kafka has no offsets of it" in gone.stderr, gone.output


def test_the_command_knows_all_strategies() -> None:
    assert cli_groups.STRATEGIES == STRATEGIES


async def test_the_commands_look_and_change(world: World) -> None:
    described = await world.cli("describe", GROUP)
    assert described.exit_code == 0, described.output
    assert "STICKY" in described.stdout
    assert ["a", "billing-a", "node-7"] in [line.split()[:3] for line in described.stdout.splitlines()]
    assert "orders 0" in described.stdout or "orders 1" in described.stdout
    for arguments, says in (
        (("list", "-c"), GROUP),
        (("rebalances", GROUP), "b joined"),
        (("lag", GROUP), "360 records wait"),
        (("set-strategy", GROUP, "avg"), "is divided by AVG"),
        (("set-mode", GROUP, "server"), "is divided by its coordinator"),
        (("rebalance", GROUP), "is divided again"),
        (("reset-offsets", GROUP, "--to", "earliest", "--dry-run"), "would skip 0 records and read 240 again"),
    ):
        shown = await world.cli(*arguments)
        assert (shown.exit_code, says in shown.stdout) == (0, True), shown.output
    assert world.topics.changed == {}
    refused = await world.cli("reset-offsets", GROUP, "--to", "latest", "-p", "1")
    assert (refused.exit_code, "name it with --topic" in refused.stderr) == (2, True)
