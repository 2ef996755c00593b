"""What the children of a split carry until it is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager.model.load import total_of
from loadmanager.strategies.splitting.cuts import Inheritance, divide
from statechannel.law.bundle import FULL_UPPER, Bundle, position_of, tile

LEFT, MIDDLE, RIGHT = tile("t/n", (0, 100, 200, 400))


def test_without_any_keys_the_load_goes_by_width():
    parts = divide(BundleLoad(keys=8, sessions=4, in_rate_msg_s=100, cpu_percent=20), (LEFT, MIDDLE, RIGHT))
    assert [part.in_rate_msg_s for part in parts.values()] == [25, 25, 50]
    assert [part.keys for part in parts.values()] == [2, 2, 4]
    assert [part.sessions for part in parts.values()] == [1, 1, 2]


def test_known_keys_carry_what_they_carry_and_the_rest_goes_by_width():
    load = BundleLoad(keys=10, in_rate_msg_s=100, in_rate_bytes_s=1000)
    parts = divide(load, (LEFT, MIDDLE, RIGHT), [KeyRate(150, 60, 1000)])
    assert [part.in_rate_msg_s for part in parts.values()] == pytest.approx([10, 70, 20])
    assert parts[MIDDLE].in_rate_bytes_s == 1000


def test_the_hottest_keys_go_with_their_range():
    name = "persistent://t/n/alice"
    cut = position_of(name)
    low, high = tile("t/n", (0, cut, FULL_UPPER))
    parts = divide(BundleLoad(in_rate_msg_s=5, hottest_keys=((name, 5.0),)), (low, high))
    assert not parts[low].hottest_keys
    assert parts[high].hottest_keys == ((name, 5.0),)


@given(
    st.builds(
        BundleLoad,
        st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e9),
        st.floats(0, 1e9), st.floats(0, 800),
    ),
    st.lists(st.integers(1, FULL_UPPER - 1), min_size=1, max_size=20, unique=True),
    st.lists(st.builds(KeyRate, st.integers(0, FULL_UPPER), st.floats(0, 1e6), st.floats(0, 1e9)), max_size=20),
)  # fmt: skip
def test_the_parts_add_up_to_the_whole(load: BundleLoad, cuts: list[int], keys: list[KeyRate]):
    children = tile("t/n", (0, *sorted(cuts), FULL_UPPER))
    parts = divide(load, children, keys)
    total = total_of(parts.values())
    assert (total.keys, total.sessions) == (load.keys, load.sessions)
    for name in ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent"):
        assert getattr(total, name) == pytest.approx(getattr(load, name), rel=1e-6, abs=1e-6)
    assert all(part.rate_msg_s >= 0 and part.keys >= 0 for part in parts.values())


def test_child_shows_inherited_load_until_enough_is_measured_or_time_is_up():
    inheritance = Inheritance()
    inheritance.give({LEFT: BundleLoad(in_rate_msg_s=50), RIGHT: BundleLoad(in_rate_msg_s=50)}, 30.0, spread=True)
    ramping = {LEFT: BundleLoad(in_rate_msg_s=3), MIDDLE: BundleLoad(in_rate_msg_s=1)}
    assert {b: load.in_rate_msg_s for b, load in inheritance.applied(ramping, 1.0).items()} == {
        LEFT: 50, MIDDLE: 1, RIGHT: 50
    }  # fmt: skip
    assert inheritance.applied({LEFT: BundleLoad(in_rate_msg_s=60)}, 2.0)[LEFT].in_rate_msg_s == 60
    assert inheritance.applied(ramping, 3.0)[LEFT].in_rate_msg_s == 3, "what was measured once is not inherited again"
    assert inheritance.spread(4.0) == (LEFT, RIGHT)
    inheritance.settle(RIGHT)
    assert inheritance.spread(4.0) == (LEFT,)
    assert inheritance.applied({}, 30.0) == {}
    assert inheritance.spread(30.0) == ()


def test_a_bundle_apart_from_the_children_is_not_touched():
    assert Inheritance().applied({Bundle("t/n", 0, 1): BundleLoad(keys=3)}, 0.0)[Bundle("t/n", 0, 1)].keys == 3
