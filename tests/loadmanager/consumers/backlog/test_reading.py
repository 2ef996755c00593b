"""What is asked of a store of offsets, what becomes of its answers, and which errors a caller gets."""

from __future__ import annotations

import pytest

from loadmanager.consumers.backlog.figures import Figure
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.backlog.reading import MOST_READS, BacklogReader
from loadmanager.errors import Invalid, NotFound, Unavailable
from statechannel.errors import LogUnavailable
from statechannel.runtime.tasks import at_once
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets
from tests.loadmanager.consumers.backlog.queues import NOW_MS


@pytest.fixture
def store() -> MemoryOffsets:
    made = MemoryOffsets()
    made.topics = {"orders": [(0, 10), (8, 20), (0, None)], "other": [(0, 5)]}
    made.groups_committed = {"billing": {"orders": {0: 10, 1: 3}}, "idle": {}}
    return made


def reader(store: GroupOffsets) -> BacklogReader:
    return BacklogReader(store, at_once)


async def test_a_group_is_read_in_the_topics_in_which_it_committed(store):
    found = await reader(store).read("billing")
    assert found.topics == ["orders"]
    orders = found.of_topic("orders", NOW_MS)
    assert orders.lag == Figure(12, None)
    assert (orders.deleted, orders.queues, orders.uncommitted, orders.unknown) == (5, 3, 1, 1)
    assert (orders.in_flight, orders.available) == (None, None), "a plain group has lag only"


async def test_begins_are_asked_for_only_where_records_may_be_lost(store):
    await reader(store).read("billing")
    assert store.begins_asked == {"orders": [1]}


async def test_topics_that_are_asked_for_are_read_whether_committed_or_not(store):
    found = await reader(store).read("billing", ["other"])
    assert found.topics == ["other"]
    assert found.sum(NOW_MS).uncommitted == 1
    assert store.begins_asked == {"other": [0]}, "there reading would begin"


async def test_a_group_that_committed_nothing_has_no_topics_of_its_own(store):
    assert (await reader(store).read("idle")).topics == []


async def test_a_topic_that_was_deleted_since_the_commit_is_left_out(store):
    store.groups_committed["billing"]["gone"] = {0: 7}
    assert (await reader(store).read("billing")).topics == ["orders"]


async def test_ages_are_read_of_the_largest_lags_first(store):
    store.topics["orders"].append((0, 1_000))
    store.groups_committed["billing"]["orders"][3] = 0
    store.times = {("orders", 3): NOW_MS - 7_000, ("orders", 1): NOW_MS - 1_000}
    found = await reader(store).read("billing", ages=1)
    assert list(store.times_asked) == [("orders", 3, 0)]
    assert found.of_topic("orders", NOW_MS).lag == Figure(1_012, 7.0)
    assert found.of_topic("orders", NOW_MS).undated == 1
    found = await reader(store).read("billing", ages=MOST_READS)
    assert list(store.times_asked) == [("orders", 3, 0), ("orders", 1, 8)], "where the records still are"
    assert found.of_topic("orders", NOW_MS).undated == 0


async def test_pull_offsets_split_the_lag_of_a_group(store):
    store.topics["orders"][2:] = [(0, 7)]
    store.groups_pulled = {"billing": {"orders": {0: 10, 1: 15}}}
    store.times_at = {("orders", 1, 8): NOW_MS - 9_000, ("orders", 1, 15): NOW_MS - 2_000}
    found = (await reader(store).read("billing", ages=5)).of_topic("orders", NOW_MS)
    assert (found.lag, found.in_flight, found.available) == (Figure(19, 9.0), Figure(7, 9.0), Figure(12, 2.0))
    store.groups_pulled = {"billing": {"orders": {1: 15}}}
    found = (await reader(store).read("billing")).of_topic("orders", NOW_MS)
    assert (found.in_flight, found.available) == (None, None), "it has not said what it pulled of queue 0"


async def test_an_offset_without_a_record_is_not_old_and_one_unread_is_undated(store):
    store.times = {("orders", 1): None}
    assert (await reader(store).read("billing", ages=5)).sum(NOW_MS).lag == Figure(12, 0.0)
    store.times = {}
    assert (await reader(store).read("billing", ages=5)).sum(NOW_MS).lag == Figure(12, None)


async def test_nothing_is_read_where_nothing_lags(store):
    store.groups_committed["billing"] = {"other": {0: 5}}
    assert (await reader(store).read("billing", ages=5)).sum(NOW_MS).lag == Figure(0, 0.0)
    assert store.times_asked == ()
    assert store.begins_asked == {}


async def test_all_groups_are_named(store):
    assert await reader(store).groups() == ["billing", "idle"]


# --- errors
async def test_an_unknown_group_or_topic_is_not_found(store):
    with pytest.raises(NotFound, match="no consumer group 'nobody'"):
        await reader(store).read("nobody")
    with pytest.raises(NotFound, match="no topic 'a', 'b'"):
        await reader(store).read("billing", ["b", "orders", "a"])


@pytest.mark.parametrize(("group", "ages"), [("", 0), ("billing", -1), ("billing", MOST_READS + 1)])
async def test_a_request_without_sense_is_invalid(store, group: str, ages: int):
    with pytest.raises(Invalid, match="consumer group"):
        await reader(store).read(group, ages=ages)


async def test_a_store_that_does_not_answer_is_unavailable(store):
    store.failure = LogUnavailable("Kafka at x is not available")
    with pytest.raises(Unavailable, match="Kafka at x"):
        await reader(store).read("billing")
