"""The yardsticks: levels and bounds against worked examples, against each other, and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.model.cluster import DIMENSIONS
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import (
    Ruler,
    allowed_usage,
    hindsight_bound,
    load_that_had_to_move,
    water_level,
)
from loadmanager.strategies.playground.game import play
from loadmanager.strategies.playground.measures import lengths, measure
from loadmanager.strategies.playground.scenario import CPU, Size, scenario
from loadmanager.strategies.playground.workloads import WORKLOADS, make
from tests.simulation.balance.strategies import Scripted, even_out, still

RULER = Ruler.of(Settings())
SIZE = Size(brokers=6, bundles=120, rounds=40)


def cpu(*cores: float) -> np.ndarray:
    load = np.zeros((len(cores), DIMENSIONS))
    load[:, CPU] = cores
    return load


def capacity(*cores: float) -> np.ndarray:
    all_of = np.full((len(cores), DIMENSIONS), np.inf)
    all_of[:, CPU] = cores
    return all_of


@given(
    st.lists(st.tuples(st.floats(1, 64), st.floats(0, 64)), min_size=1, max_size=12),
    st.floats(0, 200),
)
@settings(max_examples=200, deadline=None)
def test_at_the_water_level_exactly_the_movable_load_is_poured(brokers: list[tuple[float, float]], movable: float):
    cores, foreign = (np.array(column) for column in zip(*brokers, strict=True))
    level = water_level(cores, foreign, movable)
    assert np.maximum(0, level * cores - foreign).sum() == pytest.approx(movable, rel=1e-6, abs=1e-6)


def test_a_broker_that_is_above_the_level_by_its_neighbour_alone_is_left_out_of_it():
    assert water_level(np.array([10.0, 10, 10]), np.array([9.0, 0, 0]), 8.0) == pytest.approx(0.4)


def test_nobody_is_blamed_for_foreign_load_or_for_one_big_bundle():
    foreign, largest = cpu(6, 0, 0), np.array([0.0, 0.9, 0.1])
    allowed = allowed_usage(RULER, 0.5, foreign, largest, capacity(10, 10, 10))
    assert allowed == pytest.approx([0.61, 0.91, 0.55])


def had_to_move(before: np.ndarray, after: np.ndarray, even: float, leaving: tuple[int, ...] = ()) -> float:
    flags = np.isin(np.arange(len(before)), leaving)
    return load_that_had_to_move(RULER, before, after, capacity(*[10.0] * len(before)), even, flags)


def test_what_left_a_full_broker_had_to_move():
    assert had_to_move(cpu(8, 2), cpu(5, 5), 0.5) == pytest.approx(0.3)


def test_what_went_beyond_the_even_level_did_not_have_to():
    assert had_to_move(cpu(8, 2), cpu(2, 8), 0.5) == pytest.approx(0.3)


def test_what_was_only_swapped_did_not_have_to():
    assert had_to_move(cpu(5, 5), cpu(5, 5), 0.5) == 0


def test_what_an_empty_broker_got_had_to_move():
    assert had_to_move(cpu(6, 6, 6, 0), cpu(5, 5, 5, 3), 0.45) == pytest.approx(0.3)


def test_a_leaving_broker_has_to_give_everything():
    assert had_to_move(cpu(4, 4, 4), cpu(6, 6, 0), 0.6, leaving=(2,)) == pytest.approx(0.4)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_no_outcome_is_reached_by_moving_less_than_had_to_move(seed: int):
    rng = np.random.default_rng(seed)
    loads, owner = rng.lognormal(size=30), rng.integers(5, size=30)
    target = np.where(rng.random(30) < 0.4, rng.integers(5, size=30), owner)
    before, after = (cpu(*np.bincount(where, loads, 5)) for where in (owner, target))
    moved = loads[owner != target].sum() / 10
    assert had_to_move(before, after, loads.sum() / 50) <= moved + 1e-9


def test_the_figures_of_a_single_move_are_those_worked_out_by_hand():
    activity = np.ones((12, 8))
    made = scenario("calm", Size(4, 8, 12), np.random.default_rng(0), activity, home=np.array([0, 0, 0, 1, 1, 2, 3, 3]))

    def repair(model, at):
        return even_out(model, at)[:1] if at == 3 else []

    figures = measure(play(made, Scripted(repair)), 0)
    assert (figures.moves, figures.returns) == (1, 0)
    assert figures.moved == pytest.approx(0.25)
    assert figures.moved_percent == pytest.approx(12.5)
    assert figures.ratio == pytest.approx(1)
    assert (figures.rounds_to_balance, figures.above_tolerance_percent) == (3, 25)
    assert figures.max_over_mean == pytest.approx((3 * 1.5 + 9) / 12)
    assert figures.ends_within


def test_what_it_costs_to_be_overloaded_is_counted_in_broker_seconds():
    activity = np.ones((12, 4))
    made = scenario("full", Size(2, 4, 12), np.random.default_rng(0), activity, home=np.array([0, 0, 0, 1]), usage=0.6)
    assert measure(play(made, still()), 0).overloaded_broker_s == 12 * 60


def test_lengths_of_times():
    assert lengths(np.array([1, 1, 0, 0, 1, 0], bool)) == [2, 1]


def test_the_least_in_hindsight_is_what_one_perfect_move_costs():
    activity = np.ones((40, 40))
    home = np.array([0] * 16 + [1] * 4 + [2] * 10 + [3] * 10)
    made = scenario("calm", Size(4, 40, 40), np.random.default_rng(0), activity, home=home)
    # an even broker has 10 bundles of 0.05 of a broker each; 11 are within tolerance; 16 are there
    assert hindsight_bound(made, RULER) == pytest.approx(5 * 0.05)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in {"mixed", "restart"}])
def test_nobody_who_stays_within_tolerance_moves_less_than_the_least_in_hindsight(name: str):
    made = make(name, SIZE, 2)
    run = play(made, Scripted(even_out))
    figures = measure(run, 2, hindsight_bound(made, RULER))
    assert np.isfinite(figures.hindsight)
    if not run.above[10:].any():
        assert figures.moved >= figures.hindsight - 1e-9


@pytest.mark.parametrize("name", ["mixed", "restart"])
def test_no_least_in_hindsight_is_claimed_for_several_resources_or_without_a_broker_that_stays(name: str):
    assert np.isnan(hindsight_bound(make(name, SIZE, 1), RULER))
