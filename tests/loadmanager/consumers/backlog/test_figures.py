"""The three figures of one queue: RocketMQ's formulas, and what holds when offsets are missing or out of order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.consumers.backlog.figures import (
    ABSENT,
    NOTHING,
    Figure,
    Offsets,
    backlog_of,
    in_order,
    total,
)
from tests.loadmanager.consumers.backlog.queues import NOW_MS, any_offsets, queue

STORED_MS = NOW_MS - 2_000


def counts(offsets: Offsets) -> tuple[int | None, int | None, int | None]:
    found = backlog_of(offsets, NOW_MS)
    figures = (found.lag, found.in_flight, found.available)
    lag, in_flight, available = (None if figure is None else figure.messages for figure in figures)
    return lag, in_flight, available


def test_the_three_figures_are_differences_of_offsets():
    assert counts(Offsets(end=100, consumer=40, pull=70)) == (60, 30, 30)


def test_a_group_without_pull_offsets_has_lag_only():
    assert counts(Offsets(end=100, consumer=40)) == (60, None, None)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        (Offsets(end=None, consumer=5), (None, None, None)),
        (Offsets(end=-1, consumer=5), (None, None, None)),
        (Offsets(end=9, consumer=None), (0, None, None)),
        (Offsets(end=9, consumer=-1, pull=-1), (0, None, None)),
        (Offsets(end=9, consumer=None, pull=4), (5, 0, 5)),
        (Offsets(end=9, consumer=6, pull=4), (3, 0, 3)),
        (Offsets(end=9, consumer=12, pull=15), (0, 0, 0)),
        (Offsets(end=9, consumer=5, pull=15), (4, 4, 0)),
        (Offsets(end=0, consumer=0), (0, None, None)),
    ],
    ids=str,
)
def test_missing_and_disordered_offsets(offsets: Offsets, expected: tuple[int | None, ...]):
    assert counts(offsets) == expected


def test_a_queue_without_a_consumer_offset_is_counted_as_such():
    assert backlog_of(queue(0, None, 9), NOW_MS).uncommitted == 1
    assert backlog_of(queue(0, 9, 9), NOW_MS).uncommitted == 0


def test_records_that_were_deleted_unread_are_no_lag():
    found = backlog_of(queue(30, 10, 40), NOW_MS)
    assert (found.lag, found.deleted) == (Figure(10, None), 20)


def test_ages_are_those_of_the_first_records_not_consumed_and_not_pulled():
    found = backlog_of(Offsets(10, 2, 6, 0, NOW_MS - 9_000, NOW_MS - 3_000), NOW_MS)
    assert (found.lag, found.in_flight, found.available) == (Figure(8, 9.0), Figure(4, 9.0), Figure(4, 3.0))


def test_at_the_end_nothing_is_old_and_an_unread_age_is_not_known():
    assert backlog_of(Offsets(10, 10), NOW_MS).lag == Figure(0, 0.0)
    assert backlog_of(Offsets(10, 9), NOW_MS).lag == Figure(1, None)
    assert backlog_of(Offsets(10, 9, consumer_stored_ms=ABSENT), NOW_MS).lag == Figure(1, 0.0)
    assert backlog_of(Offsets(10, 9, consumer_stored_ms=NOW_MS + 50), NOW_MS).lag == Figure(1, 0.0)


@given(any_offsets)
def test_offsets_are_put_in_order_and_nothing_is_negative(offsets: Offsets):
    found = in_order(offsets)
    if found is None:
        assert offsets.end is None or offsets.end < 0
        return
    assert 0 <= found.consumer <= found.end == offsets.end
    assert found.deleted >= 0
    if found.pull is not None:
        assert found.consumer <= found.pull <= found.end
        assert found.in_flight is not None
        assert found.available is not None
        assert found.lag == found.in_flight + found.available


@given(st.lists(st.integers(0, 1_000), min_size=4, max_size=4).map(sorted))
def test_with_offsets_in_order_the_figures_are_those_of_rocketmq(ordered: list[int]):
    begin, consumer, pull, end = ordered
    assert counts(Offsets(end, consumer, pull, begin)) == (end - consumer, pull - consumer, end - pull)


@given(st.lists(st.integers(-1, 50), min_size=3, max_size=3))
def test_lag_is_that_of_rocketmq_wherever_a_commit_is_known(three: list[int]):
    end, consumer, pull = three
    if end >= 0 and consumer >= 0:
        assert counts(Offsets(end, consumer, pull))[0] == max(0, end - consumer)


# --- sums
def test_a_sum_adds_counts_and_keeps_the_oldest_age():
    each = [Offsets(10, 4, 6, 0, NOW_MS - 2_000, NOW_MS - 1_000), Offsets(5, 1, 1, 0, NOW_MS - 9_000, NOW_MS - 9_000)]
    found = total(backlog_of(one, NOW_MS) for one in each)
    assert (found.lag, found.in_flight, found.available) == (Figure(10, 9.0), Figure(2, 2.0), Figure(8, 9.0))
    assert (found.queues, found.ends, found.consumed) == (2, 15, 5)


def test_a_sum_leaves_out_queues_without_an_end_and_says_so():
    found = total(backlog_of(one, NOW_MS) for one in (queue(0, 4, 10), queue(0, 4, None)))
    assert found.lag == Figure(6, None)
    assert (found.queues, found.unknown) == (2, 1)
    assert total([backlog_of(queue(0, 4, None), NOW_MS)]).lag is None


def test_half_a_sum_of_pull_offsets_is_none():
    found = total(backlog_of(one, NOW_MS) for one in (queue(0, 4, 10, pull=6), queue(0, 4, 10)))
    assert (found.in_flight, found.available) == (None, None)


def test_a_queue_with_neither_offset_takes_no_sum_away():
    """Nothing was ever stored in it, or it is read from its end on."""
    found = total(backlog_of(one, NOW_MS) for one in (queue(0, 4, 10, pull=6), queue(0, None, 5), queue(0, 1, None)))
    assert (found.in_flight, found.available) == (Figure(2, None), Figure(4, None))
    plain = total(backlog_of(one, NOW_MS) for one in (queue(0, None, 5), queue(0, 3, 5)))
    assert (plain.in_flight, plain.available) == (None, None)


def test_an_age_that_nobody_read_leaves_a_sum_a_lower_bound_or_unknown():
    old, new, unread = (Offsets(9, 3, consumer_stored_ms=at_ms) for at_ms in (STORED_MS, ABSENT, None))
    assert total(backlog_of(one, NOW_MS) for one in (old, unread)).lag == Figure(12, 2.0)
    assert total(backlog_of(one, NOW_MS) for one in (old, unread)).undated == 1
    assert total(backlog_of(one, NOW_MS) for one in (new, unread)).lag == Figure(12, None)


def test_nothing_summed_is_nothing():
    assert total([]) == NOTHING == total([NOTHING, NOTHING])


@given(st.lists(st.lists(any_offsets, max_size=4), max_size=4))
def test_a_sum_is_the_same_in_any_grouping(groups: list[list[Offsets]]):
    nested = total(total(backlog_of(one, NOW_MS) for one in group) for group in groups)
    flat = total(backlog_of(one, NOW_MS) for group in groups for one in group)
    assert nested == flat
