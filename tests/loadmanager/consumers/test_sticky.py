"""The sticky strategy: balanced after every change, and nothing is moved that balance lets stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from loadmanager.consumers.allocation import measures
from loadmanager.consumers.allocation.sticky import Sticky
from tests.loadmanager.consumers.reading import cases, queues

Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8 = EIGHT = [f"Q{number}" for number in range(1, 9)]


def most_keepable(counts: Sequence[int], queues: int) -> int:
    """How many queues the best balanced allocation leaves where they are. `counts`: valid ones of each consumer."""
    least, more = divmod(queues, len(counts))
    above = sum(count > least for count in counts)
    return sum(min(count, least) for count in counts) + min(above, more)


# --- the worked examples of the report


def test_queues_go_to_who_has_fewest() -> None:
    found = Sticky.of({}, EIGHT, ["C0", "C1", "C2"]).allocation()
    assert found == {"C0": [Q1, Q4, Q7], "C1": [Q2, Q5, Q8], "C2": [Q3, Q6]}


def test_queues_of_a_consumer_that_left_go_to_who_has_fewest() -> None:
    group = Sticky.of({}, EIGHT, ["C0", "C1", "C2"])
    change = group.change(left=["C1"])
    assert {each: sorted(its) for each, its in group.allocation().items()} == {
        "C0": [Q1, Q4, Q5, Q7],
        "C2": [Q2, Q3, Q6, Q8],
    }
    assert change.revoked == {"C1": [Q2, Q5, Q8]}
    assert change.assigned == {"C2": [Q2, Q8], "C0": [Q5]}


def test_measures_of_the_report() -> None:
    before = {"C0": [Q1, Q4, Q7], "C1": [Q2, Q5, Q8], "C2": [Q3, Q6]}
    after = {"C0": [Q1, Q4, Q5, Q7], "C2": [Q2, Q3, Q6, Q8]}
    assert measures.balance_degree(after) == 0
    assert measures.balance_degree(before) == pytest.approx(0.4714, abs=1e-4)
    assert measures.stickiness(before, after, 8) == 5 / 8
    assert measures.balance_degree({}) == measures.stickiness({}, {}, 0) == measures.difference({}) == 0


# --- against its 2020 code: what that got wrong


def test_a_join_and_a_leave_at_once_are_noticed() -> None:
    group = Sticky.of({}, EIGHT, ["C0", "C1"])
    group.change(joined=["C2"], left=["C1"])
    assert {each: len(its) for each, its in group.allocation().items()} == {"C0": 4, "C2": 4}


def test_a_third_consumer_gets_its_share_at_once() -> None:
    group = Sticky.of({}, EIGHT, ["C0", "C1"])
    change = group.change(joined=["C2"])
    assert sorted(len(its) for its in group.allocation().values()) == [2, 3, 3]
    assert change.revoked.keys() == {"C0", "C1"}
    assert change.assigned.keys() == {"C2"}


def test_a_removed_queue_is_not_mixed_up_with_one_of_the_same_id_elsewhere() -> None:
    group = Sticky.of({}, [("T", "a", 0), ("T", "b", 0)], ["C0", "C1"])
    group.change(removed=[("T", "a", 0)])
    assert group.allocation() == {"C0": [], "C1": [("T", "b", 0)]}


def test_a_consumer_that_was_away_has_lost_its_queues() -> None:
    group = Sticky.of({}, EIGHT, ["C0", "C1"])
    change = group.change(left=["C1"], joined=["C1"])
    assert change.revoked == {"C1": [Q2, Q4, Q6, Q8]}
    assert change.assigned == {"C1": [Q2, Q4, Q6, Q8]}


# --- edges


def test_without_consumers_queues_wait_for_one() -> None:
    group = Sticky.of({}, EIGHT, [])
    assert group.owner_of(Q1) is None
    group.change(joined=["C0"])
    assert group.queues_of("C0") == tuple(EIGHT)
    assert group.queues_of("C1") == ()


def test_a_queue_of_two_consumers_stays_with_the_first() -> None:
    group = Sticky.of({"C1": [Q1, Q2], "C0": [Q1]}, [Q1, Q2], ["C1", "C0"])
    assert group.allocation() == {"C1": [Q2], "C0": [Q1]}


def test_every_vector_agrees() -> None:
    steps = 0
    for case in cases("sticky_sequences"):
        for step in case["steps"]:
            steps += 1
            check_step(step)
    assert steps > 300


def check_step(step: dict[str, Any]) -> None:
    given = queues(step["queues"]) or []
    previous = {each: queues(its) or [] for each, its in step["previous"].items()}
    found = Sticky.of(previous, given, step["consumers"]).allocation()
    assert sorted(queue for its in found.values() for queue in its) == sorted(given)
    assert measures.kept(previous, found) == step["kept"] == step["most_keepable"]
    assert measures.balance_degree(found) == pytest.approx(step["balance_degree"])
    assert measures.difference(found) == step["max_min"]
    assert measures.stickiness(previous, found, len(given)) == pytest.approx(step["stickiness"])
    if step["exact"]:
        place = {queue: index for index, queue in enumerate(given)}
        positions = {each: sorted(place[queue] for queue in its) for each, its in found.items()}
        assert positions in [{each: sorted(its) for each, its in allowed.items()} for allowed in step["expected_any"]]


def test_it_keeps_no_less_than_any_assignor_of_kafka() -> None:
    compared = 0
    for case in cases("kafka_sequences"):
        if case["subscriptions"] != "homogeneous":
            continue
        group: Sticky[tuple[str, int]] = Sticky()
        known, members = set[tuple[str, int]](), set[str]()
        for step in case["steps"]:
            now = {(topic, number) for topic, count in step["topics"].items() for number in range(count)}
            before = group.allocation()
            group.change(
                joined=step["members"].keys() - members,
                left=members - step["members"].keys(),
                added=now - known,
                removed=known - now,
            )
            known, members = now, set(step["members"])
            valid = Counter(each for each in members for queue in before.get(each, ()) if queue in now)
            assert measures.kept(before, group.allocation()) == most_keepable(
                [valid[each] for each in members], len(now)
            )
            assert all(measures.difference(group.allocation()) <= its["max_min"] for its in step["results"].values())
            compared += 1
    assert compared > 20


# --- any sequence of changes


class Changes(RuleBasedStateMachine):
    """Consumers and queues come and go; after each change the allocation is as good as any."""

    names = st.sets(st.sampled_from([f"C{number}" for number in range(9)]), max_size=4)
    numbers = st.sets(st.integers(0, 40), max_size=12)

    def __init__(self) -> None:
        super().__init__()
        self.group: Sticky[int] = Sticky()
        self.consumers, self.queues = set[str](), set[int]()

    @rule(joined=names, left=names, added=numbers, removed=numbers)
    def change(self, joined: set[str], left: set[str], added: set[int], removed: set[int]) -> None:
        before = self.group.allocation()
        change = self.group.change(joined=joined, left=left, added=added, removed=removed)
        stayed = (self.consumers - left, self.queues - removed)
        self.consumers, self.queues = stayed[0] | joined, stayed[1] | added
        after = self.group.allocation()
        if self.consumers:
            valid_before = {each: set(its) & stayed[1] for each, its in before.items() if each in stayed[0]}
            valid = [len(valid_before.get(each, ())) for each in self.consumers]
            assert measures.kept(valid_before, after) == most_keepable(valid, len(self.queues))
        self._told(before, after, change)

    def _told(self, before: dict[str, list[int]], after: dict[str, list[int]], change: Any) -> None:
        """What the change says is what became different."""
        for each in before.keys() | after.keys():
            lost, got = set(change.revoked.get(each, ())), set(change.assigned.get(each, ()))
            assert (set(before.get(each, ())) - lost) | got == set(after.get(each, ()))

    @invariant()
    def balanced_and_complete(self) -> None:
        found = self.group.allocation()
        assert found.keys() == self.consumers
        assert measures.difference(found) <= 1
        if self.consumers:
            assert sorted(queue for its in found.values() for queue in its) == sorted(self.queues)
        assert all(self.group.owner_of(queue) == each for each, its in found.items() for queue in its)


TestChanges = pytest.mark.slow(Changes.TestCase)
