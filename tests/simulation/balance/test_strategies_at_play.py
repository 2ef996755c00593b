"""Every built-in strategy on every workload keeps what all of them owe, also when the leader sees badly and moves are
slow; and the default one keeps what it promises."""

from __future__ import annotations

import pytest

from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.game import RESTS, play
from loadmanager.strategies.playground.measures import measure, placement_for
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import WORKLOADS, make
from loadmanager.strategies.registry import STRATEGIES

SHORT = Size(brokers=6, bundles=90, rounds=40)
BUILT_IN = ["plan", "transfer", "threshold", "uniform", "overload", "avg"]
FIELD = Conditions(delay_rounds=1, stale_rounds=1, top_bundles=25, noise=0.2)
HARD = Conditions(delay_rounds=2, stale_rounds=2, missing=0.1, top_bundles=8)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("strategy", BUILT_IN)
def test_no_rule_is_broken(strategy: str, workload: str):
    settings = Settings()
    run = play(make(workload, SHORT, 1), strategy, settings, placement=placement_for(strategy, settings))
    if strategy in RESTS:
        assert measure(run, 1).returns == 0


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("strategy", BUILT_IN)
def test_no_rule_is_broken_when_reports_are_late_or_missing_and_moves_are_slow(strategy: str, workload: str):
    settings = Settings(shedder_hit_count=0)
    world = make(workload, SHORT, 2)
    play(world, strategy, settings, conditions=HARD, placement=placement_for(strategy, settings), seed=2)


def test_the_built_in_strategies_are_all_here():
    assert set(BUILT_IN) <= set(STRATEGIES.names())


@pytest.mark.parametrize("workload", ["heavy", "unequal", "steps", "diurnal"])
def test_the_default_strategy_gets_within_tolerance_and_moves_hardly_more_than_it_has_to(workload: str):
    figures = measure(play(make(workload, SHORT, 1), Settings().balancing_strategy), 1)
    assert figures.ends_within
    assert figures.certificate_ratio <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["diurnal", "flash", "heavy", "steps", "unequal-big", "noisy", "big", "mixed"])
def test_the_default_strategy_stays_within_tolerance_when_reports_and_moves_take_a_round(workload: str):
    """Its margins do that: without its memory it is beyond tolerance in 20 to 50 % of the rounds of some of these."""
    figures = measure(play(make(workload, Size(), 1), "plan", conditions=FIELD, seed=1), 1)
    assert figures.above_tolerance_percent <= 10
    assert figures.ends_within


def test_who_tolerates_more_moves_less():
    loose, tight = (
        measure(play(make("heavy", SHORT, 1), "plan", Settings(balancing_tolerance=tolerance)), 1)
        for tolerance in ("loose", "tight")
    )
    assert loose.moved < tight.moved
    assert loose.max_over_mean > tight.max_over_mean
