"""Strategies without memory give what RocketMQ's own classes give, errors included."""

from __future__ import annotations

from typing import Any

import pytest

from loadmanager.consumers.allocation.rocketmq import Averagely, ConsistentHash, InvalidArgument, MessageQueue
from tests.loadmanager.consumers.reading import cases, queues, strategy


def wrong(case: dict[str, Any]) -> list[Any]:
    """The calls of a case that are answered otherwise than by RocketMQ."""
    given, config = queues(case["queues"]), case["config"]
    made = strategy(case["strategy"], config)
    found: list[Any] = []
    for call in case["calls"]:
        expected = call.get("error")
        try:
            result = made.allocate(call["current"], given, case["consumers"])
        except InvalidArgument as error:
            if expected is None or expected["message"] not in (None, str(error)):
                found.append((case["id"], call, str(error)))
            continue
        if expected is not None or result != resolved(call["result"], given):
            found.append((case["id"], call, result))
    return found


def resolved(result: list[Any] | None, given: list[MessageQueue] | None) -> list[MessageQueue] | None:
    if result is None:
        return None
    return [(given or [])[each] if isinstance(each, int) else MessageQueue(*each) for each in result]


def test_every_vector_agrees() -> None:
    calls, differing = 0, list[Any]()
    for case in cases("allocate"):
        calls += len(case["calls"])
        differing += wrong(case)
    assert not differing[:3], f"{len(differing)} of {calls}"
    assert calls > 500


def test_all_at_once_is_what_each_consumer_is_told() -> None:
    seen = 0
    for case in cases("allocate"):
        given, consumers = queues(case["queues"]), case["consumers"]
        if given and consumers and not any("error" in call for call in case["calls"]):
            made = strategy(case["strategy"], case["config"])
            together = made.allocate_all(given, consumers)
            assert together == {each: made.allocate(each, given, consumers) for each in consumers}
            seen += 1
    assert seen > 1_000


def test_names_are_those_of_rocketmq() -> None:
    seen = {case["config"]["reported_name"]: case for case in cases("allocate") if "reported_name" in case["config"]}
    assert len(seen) == 3
    for name, case in seen.items():
        assert strategy(case["strategy"], case["config"]).name == name


def test_sixteen_queues_on_three_consumers() -> None:
    sixteen = [MessageQueue("lhy-test-topic", "broker-a", number) for number in range(16)]
    found = Averagely().allocate_all(sixteen, ["1", "2", "3"])
    assert {each: [queue.queue_id for queue in its] for each, its in found.items()} == {
        "1": [0, 1, 2, 3, 4, 5],
        "2": [6, 7, 8, 9, 10],
        "3": [11, 12, 13, 14, 15],
    }


def test_with_more_consumers_than_queues_the_last_get_none() -> None:
    two = [MessageQueue("lhy-test-topic", "broker-a", number) for number in range(2)]
    assert [len(its) for its in Averagely().allocate_all(two, ["1", "2", "3"]).values()] == [1, 1, 0]


def test_a_ring_cannot_have_fewer_than_no_places() -> None:
    with pytest.raises(InvalidArgument, match="-1"):
        ConsistentHash(-1)


def test_a_repeated_consumer_gets_further_places_on_the_ring() -> None:
    many = [MessageQueue("T", "b", number) for number in range(2_000)]
    once = ConsistentHash(10).allocate("a", many, ["a", "b"])
    twice = ConsistentHash(10).allocate("a", many, ["a", "b", "a"])
    assert set(once) < set(twice)
