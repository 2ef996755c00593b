"""The weighted sticky strategy: the optimum where it can be computed, and within its tolerance elsewhere."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given as property_test
from hypothesis import settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from loadmanager.consumers.allocation import measures
from loadmanager.consumers.allocation.rocketmq import InvalidArgument, MessageQueue
from loadmanager.consumers.allocation.sticky import Sticky
from loadmanager.consumers.allocation.weighted import Consumer, Weighing, Weighted, allocate_weighted
from tests.loadmanager.consumers.reading import cases

Allocated = Mapping[str, Sequence[MessageQueue]]


def partitions(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, "", number) for number in range(count)]


def squares(allocation: Allocated) -> int:
    return sum(len(its) ** 2 for its in allocation.values())


def optimum(previous: Allocated, queues: Sequence[MessageQueue], consumers: Sequence[Consumer]) -> tuple[int, int]:
    """The least sum of squared counts, and the most that is kept with it: an assignment problem, solved exactly."""
    had = {queue: each for each, its in previous.items() for queue in its}
    places = [(each, number) for each in consumers for number in range(len(queues))]
    cost = np.full((len(queues), len(places)), 1e9)
    for row, queue in enumerate(queues):
        for column, (each, number) in enumerate(places):
            if each.topics is None or queue.topic in each.topics:
                cost[row, column] = (2 * number + 1) * 4 * len(queues) + (had.get(queue) != each.id)
    rows, columns = linear_sum_assignment(cost)
    counts = Counter(places[column][0].id for column in columns)
    kept = sum(had.get(queues[row]) == places[column][0].id for row, column in zip(rows, columns, strict=True))
    return sum(count**2 for count in counts.values()), kept


topics = st.sampled_from(["t0", "t1", "t2", "t3"])
groups = st.lists(st.frozensets(topics, min_size=1), min_size=1, max_size=6)


@property_test(st.lists(groups, min_size=2, max_size=4), st.lists(st.integers(1, 7), min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_different_subscriptions_are_as_even_and_as_sticky_as_possible(
    steps: list[list[frozenset[str]]], sizes: list[int]
) -> None:
    queues = [queue for number, size in enumerate(sizes) for queue in partitions(f"t{number}", size)]
    before: dict[str, list[MessageQueue]] = {}
    for subscriptions in steps:
        consumers = [Consumer(f"c{number}", its) for number, its in enumerate(subscriptions)]
        readable = [queue for queue in queues if any(queue.topic in its for its in subscriptions)]
        after = allocate_weighted(before, queues, consumers)
        assert sorted(queue for its in after.values() for queue in its) == readable
        assert all(queue.topic in subscriptions[int(each[1:])] for each, its in after.items() for queue in its)
        valid = {
            each.id: [queue for queue in before.get(each.id, ()) if queue.topic in (each.topics or ())]
            for each in consumers
        }
        assert (squares(after), measures.kept(valid, after)) == optimum(valid, readable, consumers)
        before = after


def test_it_is_no_less_even_and_sticky_than_kafka_whatever_is_subscribed_to() -> None:
    """Kafka's figures of `kept` count from its own allocation before, so the sums over a sequence are compared."""
    ours, theirs = Counter[str](), Counter[str]()
    for case in cases("kafka_sequences"):
        before: dict[str, list[MessageQueue]] = {}
        for step in case["steps"]:
            queues = [queue for topic, count in step["topics"].items() for queue in partitions(topic, count)]
            if len(queues) > 2_000:
                break
            consumers = [Consumer(each, frozenset(its)) for each, its in step["members"].items()]
            after = allocate_weighted(before, queues, consumers)
            for name, its in step["results"].items():
                if "sticky" in name:
                    assert measures.balance_degree(after) <= its["balance_degree"] + 1e-5
                    ours[name] += measures.kept(before, after)
                    theirs[name] += its["kept"]
            before = after
    assert len(ours) == 2
    assert all(ours[name] >= theirs[name] for name in ours), (ours, theirs)


def test_with_one_subscription_and_no_weights_it_is_sticky() -> None:
    queues = partitions("t", 25)
    before = Sticky.of({}, queues, ["a", "b", "c"]).allocation()
    after = allocate_weighted(before, queues, [Consumer("a"), Consumer("c"), Consumer("d")])
    assert after == Sticky.of(before, queues, ["a", "c", "d"]).allocation()


# --- weights and capacities


def levels(allocation: Allocated, weights: Mapping[MessageQueue, float], consumers: Sequence[Consumer]) -> list[float]:
    """By consumer, weight per capacity, as a multiple of the mean."""
    mean = sum(weights.values()) / sum(each.capacity for each in consumers)
    return [sum(weights[queue] for queue in allocation[each.id]) / each.capacity / mean for each in consumers]


@pytest.mark.parametrize("seed", range(8))
def test_levels_are_within_the_tolerance_after_every_change(seed: int) -> None:
    random = Random(seed)
    queues = [queue for number in range(5) for queue in partitions(f"t{number}", 60)]
    weights = {queue: 1 + random.expovariate(1) for queue in queues}
    consumers = [Consumer(f"c{number}", capacity=random.choice((1.0, 1.0, 2.0))) for number in range(10)]
    before: dict[str, list[MessageQueue]] = {}
    for step in range(6):
        after = allocate_weighted(before, queues, consumers, Weighing(weights))
        assert sorted(queue for its in after.values() for queue in its) == queues
        assert 0.95 - 1e-9 <= min(levels(after, weights, consumers)) <= max(levels(after, weights, consumers)) <= 1.05
        if before:
            assert measures.kept(before, after) > 0.75 * len(queues)
        before = after
        if step % 2:
            consumers = [*consumers, Consumer(f"d{step}")]
        else:
            del consumers[random.randrange(len(consumers))]
        weights = {queue: weight * random.uniform(0.9, 1.1) for queue, weight in weights.items()}


def test_nothing_moves_while_everybody_is_within_the_tolerance() -> None:
    random = Random(1)
    queues = partitions("t", 200)
    weights = {queue: 1 + random.random() for queue in queues}
    consumers = [Consumer(f"c{number}") for number in range(5)]
    first = allocate_weighted({}, queues, consumers, Weighing(weights))
    drifted = {queue: weight * random.uniform(0.98, 1.02) for queue, weight in weights.items()}
    assert allocate_weighted(first, queues, consumers, Weighing(drifted)) == first


def test_a_queue_that_outweighs_all_others_is_alone_on_the_largest_consumer() -> None:
    queues = partitions("t", 21)
    weights = dict.fromkeys(queues, 1.0) | {queues[7]: 50.0}
    consumers = [Consumer("a"), Consumer("b"), Consumer("big", capacity=2.0)]
    found = allocate_weighted({}, queues, consumers, Weighing(weights))
    assert found["big"] == [queues[7]]
    assert [len(found["a"]), len(found["b"])] == [10, 10]
    badly = {"a": [queues[7]], "b": queues[:7], "big": queues[8:]}
    assert allocate_weighted(badly, queues, consumers, Weighing(weights))["big"] == [queues[7]]


def test_a_queue_that_is_too_heavy_for_all_its_readers_stays() -> None:
    queues = [*partitions("t", 11), *partitions("u", 4)]
    weights = dict.fromkeys(queues, 1.0) | {queues[0]: 50.0}
    consumers = [Consumer(each, frozenset({"t"})) for each in "ab"] + [Consumer("big", frozenset({"u"}), 9.0)]
    first = allocate_weighted({}, queues, consumers, Weighing(weights))
    for _ in range(3):
        assert allocate_weighted(first, queues, consumers, Weighing(weights)) == first


def test_idle_queues_are_divided_too() -> None:
    queues = partitions("t", 40)
    found = allocate_weighted({}, queues, [Consumer("a"), Consumer("b")], Weighing({queues[0]: 9.0, queues[1]: 9.0}))
    assert [len(its) for its in found.values()] == [20, 20]
    idle = allocate_weighted({}, queues, [Consumer("a"), Consumer("b")], Weighing({}))
    assert [len(its) for its in idle.values()] == [20, 20]


def test_a_new_consumer_gets_its_share_through_another() -> None:
    """`new` reads what `middle` reads, and only `middle` reads what `full` reads."""
    left, right = partitions("left", 30), partitions("right", 30)
    weights = dict.fromkeys([*left, *right], 1.0) | {left[0]: 1.5}
    before = {"full": left, "middle": right}
    consumers = [Consumer("full", frozenset({"left"})), Consumer("middle"), Consumer("new", frozenset({"right"}))]
    after = allocate_weighted(before, [*left, *right], consumers, Weighing(weights))
    assert [round(level, 1) for level in levels(after, weights, consumers)] == [1.0, 1.0, 1.0]


# --- bad input


@pytest.mark.parametrize(
    ("consumers", "weighing", "says"),
    [
        ([Consumer("a"), Consumer("a")], Weighing(), "named twice"),
        ([Consumer("a", capacity=0)], Weighing(), "the capacity of a is 0: give a number above 0"),
        ([Consumer("a", capacity=float("nan"))], Weighing(), "the capacity of a is nan"),
        ([Consumer("a")], Weighing({MessageQueue("t", "", 0): -1.0}), "is -1.0: give a number, at least 0"),
        ([Consumer("a")], Weighing({MessageQueue("t", "", 0): float("inf")}), "is inf"),
        ([Consumer("a")], Weighing(tolerance=-0.1), "the tolerance is -0.1"),
    ],
)
def test_bad_input_is_refused(consumers: list[Consumer], weighing: Weighing, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        allocate_weighted({}, partitions("t", 3), consumers, weighing)


def test_without_consumers_or_queues_there_is_nothing_to_allocate() -> None:
    assert allocate_weighted({"gone": partitions("t", 3)}, partitions("t", 3), []) == {}
    assert allocate_weighted({}, [], [Consumer("a"), Consumer("b", frozenset())]) == {"a": [], "b": []}
    assert allocate_weighted({}, partitions("t", 3), [Consumer("a", frozenset({"u"}))]) == {"a": []}


# --- step by step


@pytest.mark.parametrize("capacities", [(1.0,), (1.0, 1.0, 2.0)], ids=["alike", "different"])
@pytest.mark.parametrize("subscribed", [(("t0", "t1"),), (("t0",), ("t0", "t1"), ("t1",))], ids=["one", "several"])
@pytest.mark.parametrize("even", [False, True], ids=["weights", "even"])
def test_changes_step_by_step_are_as_good_as_all_at_once(
    capacities: tuple[float, ...], subscribed: tuple[tuple[str, ...], ...], even: bool
) -> None:
    random = Random(3)
    queues = [queue for topic in ("t0", "t1") for queue in partitions(topic, 150)]
    weights = None if even else {queue: 1 + random.expovariate(1) for queue in queues}

    def joins(number: int) -> Consumer:
        topics = frozenset(subscribed[number % len(subscribed)])
        return Consumer(f"c{number}", topics, capacities[number % len(capacities)])

    there = {each.id: each for each in map(joins, range(8))}
    weighing = Weighing(weights)
    stepwise = Weighted({}, queues, list(there.values()), weighing)
    for step in range(12):
        before = stepwise.allocation()
        joined = [joins(8 + step)] if step % 3 != 1 else []
        left = random.sample(sorted(there), step % 3)
        there = {name: each for name, each in there.items() if name not in left} | {each.id: each for each in joined}
        moved = stepwise.change(joined, left)
        found, whole = stepwise.allocation(), allocate_weighted(before, queues, list(there.values()), weighing)
        assert sorted(queue for its in found.values() for queue in its) == queues
        assert dict(stepwise.owners()) == {queue: each for each, its in found.items() for queue in its}
        owned = {queue: each for each, its in before.items() for queue in its}
        assert moved == {queue: each for queue, each in stepwise.owners().items() if owned[queue] != each}
        assert all(queue.topic in (there[each].topics or ()) for each, its in found.items() for queue in its)
        given = weights or dict.fromkeys(queues, 1.0)
        ours, theirs = (levels(its, given, list(there.values())) for its in (found, whole))
        assert max(ours) <= max(*theirs, 1.05) + 1e-9
        assert len(moved) <= sum(owned[queue] != each for each, its in whole.items() for queue in its) + 10


@pytest.mark.slow
def test_a_hundred_thousand_partitions_are_divided_within_a_second_and_a_leave_within_50_ms() -> None:
    random = Random(1)
    queues = partitions("t", 100_000)
    consumers = [Consumer(f"c{number:04}") for number in range(1_000)]
    for draw in (lambda: 1 + random.expovariate(1), lambda: random.lognormvariate(0, 2)):
        weights = {queue: draw() for queue in queues}
        gc.collect()
        began_s = time.process_time()
        stepwise = Weighted({}, queues, consumers, Weighing(weights))
        cold_s = time.process_time() - began_s
        taken_s: list[float] = []
        for number in range(0, 50, 10):
            began_s = time.process_time()
            assert stepwise.change([], [f"c{number:04}"])
            taken_s.append(time.process_time() - began_s)
        assert cold_s <= 1.0
        assert sorted(taken_s)[len(taken_s) // 2] <= 0.05
