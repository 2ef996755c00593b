"""What a consumer may commit: the smallest offset that is not consumed, in whatever order records are done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.consumers.backlog.in_flight import InFlight


def test_a_slow_record_holds_the_commit_back():
    """The picture of the source: 1 is still being consumed, 2 to 5 are done; the commit is 1 and not 6."""
    queue = InFlight(1)
    queue.pulled(range(1, 6))
    for offset in (2, 3, 4, 5):
        assert queue.consumed(offset) == 1
    assert (queue.commit, queue.pull, len(queue)) == (1, 6, 1)
    assert queue.consumed(1) == 6


def test_before_anything_is_pulled_the_commit_is_the_start():
    queue = InFlight(17)
    assert (queue.commit, queue.pull, len(queue)) == (17, 17, 0)


def test_a_gap_in_the_offsets_is_stepped_over():
    queue = InFlight(0)
    queue.pulled([2, 5, 9], next_pull=12)
    assert [queue.consumed(offset) for offset in (5, 2, 9)] == [2, 9, 12]


def test_an_offset_that_is_not_in_flight_changes_nothing():
    queue = InFlight(0)
    queue.pulled([0, 4])
    assert [queue.consumed(offset) for offset in (2, 9, -1, 0, 0)] == [0, 0, 0, 4, 4]
    assert len(queue) == 1


def test_an_offset_that_was_pulled_before_is_refused():
    queue = InFlight(0)
    queue.pulled([0, 1])
    with pytest.raises(ValueError, match="after a seek start again"):
        queue.pulled([1])


@given(st.data())
def test_the_commit_is_the_smallest_that_is_not_consumed(data: st.DataObject):
    queue, waiting, pull = InFlight(0), set[int](), 0
    for _ in range(data.draw(st.integers(0, 20))):
        steps = data.draw(st.lists(st.integers(0, 3), max_size=5))
        for step in steps:
            queue.pulled([pull + step])
            waiting.add(pull + step)
            pull += step + 1
        for offset in data.draw(st.lists(st.integers(0, pull), max_size=5)):
            waiting.discard(offset)
            assert queue.consumed(offset) == min(waiting, default=pull)
        assert (queue.commit, queue.pull, len(queue)) == (min(waiting, default=pull), pull, len(waiting))


def test_a_million_records_are_consumed_from_the_far_end():
    count = 1_000_000
    queue = InFlight(0)
    queue.pulled(range(count))
    for offset in range(count - 1, 0, -1):
        queue.consumed(offset)
    assert (queue.commit, len(queue)) == (0, 1)
    assert queue.consumed(0) == count
