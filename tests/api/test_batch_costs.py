"""Batch lookups are admitted by what they cost: the bundles for which they wait, and the bytes of their bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from loadmanager.errors import Unavailable
from loadmanager.settings import Settings
from loadmanager_api.http import limits
from loadmanager_api.http import lookups as http_lookups
from loadmanager_api.http.counts import HttpCounts
from loadmanager_api.http.lookups import AWAITED_AT_MOST, FEW, FEW_SHARE, MAX_TOPICS, Batches
from tests.api.conftest import WAIT_S, Cluster
from tests.api.raw import connected

BATCH = "/v1/lookup"
TOPICS = [f"t/n/topic-{number}" for number in range(200)]
POST = b"POST /v1/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"


def test_a_batch_has_room_alone_and_while_all_wait_for_few_bundles() -> None:
    batches, for_large = Batches(), AWAITED_AT_MOST - AWAITED_AT_MOST // FEW_SHARE
    for awaited, topics, has_room in [
        (0, AWAITED_AT_MOST + 1, True),
        (for_large - MAX_TOPICS, MAX_TOPICS, True),
        (for_large - MAX_TOPICS + 1, MAX_TOPICS, False),
        (for_large, FEW, True),
        (for_large, FEW + 1, False),
        (AWAITED_AT_MOST - 1, 1, True),
        (AWAITED_AT_MOST, 1, False),
    ]:
        batches.awaited = awaited
        assert (batches.refusal(topics) == "") is has_room, (awaited, topics)
    batches.awaited = for_large - MAX_TOPICS + 1
    assert [batches.refusal_by_size(size) == "" for size in (60, 8 * MAX_TOPICS, None)] == [True, False, False]


async def test_a_batch_that_was_let_in_by_its_size_is_refused_before_it_is_read_if_there_is_no_room_any_more() -> None:
    batches, untouched = Batches(), cast("Any", None)
    batches.awaited = AWAITED_AT_MOST
    with pytest.raises(Unavailable, match=f"wait for {AWAITED_AT_MOST} bundles"):
        await batches.look_up_all(untouched, untouched, ["t/n/a"], 1.0, untouched)
    assert batches.awaited == AWAITED_AT_MOST


async def test_batches_beyond_the_bound_are_told_to_come_back_and_the_rest_is_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_lookups, "AWAITED_AT_MOST", len(TOPICS))
    await cluster.start()
    await cluster.create("t/n", 16)
    broker = cluster.brokers[0]
    broker.host.gate.clear()
    first = asyncio.create_task(cluster.ask("POST", BATCH, json={"topics": TOPICS}))
    counts = broker.node.current.lookup.counts
    await cluster.until(lambda: counts.waiting == 16)
    more = await asyncio.gather(*(cluster.ask("POST", BATCH, json={"topics": TOPICS}) for _ in range(8)))
    assert [(status, headers["Retry-After"]) for status, _, headers in more] == [(503, "1")] * 8
    assert "batch lookups wait for 16 bundles" in more[0][1]["detail"]
    assert (await cluster.ask("GET", "/admin/v2/brokers"))[0] == 200
    assert counts.deferred == 16, "a bundle costs once, however many of its topics are asked for; refused ones nothing"
    broker.host.gate.set()
    status, body, _ = await first
    assert status == 200
    assert [(answer["topic"], answer["broker"]) for answer in body["answers"]] == [(t, broker.name) for t in TOPICS]
    assert (await cluster.ask("POST", BATCH, json={"topics": TOPICS}))[0] == 200, "what was taken is given back"
    assert counts.answered + counts.at_once == 2 * len(TOPICS)


async def test_a_bundle_that_is_not_owned_in_time_is_an_error_of_each_of_its_topics(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 1)
    cluster.brokers[0].host.gate.clear()
    body = {"topics": ["t/n/a", "t/none/a", "t/n/b", "t/none/b"], "timeout_ms": 50}
    status, found, _ = await cluster.ask("POST", BATCH, json=body)
    assert status == 200
    assert [answer["error"]["status"] for answer in found["answers"]] == [503, 404, 503, 404]


async def test_the_bodies_of_all_requests_together_are_bounded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODIES_AT_MOST_BYTES", 1_000)
    await cluster.start()
    await cluster.create("t/n", 1)
    slow = await connected(cluster)
    await slow.send(POST + b" " * 800)
    large = {"topics": ["t/n/" + "a" * 300]}
    async with asyncio.timeout(WAIT_S):  # the first bytes are on their way
        while (refused := await cluster.ask("POST", BATCH, json=large))[0] == 200:
            await asyncio.sleep(0.01)
    assert (refused[0], refused[2]["Retry-After"]) == (503, "1")
    assert (await cluster.ask("GET", "/admin/v2/brokers"))[0] == 200
    await slow.send(json.dumps({"topics": ["t/n/a"]}).encode().rjust(100))
    assert (await slow.head()).startswith(b"HTTP/1.1 200 ")
    slow.close()
    assert (await cluster.ask("POST", BATCH, json=large))[0] == 200


async def test_few_requests_begin_in_a_turn_and_vital_ones_wait_for_none() -> None:
    begun: dict[str, list[int]] = {"/v1/brokers": [], "/metrics": []}
    turn = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun[scope["path"]].append(turn)

    async def receive() -> Any:
        raise AssertionError("a request without a body has nothing to read")

    async def send(message: Any) -> None:
        raise AssertionError(message)

    limited = limits.Limits(app, Settings(), HttpCounts())
    scopes = [{"type": "http", "path": path, "headers": []} for path in (*20 * ["/v1/brokers"], "/metrics")]
    many = [asyncio.create_task(limited(scope, receive, send)) for scope in scopes]
    while not all(each.done() for each in many):
        turn += 1
        await asyncio.sleep(0)
    assert begun["/metrics"] == [1]
    assert max(begun["/v1/brokers"].count(each) for each in range(turn + 1)) == limits.BEGUN_A_TURN
    assert len(begun["/v1/brokers"]) == 20
