"""`/v1/backlog` and `loadmanager groups lag`: figures, forecast, pages of one reading, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadmanager_api.cli.main import main
from loadmanager_api.groups import backlogs
from statechannel.errors import LogUnavailable
from tests.api.conftest import Cluster, Refused
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets

GROUP = "?group=billing"


@pytest.fixture
async def offsets(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> MemoryOffsets:
    """A broker that reads these offsets. The group has two topics, and consumed all of `carts`."""
    found = MemoryOffsets()
    found.topics = {"orders": [(0, 100), (0, 50), (20, 30)], "carts": [(0, 7)]}
    found.groups_committed = {"billing": {"orders": {0: 40, 1: 50, 2: 5}, "carts": {0: 7}}, "other": {}}
    monkeypatch.setattr(backlogs, "open_group_offsets", lambda _: found)
    monkeypatch.setattr(backlogs, "FRESH_S", 60.0)
    await cluster.start(balancing=False)
    return found


def cli(cluster: Cluster) -> Callable[..., Any]:
    async def run(*arguments: str) -> Result:
        url = cluster.brokers[0].url
        return await asyncio.to_thread(CliRunner().invoke, main, ["--admin-url", url, "groups", *arguments])

    return run


async def test_the_sum_over_a_group_has_one_number_for_scalers(cluster: Cluster, offsets: MemoryOffsets) -> None:
    status, found, _ = await cluster.ask("GET", f"/v1/backlog{GROUP}")
    assert (status, found["messages"], found["lag"]) == (200, 70, {"messages": 70, "latency_s": None})
    assert (found["queues"], found["deleted"], found["undated"]) == (4, 15, 2)
    assert (found["in_flight"], found["available"]) == (None, None), "Kafka knows no pull offsets"
    assert found["forecast"]["outlook"] == "unknown"


async def test_the_second_reading_says_when_it_will_be_gone(
    cluster: Cluster, offsets: MemoryOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.ask("GET", f"/v1/backlog{GROUP}")
    monkeypatch.setattr(backlogs, "FRESH_S", 0.0)
    offsets.groups_committed["billing"]["orders"][0] = 90
    await cluster.ask("GET", f"/v1/backlog{GROUP}&topic=orders")  # of other queues: no rate comes from it
    assert (await cluster.ask("GET", f"/v1/backlog{GROUP}"))[1]["messages"] == 70, "it was fresh for 60 s"
    await cluster.ask("GET", f"/v1/backlog{GROUP}&topic=orders")
    offsets.groups_committed["billing"]["orders"][0] = 95
    found = (await cluster.ask("GET", f"/v1/backlog{GROUP}&topic=orders"))[1]
    assert (found["messages"], found["forecast"]["outlook"]) == (15, "drains")
    assert found["forecast"]["drain_s"] > 0
    assert found["forecast"]["produced_per_s"] == 0


async def test_rows_by_topic_and_by_partition(cluster: Cluster, offsets: MemoryOffsets) -> None:
    topics = (await cluster.ask("GET", f"/v1/backlog/topics{GROUP}"))[1]
    assert [(each["topic"], each["queues"], each["lag"]["messages"]) for each in topics] == [
        ("carts", 1, 0),
        ("orders", 3, 70),
    ]
    rows = (await cluster.ask("GET", f"/v1/backlog/partitions{GROUP}&topic=orders"))[1]
    names = ("partition", "begin", "consumer", "end", "deleted")
    assert [tuple(each[name] for name in names) for each in rows] == [
        (0, 0, 40, 100, 0),
        (1, 0, 50, 50, 0),
        (2, 20, 5, 30, 15),
    ]


async def test_what_a_group_has_pulled_is_shown_beside_its_lag(cluster: Cluster, offsets: MemoryOffsets) -> None:
    offsets.groups_pulled = {"billing": {"orders": {0: 70, 1: 50, 2: 5}}}
    rows = (await cluster.ask("GET", f"/v1/backlog/partitions{GROUP}&topic=orders"))[1]
    counts = [(row["pull"], row["in_flight"]["messages"], row["available"]["messages"]) for row in rows]
    assert counts == [(70, 30, 30), (50, 0, 0), (5, 0, 10)]
    printed = (await cli(cluster)("lag", "billing", "--topic", "orders", "--partitions")).stdout.splitlines()
    assert printed[0].split() == [
        *("topic", "partition", "consumer", "end", "lag", "in", "flight", "available", "oldest", "deleted")
    ]
    assert printed[2].split() == ["orders", "0", "40", "100", "60", "30", "30", "-", "0"]


async def test_pages_are_of_one_reading(cluster: Cluster, offsets: MemoryOffsets) -> None:
    path, found = f"/v1/backlog/partitions{GROUP}&limit=2", list[tuple[str, int, int]]()
    while path:
        _, rows, headers = await cluster.ask("GET", path)
        found += [(each["topic"], each["partition"], each["lag"]["messages"]) for each in rows]
        path = headers.get("Link", "").removeprefix("<").removesuffix('>; rel="next"')
        offsets.topics["orders"][0] = (0, 999)
    assert found == [("carts", 0, 0), ("orders", 0, 60), ("orders", 1, 0), ("orders", 2, 10)]


async def test_many_who_ask_at_once_cause_one_reading(cluster: Cluster, offsets: MemoryOffsets) -> None:
    found = await asyncio.gather(*(cluster.ask("GET", f"/v1/backlog{GROUP}") for _ in range(20)))
    assert {each[1]["at_ms"] for each in found} == {found[0][1]["at_ms"]}


REFUSED: list[tuple[str, int, str]] = [
    ("?group=none", 404, "there is no consumer group 'none'"),
    (f"{GROUP}&topic=none", 404, "there is no topic 'none'"),
    (f"{GROUP}&ages=1001", 400, "query.ages"),
    ("", 400, "query.group"),
]


async def test_what_is_refused(
    cluster: Cluster, offsets: MemoryOffsets, refused: Refused, subtests: pytest.Subtests
) -> None:
    for query, status, says in REFUSED:
        with subtests.test(query=query):
            for part in ("", "/topics", "/partitions"):
                assert says in (await refused(status, "GET", f"/v1/backlog{part}{query}"))["detail"]


async def test_lists_refuse_what_is_no_cursor(cluster: Cluster, offsets: MemoryOffsets, refused: Refused) -> None:
    for list_, cursor in (("partitions", "x"), ("topics", "")):
        problem = await refused(400, "GET", f"/v1/backlog/{list_}{GROUP}&cursor={cursor}")
        assert "cursor of this list" in problem["detail"], list_


async def test_a_failure_is_told_once_and_forgotten(cluster: Cluster, offsets: MemoryOffsets, refused: Refused) -> None:
    offsets.failure = LogUnavailable("Kafka does not answer")
    assert (await refused(503, "GET", f"/v1/backlog{GROUP}"))["detail"] == "Kafka does not answer"
    offsets.failure = None
    assert (await cluster.ask("GET", f"/v1/backlog{GROUP}"))[0] == 200


async def test_without_a_kafka_there_are_no_groups(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(balancing=False)
    for path in (f"/v1/backlog{GROUP}", "/v1/groups"):
        assert "is not on Kafka" in (await refused(412, "GET", path))["detail"]


async def test_groups_of_kafka_are_listed(cluster: Cluster, offsets: MemoryOffsets) -> None:
    both = [{"group": "billing", "coordinated": False}, {"group": "other", "coordinated": False}]
    assert (await cluster.ask("GET", "/v1/groups"))[1] == both
    assert (await cluster.ask("GET", "/v1/groups?coordinated=true"))[1] == []
    page, headers = (await cluster.ask("GET", "/v1/groups?limit=1"))[1:]
    assert (page, 'rel="next"' in headers["Link"]) == (both[:1], True)


async def test_the_command_shows_topics_partitions_and_the_forecast(cluster: Cluster, offsets: MemoryOffsets) -> None:
    run = cli(cluster)
    shown = await run("lag", "billing")
    assert shown.exit_code == 0, shown.output
    assert "orders" in shown.stdout
    assert "70 records wait; forecast unknown" in shown.stdout
    rows = json.loads((await run("lag", "billing", "--partitions", "-o", "json")).stdout)
    assert [each["lag"]["messages"] for each in rows["partitions"]] == [0, 60, 0, 10]
    assert "billing" in (await run("list")).stdout
    missing = await run("lag", "none")
    assert (missing.exit_code, "there is no consumer group" in missing.stderr) == (1, True)


# --- filters


async def test_what_passes_a_filter_is_counted(cluster: Cluster, offsets: MemoryOffsets) -> None:
    """The store's records have their offset as the value: 40 to 99 of orders-0, and 20 to 29 of orders-2."""
    asked = f"/v1/backlog/filtered{GROUP}&topic=orders"
    status, found, _ = await cluster.ask("GET", f"{asked}&contains=9")
    passing = sum("9" in str(each) for each in (*range(40, 100), *range(20, 30)))
    assert (status, found["messages"], found["scanned"], found["exact"]) == (200, passing, 70, True)
    status, found, _ = await cluster.ask("GET", f"{asked}&contains=9&scanned=20")
    assert (status, found["scanned"], found["exact"]) == (200, 20, False)
    assert found["low"] <= passing <= found["high"]
    assert (await cluster.ask("GET", f"{asked}&contains=9&header=kind%3Drefund"))[1]["messages"] == 0
    shown = await cli(cluster)("filtered-lag", "billing", "-t", "orders", "--contains", "9")
    assert (shown.exit_code, f"{passing} records pass: {passing} of 70" in shown.stdout) == (0, True), shown.output


@pytest.mark.parametrize(
    ("query", "refused", "says"),
    [
        ("topic=orders", 412, "say which records pass: key, header"),
        ("topic=orders&header=kind", 412, "header is 'kind': give NAME=VALUE"),
        ("topic=orders&key=a&scanned=0", 400, "greater than or equal to 1"),
        ("topic=others&key=a", 404, "others"),
        ("key=a", 400, "topic"),
    ],
)
async def test_filters_without_sense_are_refused(
    cluster: Cluster, offsets: MemoryOffsets, query: str, refused: int, says: str
) -> None:
    status, found, _ = await cluster.ask("GET", f"/v1/backlog/filtered{GROUP}&{query}")
    assert (status, says in json.dumps(found)) == (refused, True), found
    assert not offsets.places_looked_at


async def test_one_backlog_is_looked_at_at_a_time(
    cluster: Cluster, offsets: MemoryOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    look = offsets.look

    async def slow(places: Any, shown: Any) -> bool:
        begun.set()
        await go_on.wait()
        return await look(places, shown)

    monkeypatch.setattr(offsets, "look", slow)
    asked = f"/v1/backlog/filtered{GROUP}&topic=orders&key=a"
    first = asyncio.create_task(cluster.ask("GET", asked))
    await begun.wait()
    status, found, headers = await cluster.ask("GET", asked)
    assert (status, "another backlog" in found["detail"], headers["Retry-After"]) == (503, True, "1"), found
    go_on.set()
    assert (await first)[0] == 200
    assert (await cluster.ask("GET", asked))[0] == 200
