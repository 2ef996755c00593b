"""Where a hot bundle is cut: Pulsar's walk, the quantiles of the load, a hot key by itself; and what owners choose."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.boundaries import NoCuts, evenly
from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager.settings.choices import Algorithm
from loadmanager.strategies.splitting.cuts import (
    Bounds,
    around,
    automatic_cuts,
    by_flow,
    by_load,
    cuts_of,
    estimated,
    hottest_of,
    weights_of,
)
from loadmanager.strategies.splitting.splits import Cause, Hot, Limits, Measure
from statechannel.law.bundle import FULL_UPPER, Bundle, position_of, tile

ALL = Bundle("t/n", 0, FULL_UPPER)
PART = Bundle("t/n", 100, 200)
LIMITS = Limits(1000, 1000, 100.0, 1000.0)
BOUNDS = Bounds(LIMITS, 0.1)


def keys(*pairs: tuple[int, float]) -> list[KeyRate]:
    return [KeyRate(position, rate, rate) for position, rate in pairs]


def hot(load: BundleLoad, cause: Cause = Cause.MSG_RATE, bundle: Bundle = PART, parts: int = 2, room: int = 9) -> Hot:
    return Hot(bundle, load, Measure(cause, 200.0, 100.0), 4, parts, room)


def cuts(found: tuple[int, ...] | NoCuts) -> tuple[int, ...]:
    assert not isinstance(found, NoCuts), found
    return found


# --- Pulsar's flow_or_qps_equally_divide


def test_flow_cuts_wherever_the_limit_would_be_passed():
    walked = keys((110, 60), (120, 30), (130, 30), (140, 90), (150, 20))
    assert by_flow(PART, walked, LIMITS, 0.1) == (126, 136, 146), "half-way behind each part's last key, rounded up"


def test_flow_cuts_after_a_key_that_is_above_the_limit_by_itself():
    assert by_flow(PART, keys((110, 150), (120, 10)), LIMITS, 0.1) == (116,)


def test_flow_counts_bytes_as_well_as_messages():
    walked = [KeyRate(110, 1, 600), KeyRate(120, 1, 300), KeyRate(130, 1, 300)]
    assert by_flow(PART, walked, LIMITS, 0.1) == (126,)


@pytest.mark.parametrize(
    ("walked", "why"),
    [
        (keys((110, 500)), "too few"),
        (keys((110, 500), (120, 0), (300, 40)), "too few"),
        (keys((110, 50), (120, 59)), "not 10% above"),
    ],
)
def test_flow_does_not_cut_without_need_or_place(walked: list[KeyRate], why: str):
    found = by_flow(PART, walked, LIMITS, 0.1)
    assert isinstance(found, NoCuts)
    assert why in found.reason


def test_flow_at_neighbouring_positions_and_at_the_rings_end():
    assert by_flow(PART, keys((150, 90), (151, 90)), LIMITS, 0.1) == (151,)
    end = by_flow(ALL, keys((FULL_UPPER - 2, 90), (FULL_UPPER - 1, 50), (FULL_UPPER, 50)), LIMITS, 0.1)
    assert end == (FULL_UPPER - 1,), "the ring's last position has no bundle of its own"


def test_the_rings_last_two_positions_cannot_be_parted():
    last = keys((FULL_UPPER - 1, 90), (FULL_UPPER, 90))
    for found in (by_flow(ALL, last, LIMITS, 0.1), by_load(ALL, last, 2)):
        assert isinstance(found, NoCuts)
        assert "at 1 positions" in found.reason


# --- by load


def test_the_weighted_median_cuts_the_load_in_halves():
    assert by_load(PART, keys((110, 10), (120, 10), (130, 10), (180, 30)), 2) == (155,)


def test_a_key_weighs_by_messages_or_by_bytes_whichever_is_more():
    uneven = [KeyRate(110, 100, 0), KeyRate(120, 100, 0), KeyRate(130, 0, 9), KeyRate(140, 0, 1)]
    assert weights_of(uneven) == [0.5, 0.5, 0.9, 0.1]
    assert by_load(PART, uneven, 2) == (125,)


def test_with_fewer_busy_keys_than_parts_each_gets_its_own():
    assert by_load(PART, keys((110, 1), (120, 1), (130, 8)), 5) == (115, 125)


def test_nothing_is_cut_by_load_where_one_key_has_all():
    assert isinstance(by_load(PART, keys((110, 1), (120, 0)), 2), NoCuts)


# --- hot keys


def test_a_hot_key_gets_a_bundle_of_its_own():
    assert around(PART, 150) == (150, 151)
    assert around(PART, 100) == (101,), "at the lower edge one cut does"
    assert around(PART, 199) == (199,), "and at the upper one"
    assert around(ALL, FULL_UPPER) == (FULL_UPPER - 1,)
    for nowhere in (99, 200):
        assert isinstance(around(PART, nowhere), NoCuts)
    assert isinstance(around(Bundle("t/n", 7, 8), 7), NoCuts), "it has one already"


def test_the_hottest_key_counts_all_that_are_at_its_position():
    assert hottest_of(PART, keys((110, 4), (120, 3), (120, 3))) == KeyRate(120, 6, 6)
    assert hottest_of(PART, keys((110, 0))) is None


def test_owner_isolates_a_key_with_half_of_the_load_with_any_algorithm():
    load = BundleLoad(keys=50, in_rate_msg_s=100, out_rate_msg_s=100)
    for algorithm in (Algorithm.RANGE, Algorithm.FLOW_OR_QPS, Algorithm.LOAD, Algorithm.TOPIC_COUNT):
        found = automatic_cuts(hot(load), algorithm, keys((150, 100), (160, 20)), BOUNDS)
        assert not isinstance(found, NoCuts)
        assert (found.positions, found.algorithm) == ((150, 151), Algorithm.HOT_KEY)
        assert "100 of 200 messages/s" in found.why


def test_a_key_below_half_or_a_split_for_the_number_of_keys_isolates_nothing():
    load = BundleLoad(keys=50, in_rate_msg_s=100, out_rate_msg_s=100)
    below = automatic_cuts(hot(load), Algorithm.RANGE, keys((150, 99)), BOUNDS)
    many = automatic_cuts(hot(load, Cause.TOPICS), Algorithm.RANGE, keys((150, 200)), BOUNDS)
    for found in (below, many):
        assert not isinstance(found, NoCuts)
        assert (found.positions, found.algorithm) == ((150,), Algorithm.RANGE)


def test_in_a_namespace_with_room_for_one_more_nothing_is_isolated():
    load = BundleLoad(keys=50, in_rate_msg_s=200)
    found = automatic_cuts(hot(load, room=2), Algorithm.RANGE, keys((170, 200)), BOUNDS)
    assert not isinstance(found, NoCuts)
    assert found.positions == (150,)


# --- what an owner chooses


def test_without_keys_the_cut_is_in_equal_ranges_and_says_why():
    load = BundleLoad(keys=50, in_rate_msg_s=400)
    found = automatic_cuts(hot(load, parts=4), Algorithm.LOAD, NoCuts("it has no `rates`"), BOUNDS)
    assert not isinstance(found, NoCuts)
    assert (found.positions, found.algorithm) == (evenly(PART, 4), Algorithm.RANGE)
    assert "it has no `rates`" in found.why


def test_flow_for_too_many_keys_counts_keys():
    load = BundleLoad(keys=4)
    found = automatic_cuts(
        hot(load, Cause.TOPICS), Algorithm.FLOW_OR_QPS, keys((110, 1), (111, 1), (112, 1), (190, 1)), BOUNDS
    )
    assert not isinstance(found, NoCuts)
    assert (found.positions, found.algorithm) == ((112,), Algorithm.TOPIC_COUNT)


def test_more_cuts_than_the_namespace_has_room_for_become_fewer():
    walked = keys(*((100 + i, 90.0) for i in range(10, 20)))
    load = BundleLoad(keys=10, in_rate_msg_s=900)
    found = automatic_cuts(hot(load, room=3), Algorithm.FLOW_OR_QPS, walked, BOUNDS)
    assert not isinstance(found, NoCuts)
    assert len(found.positions) == 2


def test_service_without_rates_is_judged_by_its_hottest_and_other_keys():
    name = "persistent://t/n/alice"
    load = BundleLoad(in_rate_msg_s=60, out_rate_msg_s=40, in_rate_bytes_s=1000, hottest_keys=((name, 70.0), ("x", -1)))
    found = estimated(ALL, load, [5, 9, position_of(name)])
    assert found == sorted(
        [
            KeyRate(5, 15, 150),
            KeyRate(9, 15, 150),
            KeyRate(position_of(name), 70, 700),
            KeyRate(position_of("x"), 0, 0),
        ],
        key=lambda key: key.position,
    )
    short = BundleLoad(in_rate_msg_s=10, hottest_keys=(("t/n/alice", 10.0),))
    assert [key.position for key in estimated(ALL, short)] == [position_of(name)], "a topic's short form is the topic"


# --- laws

spots = st.integers(0, FULL_UPPER)
some_keys = st.lists(st.builds(KeyRate, spots, st.floats(0, 1e4), st.floats(0, 1e6)), max_size=60)
edges = st.lists(spots, min_size=2, max_size=2, unique=True).map(sorted)


@given(edges, some_keys, st.sampled_from(sorted(Algorithm)), st.integers(2, 20))
def test_cuts_always_run_strictly_upwards_inside_the_bundle(
    ends: list[int], rates: list[KeyRate], algorithm: Algorithm, parts: int
):
    bundle = Bundle("t/n", *ends)
    found = cuts_of(bundle, algorithm, parts, rates, BOUNDS)
    if not isinstance(found, NoCuts):
        run = (bundle.lo, *found, bundle.hi)
        assert len(run) > 2
        assert all(a < b for a, b in itertools.pairwise(run))


@given(st.lists(st.tuples(spots, st.floats(1, 1e4)), min_size=2, max_size=60, unique_by=lambda pair: pair[0]))
def test_two_parts_by_load_differ_by_no_more_than_one_key(pairs: list[tuple[int, float]]):
    rates = [KeyRate(position, rate, 0.0) for position, rate in pairs if position < FULL_UPPER - 1]
    found = by_load(ALL, rates, 2)
    if isinstance(found, NoCuts):
        assert len(rates) < 2
        return
    left, right = (
        sum(key.rate_msg_s for key in rates if key.position in child) for child in tile("t/n", (0, *found, FULL_UPPER))
    )
    assert abs(left - right) <= max(key.rate_msg_s for key in rates) * (1 + 1e-9)


@given(some_keys)
def test_each_part_by_flow_is_within_the_limits_unless_one_key_alone_is_not(rates: list[KeyRate]):
    found = by_flow(ALL, rates, LIMITS, 0.1)
    if isinstance(found, NoCuts):
        return
    for child in tile("t/n", (0, *found, FULL_UPPER)):
        inside = [key for key in rates if key.position in child and (key.rate_msg_s > 0 or key.rate_bytes_s > 0)]
        heavy = sum(k.rate_msg_s for k in inside) > 100.0001 or sum(k.rate_bytes_s for k in inside) > 1000.0001
        assert not heavy or len({min(key.position, FULL_UPPER - 1) for key in inside}) == 1
