"""How much of a backlog passes a filter: exact if all was seen, else with a bound that holds as often as it says."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.consumers.backlog.sampling import Estimate, Limits, Sample, estimate, places, places_of, scan, wilson


def test_everything_seen_is_exact():
    sample = scan(range(10), lambda number: number % 2 == 0, Limits())
    assert estimate(sample, 10) == Estimate(5, 5, 5, Sample(10, 5), exact=True)
    assert estimate(Sample(0, 0), 0) == Estimate(0, 0, 0, Sample(0, 0), exact=True)


def test_looking_stops_at_either_limit():
    assert scan(iter(int, 1), lambda _: False, Limits(scanned=20, matched=5)) == Sample(20, 0)
    assert scan(iter(int, 1), lambda _: True, Limits(scanned=20, matched=5)) == Sample(5, 5)
    assert (Limits().scanned, Limits().matched) == (20_000, 5_000)


def test_a_share_of_the_sample_is_a_share_of_the_backlog():
    found = estimate(Sample(20_000, 5_000), 1_000_000)
    assert found.messages == 250_000
    assert 243_000 < found.low < 250_000 < found.high < 257_000


def test_nothing_seen_says_nothing():
    assert estimate(Sample(0, 0), 50) == Estimate(0, 0, 50, Sample(0, 0), exact=False)


def test_no_match_in_the_sample_does_not_mean_none_at_all():
    found = estimate(Sample(100, 0), 10_000)
    assert (found.messages, found.low) == (0, 0)
    assert found.high > 300


def test_the_bound_is_narrow_when_nearly_everything_was_seen():
    found = estimate(Sample(900, 450), 1_000)
    assert found.high - found.low <= 25


def test_wilsons_interval_is_that_of_the_literature():
    low, high = wilson(0.1, 100, 0.95)
    assert (round(low, 4), round(high, 4)) == (0.0552, 0.1744)


@pytest.mark.parametrize(
    ("sample", "backlog", "confidence"),
    [(Sample(5, 6), 10, 0.95), (Sample(11, 2), 10, 0.95), (Sample(5, -1), 10, 0.95), (Sample(5, 2), 10, 1.0)],
)
def test_what_cannot_be_a_sample_is_refused(sample: Sample, backlog: int, confidence: float):
    with pytest.raises(ValueError, match="cannot be a sample"):
        estimate(sample, backlog, confidence)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_bounds_lie_about_the_estimate_and_are_possible(one: int, two: int, three: int):
    matched, scanned, backlog = sorted((one, two, three))
    found = estimate(Sample(scanned, matched), backlog)
    assert matched <= found.low <= found.messages <= found.high <= backlog - (scanned - matched) or scanned == 0
    assert found.exact == (scanned == backlog)


@pytest.mark.parametrize(("backlog", "matching", "scanned"), [(2_000, 100, 200), (2_000, 1_000, 50), (400, 40, 300)])
def test_the_bound_holds_as_often_as_it_says(backlog: int, matching: int, scanned: int):
    rng, records, held = Random(7), range(backlog), 0
    for _ in range(1_000):
        sample = scan(rng.sample(records, scanned), lambda number: number < matching, Limits(scanned, backlog))
        found = estimate(sample, backlog)
        held += found.low <= matching <= found.high
    assert held >= 930


@given(st.integers(0, 50), st.integers(0, 5_000), st.integers(1, 40), st.integers(1, 500))
def test_places_lie_within_the_backlog_apart_and_reach_both_ends(first: int, length: int, pieces: int, scanned: int):
    end = first + length
    found = places(first, end, pieces, Limits(scanned=scanned))
    assert sum(till - at for at, till in found) <= scanned
    assert all(first <= at < till <= end for at, till in found)
    assert all(till <= at for (_, till), (at, _) in pairwise(found))
    if length:
        assert found[0][0] == first
    if len(found) > 1 or 0 < length <= scanned:
        assert found[-1][1] == end


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=6), st.integers(1, 20), st.integers(1, 200)
)
def test_places_of_many_queues_lie_within_them_and_apart(lengths: list[tuple[int, int]], pieces: int, scanned: int):
    queues = [(first, first + length) for first, length in lengths]
    found = places_of(queues, pieces, Limits(scanned=scanned))
    seen = [(index, offset) for index, first, end in found for offset in range(first, end)]
    assert len(set(seen)) == len(seen) <= scanned
    assert all(queues[index][0] <= offset < queues[index][1] for index, offset in seen)
    backlog = sum(length for _, length in lengths)
    assert backlog > scanned or len(seen) == backlog


def test_places_are_visited_all_over_the_backlog_from_the_first_on():
    found = places_of([(0, 1_000)] * 10, 20, Limits(scanned=200))
    assert {index // 5 for index, _, _ in found[:3]} == {0, 1}
