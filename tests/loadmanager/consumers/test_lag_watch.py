"""What partitions weigh by what is produced and what waits, and when a group is uneven enough to be divided anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from loadmanager.consumers.backlog.figures import GroupBacklog, Offsets
from loadmanager.consumers.coordinator.lag_watch import LagFollower, LagWatch, Reading, is_uneven
from loadmanager.consumers.coordinator.records import Partition, Subscription
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets
from tests.loadmanager.consumers.running import in_background


def reading(at_s: float, queues: Mapping[int, tuple[int | None, int | None]]) -> Reading:
    """By partition of one topic: what is consumed, and the end."""
    backlog = GroupBacklog("billing")
    for number, (consumer, end) in queues.items():
        backlog.put("orders", number, Offsets(end, consumer))
    return Reading.of(at_s, backlog)


def test_a_partition_weighs_what_is_produced_and_a_sixtieth_of_what_waits() -> None:
    watch = LagWatch()
    watch.add("billing", reading(100, {0: (100, 100), 1: (0, 600), 2: (5, 5)}))
    assert watch.weights("billing") is None, "a rate needs two readings"
    watch.add("billing", reading(110, {0: (150, 150), 1: (0, 600), 2: (5, 5)}))
    assert watch.weights("billing") == {("orders", 0): 5.0, ("orders", 1): 10.0, ("orders", 2): 0.0}
    assert watch.consumed_per_s("billing") == 5.0


def test_what_cannot_be_compared_gives_no_rate() -> None:
    watch = LagWatch()
    assert (watch.weights("billing"), watch.consumed_per_s("billing")) == (None, 0.0)
    watch.add("billing", reading(100, {0: (90, 100)}))
    watch.add("billing", reading(110, {0: (5, 10), 1: (0, 60), 2: (0, None)}))
    assert watch.weights("billing") == {("orders", 0): pytest.approx(5 / 60), ("orders", 1): 1.0}
    assert watch.consumed_per_s("billing") == 0.0
    watch.add("billing", reading(110, {0: (5, 10)}))
    assert (watch.weights("billing"), watch.consumed_per_s("billing")) == (None, 0.0)


def test_groups_that_went_away_are_forgotten() -> None:
    watch = LagWatch()
    watch.add("billing", reading(100, {0: (90, 100)}))
    watch.add("other", reading(100, {0: (90, 100)}))
    watch.keep({"other"})
    assert len(watch.backlogs()) == 1
    watch.add("billing", reading(110, {0: (90, 200)}))
    assert watch.weights("billing") is None


MEMBERS = {"a": Subscription(("orders",)), "b": Subscription(("orders",))}


@pytest.mark.parametrize(
    ("weights", "uneven"),
    [
        ((1, 1, 1, 1), False),
        ((1.4, 1, 1, 1), False),
        ((2, 2, 1, 1), True),
        ((0, 0, 0, 0), False),
        ((9, 0, 1, 1), False),
        ((5, 5, 0, 0), True),
    ],
    ids=["even", "a little", "much", "idle", "one heavy partition", "all at one"],
)
def test_a_group_is_uneven_if_a_member_does_much_more_and_could_do_less(
    weights: tuple[float, ...], uneven: bool
) -> None:
    holders = {("orders", number): "a" if number < 2 else "b" for number in range(4)}
    assert is_uneven({("orders", number): weight for number, weight in enumerate(weights)}, holders, MEMBERS) == uneven


def test_a_member_with_more_capacity_may_do_more() -> None:
    members = {"a": Subscription(("orders",), capacity=2.0), "b": Subscription(("orders",))}
    holders = {("orders", number): "a" if number < 4 else "b" for number in range(6)}
    assert not is_uneven(dict.fromkeys(holders, 1.0), holders, members)
    assert is_uneven({}, {}, {}) is False


async def test_whatever_kafkas_client_says_the_other_groups_go_on() -> None:
    """A server that has just started says that it loads its groups, in an error of the client's own kind."""
    offsets = MemoryOffsets()
    offsets.topics = {"orders": [(0, 10)]}
    offsets.groups_committed = {"t/n/good": {"orders": {0: 4}}}
    committed = offsets.committed

    async def loading(group: str) -> Any:
        if group == "t/n/bad":
            raise RuntimeError("Coordinator load in progress")
        return await committed(group)

    offsets.committed = loading
    follower = LagFollower(offsets, time.monotonic, 0.01)

    async def weigh(group: str, weights: Mapping[Partition, float]) -> None:
        assert weights

    async with in_background(follower.run(lambda: ["persistent://t/n/bad", "persistent://t/n/good"], weigh)):
        async with asyncio.timeout(10):
            while not follower.backlogs:
                await asyncio.sleep(0.01)
