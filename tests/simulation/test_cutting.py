"""What simulated administrators ask to be split and merged: always possible in the storage's cells, seldom refused."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from loadmanager.model.boundaries import NoCuts, by_count, evenly
from statechannel.law.bundle import FULL_UPPER, Bundle, tile
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from tests.simulator.simulated_host import CELL_SIZE, CELLS, cells_of
from tests.simulator.workload import draw_cut, draw_neighbours

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
WHOLE = Bundle("t/a", 0, FULL_UPPER)


def entry(bundle: Bundle, holder: BrokerId) -> Ownership:
    return Ownership(bundle, State.ASSIGNED, holder, None, 1, 1, Action.RETURN, holder)


@pytest.mark.parametrize("seed", range(30))
def test_cuts_fall_between_cells_however_they_are_found(seed: int) -> None:
    random = Random(seed)
    bundle = Bundle("t/a", 4 * CELL_SIZE, random.choice((6, 7, 10, 12)) * CELL_SIZE)
    cut = draw_cut(random, bundle)
    assert cut is not None
    if "positions" in cut:
        cuts = cut["positions"]
    elif "algorithm" in cut:
        middles = [cell * CELL_SIZE + CELL_SIZE // 2 for cell in cells_of(bundle)]
        cuts = by_count(bundle, middles, cut["parts"])  # type: ignore[assignment]
    else:
        cuts = evenly(bundle, cut["parts"])  # type: ignore[assignment]
    assert not isinstance(cuts, NoCuts)
    assert all(position % CELL_SIZE == 0 for position in cuts)


def test_every_way_to_cut_is_drawn_and_some_that_are_impossible() -> None:
    random = Random(1)
    cuts = [draw_cut(random, WHOLE) for _ in range(300)]
    assert {frozenset(cut) - {"unload"} for cut in cuts if cut} == {
        frozenset({"positions"}), frozenset({"parts"}), frozenset({"parts", "algorithm"}),
    }  # fmt: skip
    assert any(cut and cut.get("unload") for cut in cuts)
    assert any(cut and cut.get("positions") == [0, 0] for cut in cuts)


def test_a_single_cell_is_not_cut() -> None:
    assert draw_cut(Random(1), Bundle("t/a", 0, CELL_SIZE)) is None


def test_neighbours_touch_and_are_mostly_of_one_holder() -> None:
    random = Random(1)
    bundles = tile("t/a", (*(CELL_SIZE * cell for cell in range(0, CELLS, 4)), FULL_UPPER))
    entries = [entry(bundle, A if number < 5 else B) for number, bundle in enumerate(bundles)]
    mixed = 0
    for _ in range(200):
        parts = draw_neighbours(random, entries)
        assert 2 <= len(parts) <= 4
        assert all(left.hi == right.lo for left, right in itertools.pairwise(parts))
        mixed += len({e.holder for e in entries if e.bundle in parts}) > 1
    assert 0 < mixed < 40


def test_what_does_not_touch_is_no_neighbour() -> None:
    apart = [entry(Bundle("t/a", 0, CELL_SIZE), A), entry(Bundle("t/a", 2 * CELL_SIZE, 3 * CELL_SIZE), A)]
    assert draw_neighbours(Random(1), apart) == []
    assert draw_neighbours(Random(1), [entry(WHOLE, A), entry(Bundle("t/d", 0, FULL_UPPER), A)]) == []
