"""Lookups over HTTP: Pulsar's, by the fast path and beside it, and many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from loadmanager.embedding.handover import Handover
from loadmanager_api.http import lookups as http_lookups
from loadmanager_api.http.guard import Names
from loadmanager_api.http.lookups import LookupPath
from statechannel.law.bundle import Bundle, Key
from statechannel.law.verdict import Change
from tests.api.conftest import WAIT_S, Cluster, Refused
from tests.api.raw import status_of

PATH = "/lookup/v2/topic/persistent/t/n/"


async def test_a_lookup_names_the_owner_as_pulsar_does(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    owner = cluster.owner(bundle)
    for at in (0, 1, 0, 1):
        status, body, headers = await cluster.ask("GET", PATH + "a", at=at)
        assert status == 200
        assert body == {
            "brokerUrl": f"pulsar://{owner}",
            "httpUrl": f"http://{owner}",
            "nativeUrl": f"pulsar://{owner}",
            "brokerUrlSsl": "",
        }
        assert headers["X-Bundle"] == str(bundle)
        assert headers["X-Broker"] == owner
        assert headers["Fencing-Token"] == str(cluster.of(owner).host.held[bundle])


async def test_the_slow_path_gives_the_same_answer(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    fast = await cluster.ask("GET", PATH + "a")
    slow = await cluster.ask("GET", PATH + "bundle")  # a name that looks like the suffix is left to the slow one
    assert fast[0] == slow[0] == 200
    assert fast[1] == slow[1]
    assert {**fast[2], "Date": ""} == {**slow[2], "Date": ""}


async def test_an_unowned_bundle_is_assigned_by_the_asked_broker_with_one_record(cluster: Cluster) -> None:
    await cluster.start(2)
    bundle = (await cluster.create("t/n", 1))[0]
    answers = await asyncio.gather(*(cluster.ask("GET", f"{PATH}{i}", at=1) for i in range(50)))
    await cluster.agree()  # who was not asked may have read less
    assert {(status, body["brokerUrl"]) for status, body, _ in answers} == {(200, f"pulsar://{cluster.owner(bundle)}")}
    entry = cluster.brokers[0].node.channel.table.get(bundle)
    assert entry is not None
    assert entry.revision == entry.token + 1, "own, then return: nothing between"


async def test_a_move_is_followed_at_once(cluster: Cluster) -> None:
    """The bytes of an answer are kept; what they say is not."""
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    for _ in range(5):
        await cluster.agree()
        to = cluster.other(cluster.owner(bundle))
        at = cluster.brokers.index(to)
        await to.node.current.operations.transfer(bundle, to.name)
        status, body, headers = await cluster.ask("GET", PATH + "a", at=at)
        assert (status, body["brokerUrl"]) == (200, f"pulsar://{to.name}")
        assert headers["Fencing-Token"] == str(to.host.held[bundle])


async def test_changed_urls_of_the_owner_are_followed(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    node = cluster.brokers[0].node
    node.registration = msgspec.structs.replace(node.registration, urls={"http": "http://elsewhere:1"})
    await node.world.coordination.register(node.current.me, node.registration.encode())
    await cluster.until(lambda: "pulsar" not in node.membership.peers[node.settings.advertised].registration.urls)
    body = (await cluster.ask("GET", PATH + "a"))[1]
    assert body["brokerUrl"] == body["httpUrl"] == "http://elsewhere:1"


async def test_a_dead_owner_is_not_named(cluster: Cluster) -> None:
    await cluster.start(2, lookup_timeout_s=0.2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    dead = cluster.of(cluster.owner(bundle))
    asked = cluster.brokers.index(cluster.other(dead.name))
    assert (await cluster.ask("GET", PATH + "a", at=asked))[0] == 200
    cluster.brokers[asked].node.membership.suspected[dead.node.current.me] = "refuses connections"
    status, body, headers = await cluster.ask("GET", PATH + "a", at=asked)
    assert status == 503
    assert "no owner within 0.2 s" in body["reason"]
    assert int(headers["Retry-After"]) >= 1


async def test_a_bundle_on_its_way_is_deferred_until_it_has_arrived(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    host = cluster.brokers[0].host
    host.gate.clear()
    asking = asyncio.create_task(cluster.ask("GET", PATH + "a"))
    counts = cluster.brokers[0].node.current.lookup.counts
    await cluster.until(lambda: counts.waiting == 1)
    assert not asking.done()
    host.gate.set()
    assert (await asking)[0] == 200
    assert (counts.waiting, counts.deferred, counts.answered) == (0, 1, 1)


async def test_lookup_that_waits_too_long_names_a_retry_time_and_leaves_nothing(cluster: Cluster) -> None:
    await cluster.start(lookup_timeout_s=0.1)
    await cluster.create("t/n")
    cluster.brokers[0].host.gate.clear()
    entry = cluster.brokers[0].node.channel.table.locate(Key.parse("t/n/a"))
    assert entry is not None
    assert (await cluster.ask("GET", PATH + "a"))[0] == 503
    await cluster.until(lambda: cluster.owner(entry.bundle) is not None)  # it is on its way by now
    status, body, headers = await cluster.ask("GET", PATH + "a")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "assigning" in body["detail"]
    assert not cluster.brokers[0].node.channel.replica._watchers


async def test_what_the_fast_path_keeps_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start()
    await cluster.create("t/n", 16)
    monkeypatch.setattr(http_lookups, "KEPT", 4)
    node = cluster.brokers[0].node
    handover = Handover(node)
    handover.open()
    path = LookupPath(handover, Names(node.settings), None)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for i in range(50):
        raw = f"{PATH}{i}"
        scope = {"type": "http", "method": "GET", "path": raw, "raw_path": raw.encode(), "headers": ()}
        await path(scope, None, send)
        wanted = cluster.brokers[0].node.channel.table.locate(Key.parse(f"t/n/{i}"))
        assert wanted is not None
        assert (b"x-bundle", str(wanted.bundle).encode()) in sent[-2]["headers"]
        assert len(path._topics) <= 4
        assert len(path._answers) <= 4
    monkeypatch.setattr(http_lookups, "KEPT", 1_000)
    monkeypatch.setattr(http_lookups, "KEPT_BYTES", 500)
    for i in range(50):
        path.at_once(f"{PATH}{i}".encode())
        assert 0 < sum(map(len, path._topics)) <= 500
    path.at_once(f"{PATH}%F0%9F%98%80".encode())
    assert not any(b"%" in kept for kept in path._topics)


async def test_a_wait_that_is_no_number_of_seconds_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    problem = await refused(400, "POST", "/v1/lookup", json={"topics": ["t/n/a"], "timeout_ms": 10**400})
    assert "timeout_ms" in problem["detail"]


async def test_the_bundle_range_is_bare_text(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = cluster.brokers[0].node.channel.table.locate(Key.parse("t/n/a"))
    assert bundle is not None
    status, body, headers = await cluster.ask("GET", PATH + "a/bundle")
    assert (status, body) == (200, bundle.bundle.range)
    assert headers["Content-Type"].startswith("text/plain")
    assert bundle.holder is None, "asking for the range assigns nothing"


async def test_slashes_that_leave_open_what_is_asked_for_are_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n", 16)
    assert "as %2F" in (await refused(412, "GET", PATH + "a/b/bundle"))["detail"]
    table = cluster.brokers[0].node.channel.table
    wanted = table.locate(Key.parse("t/n/a/b"))
    assert wanted is not None
    assert (await cluster.ask("GET", PATH + "a%2Fb/bundle"))[1] == wanted.bundle.range


async def test_a_name_that_is_not_utf_8_is_refused(cluster: Cluster, subtests: pytest.Subtests) -> None:
    """All such names would else be the same one."""
    await cluster.start()
    await cluster.create("t/n", 16)
    for path in (
        PATH + "%ff",
        PATH + "a%c3",
        PATH + "%ed%a0%80",
        "/admin/v2/namespaces/t%fe/n",
        "/v1/bundles?owner=%ff",
    ):
        with subtests.test(path=path):
            assert await status_of(cluster, path) == 400
    for path in (PATH + "%c3%a4", PATH + "%EF%BF%BD", PATH + "%25ff"):
        with subtests.test(path=path):
            assert await status_of(cluster, path) == 200


async def test_a_topic_whose_own_name_ends_in_bundle_is_looked_up(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    status, _, headers = await cluster.ask("GET", "/lookup/v2/topic/persistent/t/n/a%2Fbundle")
    assert status == 200
    wanted = cluster.brokers[0].node.channel.table.locate(Key.parse("t/n/a/bundle"))
    assert wanted is not None
    assert headers["X-Bundle"] == str(wanted.bundle)


async def test_a_key_may_have_a_line_break(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = (await cluster.ask("GET", PATH + "a%0Ab/bundle"))[1]
    for _ in range(2):
        status, _, headers = await cluster.ask("GET", PATH + "a%0Ab")
        assert (status, headers["X-Bundle"]) == (200, f"t/n/{bundle}")
    assert (await cluster.ask("PUT", "/admin/v2/persistent/t/n/a%0Ab/unload"))[0] == 204
    assert cluster.owner(Bundle.of("t/n", bundle)) is None


async def test_a_topic_is_placed_by_its_decoded_name_and_domain(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 256)
    table = cluster.brokers[0].node.channel.table
    for domain in ("persistent", "non-persistent"):
        status, _, headers = await cluster.ask("GET", f"/lookup/v2/topic/{domain}/t/n/%C3%A4%20b%3Fc")
        assert status == 200
        wanted = table.locate(Key.parse(f"{domain}://t/n/ä b?c"))
        assert wanted is not None
        assert headers["X-Bundle"] == str(wanted.bundle)


@pytest.mark.parametrize("topic", ["pulsar/system/loadbalancer-service-unit-state", "loadmanager/system/bundle-state"])
async def test_the_channels_own_topics_answer_the_owner_of_the_partition(
    cluster: Cluster, refused: Refused, topic: str
) -> None:
    await cluster.start(2)
    coordination = cluster.brokers[0].node.world.coordination
    await cluster.until(lambda: all(f"channel-owner-{p}" in coordination.leases for p in range(4)))
    for suffix, partition in {"": 0, "-partition-0": 0, "-partition-3": 3}.items():
        owners = {coordination.leases[f"channel-owner-{partition}"].name}
        status, body, _ = await cluster.ask("GET", f"/lookup/v2/topic/persistent/{topic}{suffix}")
        owners.add(coordination.leases[f"channel-owner-{partition}"].name)  # they are shared out after a start
        assert status == 200
        assert body["brokerUrl"] in {f"pulsar://{name}" for name in owners}
    assert "0 to 3" in (await refused(404, "GET", f"/lookup/v2/topic/persistent/{topic}-partition-4"))["detail"]


async def test_lookups_of_what_there_is_not_are_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    assert "t/none" in (await refused(404, "GET", "/lookup/v2/topic/persistent/t/none/a"))["detail"]
    assert "t/none" in (await refused(404, "GET", "/lookup/v2/topic/persistent/t/none/a/bundle"))["detail"]
    await refused(400, "GET", "/lookup/v2/topic/transient/t/n/a")
    await refused(412, "GET", "/lookup/v2/topic/persistent/t/n%20/a")
    await refused(412, "GET", "/lookup/v2/topic/persistent/t/n/")
    await refused(404, "GET", "/lookup/v2/topic/persistent")
    assert "GET" in (await refused(405, "POST", PATH + "a"))["detail"]


async def test_many_topics_are_answered_in_order_each_for_itself(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 16)
    topics = [f"t/n/topic-{i}" for i in range(100)] + ["t/none/a", "no topic", "persistent://t/n/topic-0"]
    status, body, _ = await cluster.ask("POST", "/v1/lookup", json={"topics": topics})
    assert status == 200
    answers = body["answers"]
    assert [answer["topic"] for answer in answers] == topics
    for answer in answers[:100]:
        entry = cluster.brokers[0].node.channel.table.locate(Key.parse(answer["topic"]))
        assert entry is not None
        assert entry.holder is not None
        assert answer["error"] is None
        assert answer["bundle"] == str(entry.bundle)
        assert answer["broker"] == entry.holder.name
        assert answer["urls"]["http"] == f"http://{entry.holder.name}"
        assert answer["admin_url"] == cluster.of(answer["broker"]).url
    assert answers[100]["error"]["status"] == 404
    assert answers[101]["error"]["status"] == 412
    assert {**answers[102], "topic": ""} == {**answers[0], "topic": ""}


NO_LISTS: list[object] = [
    {"topics": []},
    {"topics": ["t/n/a"] * 1001},
    {"topics": "t/n/a"},
    {},
    [],
    {"topics": ["x" * 5000]},
]


async def test_a_list_of_topics_that_is_none_is_refused(
    cluster: Cluster, refused: Refused, subtests: pytest.Subtests
) -> None:
    await cluster.start()
    for body in NO_LISTS:
        with subtests.test(body=str(body)[:60]):
            assert "topics" in str(await refused(400, "POST", "/v1/lookup", json=body)) or body == []


async def test_lookups_answer_503_before_the_channel_has_been_read(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    node.ready.clear()
    try:
        status, body, headers = await cluster.ask("GET", PATH + "a")
        assert status == 503
        assert "Retry-After" in headers
        assert "try again" in body["detail"]
    finally:
        node.ready.set()
    assert (await cluster.ask("GET", PATH + "a"))[0] == 200


@pytest.mark.slow
async def test_every_answer_of_the_fast_path_is_what_the_table_says(cluster: Cluster) -> None:
    """Lookups while everything moves: each names a broker that held the bundle since the lookup was asked."""
    await cluster.start(2)
    bundles = await cluster.create("t/n", 4)
    held: dict[Bundle, list[str]] = {bundle: [] for bundle in bundles}
    node = cluster.brokers[0].node
    topics = [f"topic-{i}" for i in range(12)]
    for topic in topics:
        bundle = await cluster.assign(f"t/n/{topic}")
        held[bundle].append(cluster.owner(bundle) or "")

    def note(change: Change) -> None:
        for t in change.transitions:
            if t.after and t.after.holder:
                held[t.bundle].append(t.after.holder.name)

    node.channel.listen(note)

    async def move() -> None:
        for _ in range(5):
            for bundle in bundles:
                to = cluster.other(cluster.owner(bundle)).name
                await node.current.operations.transfer(bundle, to)

    async def look() -> None:
        while not moving.done():
            for topic in topics:
                known = len(held[bundle := node.channel.table.locate(Key.parse(f"t/n/{topic}")).bundle])  # type: ignore[union-attr]
                status, body, headers = await cluster.ask("GET", PATH + topic)
                assert status == 200
                assert headers["X-Bundle"] == str(bundle)
                assert body["brokerUrl"].removeprefix("pulsar://") in held[bundle][max(0, known - 1) :]

    moving = asyncio.create_task(move())
    await asyncio.wait_for(look(), WAIT_S)
    await moving


async def test_lookups_that_wait_at_a_broker_that_leaves_are_sent_elsewhere(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    for broker in cluster.brokers:
        broker.host.gate.clear()
    asking = asyncio.create_task(cluster.ask("GET", PATH + "a"))
    lookup = cluster.brokers[0].node.current.lookup
    await cluster.until(lambda: lookup.counts.waiting == 1)
    cluster.brokers[0].node.stop(drain_timeout_s=0.01)
    status, body, headers = await asking
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "leaving" in body["detail"]
