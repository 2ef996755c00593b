"""Running sums are what adding up all queues gives, whatever came and went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.consumers.backlog.figures import NOTHING, Figure, GroupBacklog, Offsets, Oldest, backlog_of, total
from tests.loadmanager.consumers.backlog.queues import NOW_MS, any_offsets, queue

changes = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.none() | any_offsets), max_size=30)


@given(changes, st.integers(0, 10_000))
def test_running_sums_equal_the_sum_of_all_queues(done: list[tuple[str, int, Offsets | None]], later_ms: int):
    kept, group = dict[tuple[str, int], Offsets](), GroupBacklog("g")
    now_ms = NOW_MS + later_ms
    for topic, number, offsets in done:
        if offsets is None:
            group.drop(topic, number)
            kept.pop((topic, number), None)
        else:
            group.put(topic, number, offsets)
            kept[topic, number] = offsets
        assert group.sum(now_ms) == total(backlog_of(one, now_ms) for one in kept.values())
    assert group.topics == sorted({topic for topic, _ in kept})
    for topic in "ab":
        mine = {number: one for (at, number), one in kept.items() if at == topic}
        assert group.of_topic(topic, now_ms) == total(backlog_of(one, now_ms) for one in mine.values())
        assert group.offsets_of(topic) == sorted(mine.items())


def test_the_oldest_record_ages_while_nothing_changes():
    group = GroupBacklog("g")
    group.put("t", 0, Offsets(9, 3, consumer_stored_ms=NOW_MS))
    group.put("t", 1, Offsets(9, 9))
    assert [group.sum(NOW_MS + later).lag for later in (1_000, 4_000)] == [Figure(6, 1.0), Figure(6, 4.0)]


def test_a_topic_that_is_not_known_has_nothing():
    group = GroupBacklog("g")
    group.put("t", 0, queue(0, 3, 9))
    group.drop("t", 0)
    group.drop("t", 0)
    group.drop("other", 7)
    assert group.topics == []
    assert group.of_topic("t", NOW_MS) == NOTHING == group.sum(NOW_MS)
    assert list(group.of_queues("t", NOW_MS)) == []


def test_queues_are_shown_in_order():
    group = GroupBacklog("g")
    for number in (2, 0, 1):
        group.put("t", number, queue(0, number, 9))
    shown = list(group.of_queues("t", NOW_MS))
    assert [number for number, _ in shown] == [0, 1, 2]
    assert [backlog.lag for _, backlog in shown] == [Figure(9, None), Figure(8, None), Figure(7, None)]


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20)), max_size=80))
def test_the_smallest_of_many_times_is_found(done: list[tuple[int, int | None]]):
    oldest, kept = Oldest(), dict[int, int]()
    for key, at_ms in done:
        oldest.put(key, at_ms)
        if at_ms is None:
            kept.pop(key, None)
        else:
            kept[key] = at_ms
        assert oldest.first() == min(kept.values(), default=None)


def test_replaced_times_do_not_pile_up():
    oldest = Oldest()
    oldest.put(0, 0)
    for at_ms in range(1, 10_000):
        oldest.put(1, at_ms)
    assert len(oldest._heap) < 40
