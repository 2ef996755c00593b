"""Cuts: strictly inside, strictly upwards, as many as asked for, evenly shared; or a reason why there are none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadmanager.model.boundaries import MOST_PARTS, NoCuts, by_count, evenly, specified
from statechannel.law.bundle import FULL_UPPER, Bundle, even_boundaries, tile, tiles_exactly

WHOLE = Bundle("t/n", 0, FULL_UPPER)
LAST = Bundle("t/n", FULL_UPPER - 4, FULL_UPPER)
PARTS = st.integers(2, MOST_PARTS)


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    """Narrow ones, wide ones, and those at the ends of the ring."""
    lo = draw(st.one_of(st.integers(0, FULL_UPPER - 1), st.just(0), st.integers(FULL_UPPER - 300, FULL_UPPER - 1)))
    hi = draw(st.one_of(st.integers(lo + 1, FULL_UPPER), st.just(FULL_UPPER), st.just(min(lo + 300, FULL_UPPER))))
    return Bundle("t/n", lo, hi)


def parts_of(bundle: Bundle, cuts: tuple[int, ...]) -> tuple[Bundle, ...]:
    """The children; checks that they tile the bundle, none of them empty."""
    children = tile(bundle.namespace, (bundle.lo, *cuts, bundle.hi))
    assert all(child.lo < child.hi for child in children)
    assert tiles_exactly(children, bundle.lo, bundle.hi)
    return children


@given(bundles(), PARTS)
def test_equal_ranges_tile_the_bundle_and_differ_by_one_position_at_most(bundle: Bundle, parts: int):
    cuts = evenly(bundle, parts)
    if isinstance(cuts, NoCuts):
        assert bundle.hi - bundle.lo < parts
        return
    children = parts_of(bundle, cuts)
    widths = [child.hi + (child.hi == FULL_UPPER) - child.lo for child in children]
    assert len(children) == parts
    assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("bundles_at_first", [1, 2, 4])
def test_halving_gives_the_bundles_of_a_namespace_created_with_twice_as_many(bundles_at_first: int):
    halves = [edge for b in tile("t/n", even_boundaries(bundles_at_first)) for edge in (b.lo, *cuts_of(b))]
    assert (*halves, FULL_UPPER) == even_boundaries(2 * bundles_at_first)


def cuts_of(bundle: Bundle) -> tuple[int, ...]:
    cuts = evenly(bundle, 2)
    assert not isinstance(cuts, NoCuts)
    return cuts


@given(bundles(), st.data(), st.integers(2, 12))
def test_keys_are_shared_out_by_count(bundle: Bundle, data: st.DataObject, parts: int):
    inside = st.integers(bundle.lo, bundle.hi - (bundle.hi != FULL_UPPER))
    positions = data.draw(st.lists(st.one_of(inside, st.integers(0, FULL_UPPER)), max_size=60))
    cuts = by_count(bundle, positions, parts)
    there = [p for p in positions if p in bundle]
    places = {min(p, bundle.hi - 1) for p in there}
    if isinstance(cuts, NoCuts):
        assert len(places) < parts
        return
    children = parts_of(bundle, cuts)
    counts = [sum(p in child for p in there) for child in children]
    assert len(children) == parts
    assert sum(counts) == len(there)
    assert all(counts), "no part is empty"
    if len(set(there)) == len(there) == len(places):
        assert max(counts) - min(counts) <= 1, "keys that all stand apart are shared out evenly"


def test_keys_at_one_position_stay_together_however_many():
    cuts = by_count(WHOLE, [5] * 100 + [9, 20], 3)
    assert cuts == (7, 15)
    refused = by_count(WHOLE, [5] * 100, 2)
    assert isinstance(refused, NoCuts)
    assert "100 keys at 1 positions, too few for 2 parts" in refused.reason


def test_the_rings_last_position_gets_no_bundle_of_its_own():
    assert isinstance(by_count(LAST, [FULL_UPPER - 1, FULL_UPPER], 2), NoCuts)
    assert by_count(LAST, [FULL_UPPER - 3, FULL_UPPER], 2) == (FULL_UPPER - 2,)
    assert isinstance(evenly(Bundle("t/n", FULL_UPPER - 1, FULL_UPPER), 2), NoCuts)


@given(bundles(), st.lists(st.integers(0, FULL_UPPER), min_size=1, max_size=20))
def test_given_positions_are_taken_as_they_are_or_not_at_all(bundle: Bundle, positions: list[int]):
    cuts = specified(bundle, positions)
    fit = all(a < b for a, b in itertools.pairwise((bundle.lo, *positions, bundle.hi)))
    assert cuts == tuple(positions) if fit else isinstance(cuts, NoCuts)


@pytest.mark.slow
@given(bundles(), st.sets(st.integers(0, FULL_UPPER), min_size=1, max_size=20))
def test_sorted_positions_inside_are_taken(bundle: Bundle, positions: set[int]):
    inside = sorted(p for p in positions if bundle.lo < p < bundle.hi)
    assume(inside)
    assert specified(bundle, inside) == tuple(inside)


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        ([], "at least one"),
        ([0], "0x00000000 does not lie inside"),
        ([FULL_UPPER], "0xffffffff does not lie inside"),
        ([9, 5], "0x00000009 comes before 0x00000005"),
        ([5, 5], "strictly upwards"),
        (range(1, MOST_PARTS + 1), "at most 255"),
    ],
)
def test_what_is_wrong_with_given_positions_is_said(positions: list[int], says: str):
    refused = specified(WHOLE, positions)
    assert isinstance(refused, NoCuts)
    assert says in refused.reason


@pytest.mark.parametrize("parts", [-1, 0, 1, MOST_PARTS + 1, 10**9])
def test_a_split_into_too_few_or_too_many_is_refused(parts: int):
    for cuts in (evenly(WHOLE, parts), by_count(WHOLE, range(1000), parts)):
        assert isinstance(cuts, NoCuts)
        assert f"not {parts}" in cuts.reason
