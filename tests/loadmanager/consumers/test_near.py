"""Exchanges for racks: as much is near as balance allows, and no consumer has more to read."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from loadmanager.consumers.allocation.near import Reader, exchanges
from loadmanager.consumers.coordinator.records import Subscription, by_topic
from loadmanager.consumers.coordinator.targets import Partition, Situation, Targets

T = frozenset({"t"})


@pytest.mark.parametrize("seed", range(50))
def test_as_much_is_near_as_the_numbers_allow(seed: int) -> None:
    """In each rack either all of its queues are read there, or all that its consumers read is of it."""
    chance = Random(seed)
    owners = {("t", number): f"c{chance.randrange(6)}" for number in range(chance.randint(1, 60))}
    racks = {queue: chance.choice("abc") for queue in owners if chance.random() < 0.9}
    readers = {f"c{at}": Reader(chance.choice(["a", "b", ""]), T) for at in range(6)}
    moved = exchanges(owners, racks, readers, None)
    after = {**owners, **moved}
    assert Counter(after.values()) == Counter(owners.values())
    assert all(owners[queue] != owner for queue, owner in moved.items())
    for rack in {each.rack for each in readers.values()} - {""}:
        read = [queue for queue, owner in after.items() if readers[owner].rack == rack]
        assert sum(racks.get(queue) == rack for queue in read) == min(len(read), Counter(racks.values())[rack])
    assert exchanges(after, racks, readers, None) == {}


@pytest.mark.parametrize("seed", range(20))
def test_weights_stay_within_the_tolerance_and_subscriptions_count(seed: int) -> None:
    chance = Random(seed)
    readers = {
        f"c{at}": Reader("ab"[at % 2], frozenset(chance.sample("tuv", 2)), chance.choice([1.0, 2.0])) for at in range(8)
    }
    queues = [(topic, number) for topic in "tuv" for number in range(60)]
    owners = {
        queue: chance.choice([name for name, each in readers.items() if queue[0] in each.topics])
        for queue in queues
        if any(queue[0] in each.topics for each in readers.values())
    }
    racks = {queue: chance.choice("ab") for queue in queues}
    weights = {queue: chance.random() + 0.1 for queue in queues}

    def levels(of: dict[Partition, str]) -> list[float]:
        loads = dict.fromkeys(readers, 0.0)
        for queue, owner in of.items():
            loads[owner] += weights[queue] / readers[owner].capacity
        return list(loads.values())

    def near(of: dict[Partition, str]) -> int:
        return sum(racks[queue] == readers[owner].rack for queue, owner in of.items())

    after = {**owners, **exchanges(owners, racks, readers, weights)}
    mean = sum(weights[queue] for queue in owners) / sum(each.capacity for each in readers.values())
    assert max(levels(after)) <= max(1.05 * mean, *levels(owners)) + 1e-9
    assert min(levels(after)) >= min(0.95 * mean, *levels(owners)) - 1e-9
    assert all(queue[0] in readers[owner].topics for queue, owner in after.items())
    assert near(after) > 1.4 * near(owners)
    assert exchanges(after, racks, readers, weights) == {}


@pytest.mark.parametrize("strategy", ["STICKY", "WEIGHTED_STICKY"])
@pytest.mark.parametrize("seed", range(10))
def test_whoever_comes_and_goes_groups_stay_even_and_near(strategy: str, seed: int) -> None:
    chance = Random(seed)
    racks = {("t", number): chance.choice("ab") for number in range(chance.randint(1, 60))}
    members = {f"c{at}": Subscription(("t",), rack=chance.choice("ab")) for at in range(3)}
    targets = Targets(strategy, {})
    for step in range(12):
        before = dict(targets.all())
        changed = targets.renew(Situation(members, {"t": len(racks)}, None, by_topic(racks)))
        found = targets.all()
        assert {each for each in racks if before.get(each) != found[each]} == changed, "it says all that it moved"
        counts = [list(found.values()).count(name) for name in members]
        assert max(counts) - min(counts) <= 1
        for rack in {each.rack for each in members.values()}:
            read = [each for each, name in found.items() if members[name].rack == rack]
            assert sum(racks[each] == rack for each in read) == min(len(read), Counter(racks.values())[rack])
        members = dict(members)
        if len(members) > 1 and chance.random() < 0.5:
            del members[chance.choice(sorted(members))]
        members[f"d{step}"] = Subscription(("t",), rack=chance.choice("ab"))
