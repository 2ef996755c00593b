"""The bound is below every outcome there is, and not so low that it says nothing."""

from __future__ import annotations

import numpy as np
import pytest

from loadmanager.history.replay.cost import Gaps, Judge, Objective, least
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler
from tests.history.replay.games import drawn, every_outcome, game

RULER = Ruler.of(Settings())
WEIGHTS = (Objective(), Objective(overload=0, moved=2.0, gap=0), Objective(imbalance=0.2, moved=0.01, gap=1.0))


def judged(made, objective=WEIGHTS[0]) -> Judge:
    return Judge(made, RULER, objective, Gaps())


@pytest.mark.parametrize("seed", range(20))
def test_no_outcome_of_a_small_game_is_below_the_bound(seed):
    judge = judged(drawn(seed), WEIGHTS[seed % 3])
    best = min(terms.objective for terms in every_outcome(judge))
    for stretches in (1, 2, 3):
        assert best >= least(judge, stretches) - 1e-9


def test_load_that_is_too_much_to_move_is_in_the_bound():
    """Moving costs more than it gains in three minutes, so the best is to stay, and the bound knows."""
    judge = judged(game(np.full((3, 2), 4.0), [0, 0], brokers=2), Objective(moved=10.0))
    stays = min(terms.objective for terms in every_outcome(judge))
    assert stays == pytest.approx(0.4, abs=1e-9)
    assert least(judge) == pytest.approx(stays)


def test_load_that_is_cheap_to_move_costs_its_moves():
    judge = judged(game(np.full((3, 2), 4.0), [0, 0], brokers=2), Objective(moved=0.001, gap=0.0))
    best = min(terms.objective for terms in every_outcome(judge))
    assert best == pytest.approx(0.001 * 0.4 / (3 / 60))
    assert least(judge) == pytest.approx(best)


def test_who_moves_when_it_is_light_is_not_below_the_bound():
    """One of two bundles is moved before both grow; the bound takes each stretch's lightest moment."""
    judge = judged(game([[1.0, 1.0], [4.0, 4.0], [4.0, 4.0]], [0, 0], brokers=2), Objective(moved=0.1, gap=0.0))
    best = min(terms.objective for terms in every_outcome(judge))
    assert best == pytest.approx(0.1 * 0.1 / (3 / 60))
    assert all(least(judge, stretches) <= best + 1e-9 for stretches in (1, 2, 3))


def test_a_bundle_too_large_for_the_level_is_in_the_bound():
    judge = judged(game(np.full((3, 1), 8.0), [0], brokers=2))
    assert least(judge) == pytest.approx(min(terms.objective for terms in every_outcome(judge)))
    assert least(judge) == pytest.approx(0.4)


@pytest.mark.slow
def test_overload_that_nobody_can_avoid_is_in_the_bound():
    judge = judged(game(np.full((3, 4), 9.5), [0, 0, 1, 1], brokers=2, cores=19.0), Objective(overload=4.0))
    best = min(terms.objective for terms in every_outcome(judge))
    assert least(judge) == pytest.approx(best)
    assert best == pytest.approx(4.0 * 2 * 0.15)


def test_fleeing_a_dead_broker_is_free():
    present = np.ones((3, 2), np.bool_)
    present[1:, 0] = False
    judge = judged(game(np.full((3, 2), 2.0), [0, 1], brokers=2, present=present))
    assert least(judge) == pytest.approx(min(terms.objective for terms in every_outcome(judge)))
    assert least(judge) == pytest.approx(0.0, abs=1e-9)
