"""Brokers of unequal size: a round never makes anything worse, and what is within tolerance is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from bench.plan_exact import WHOLE, placed
from bench.plan_instances import KINDS, instance
from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Move, Stage
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from tests.loadmanager.strategies.rebalancing.cluster_models import Host
from tests.loadmanager.strategies.rebalancing.cluster_models import model as written
from tests.loadmanager.strategies.rebalancing.plan.random_models import after

SEEDS = range(6)
ONE_POOL = ("equal", "unequal", "giants", "weights", "resources", "unequal resources")
"""Kinds of models whose brokers may all take everything, so that the even level is the mean."""
LIMITED = Settings(balancing_budget=0.1)
FEW_MOVES = Settings(balancing_moves_per_round=2)
UNEQUAL = ("a", "b", "c", "d"), (16.0, 8.0, 8.0, 4.0)


def even_limit(model: ClusterModel, settings: Settings) -> float:
    """The mean usage of the resource that is used most, and the tolerance: by no other way than the plan's docs."""
    counted = np.isfinite(model.brokers.capacity).all(axis=0)
    mean = float((model.brokers.used.sum(axis=0) / model.brokers.capacity.sum(axis=0))[counted].max())
    return max(mean * (1 + settings.tolerance), mean + 0.01)


def peaks(model: ClusterModel, settings: Settings) -> Floats:
    return Draft(model, settings).peak


def a_giant_among_small_ones() -> ClusterModel:
    sizes = ([5.0, *[0.2] * 5], [0.2] * 12, [0.2] * 12, [0.2] * 6)
    hosts = {name: Host(sum(s) / cores, cores) for name, cores, s in zip(*UNEQUAL, sizes, strict=True)}
    return written(hosts, dict(zip(UNEQUAL[0], sizes, strict=True)))


def test_a_bundle_that_is_large_for_a_small_broker_is_none_for_a_large_one() -> None:
    model = a_giant_among_small_ones()
    draft, decision = Draft(model, WHOLE), Plan().decide(model, WHOLE)
    assert draft.scale.target == pytest.approx(1 / 3)
    assert len(decision.moves) == 1
    assert peaks(after(model, decision.moves), WHOLE).max() <= 1.1 / 3


def test_giant_that_fits_nowhere_does_not_hide_the_imbalance_of_others() -> None:
    hosts = {"a": Host(8 / 16, 16), "b": Host(2.4 / 8, 8), "c": Host(0.8 / 8, 8), "d": Host(0.4 / 4, 4)}
    model = written(hosts, {"a": [8.0], "b": [0.2] * 12, "c": [0.2] * 4, "d": [0.2] * 2})
    assert Draft(model, WHOLE).scale.target == pytest.approx((11.6 - 8) / 20)
    assert {(move.source.name[0], move.stage) for move in Plan().decide(model, WHOLE).moves} <= {
        ("b", Stage.BALANCE),
        ("b", Stage.EXACT),
    }


@pytest.mark.parametrize("settings", [WHOLE, LIMITED, FEW_MOVES], ids=["whole", "budget", "two moves"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_never_makes_the_objective_worse(kind: str, settings: Settings) -> None:
    for seed in SEEDS:
        model = instance(kind, seed, brokers=3, bundles=8)
        decision, draft = Plan().decide(model, settings), Draft(model, settings)
        before = draft.total
        for move, ends in zip(decision.moves, rows_of(model, decision.moves), strict=True):
            draft.make(*ends, move.stage, gain=move.gain)
        assert draft.total < before or not decision.moves, f"seed {seed}"


def rows_of(model: ClusterModel, moves: tuple[Move, ...]) -> list[tuple[int, int, int]]:
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    found: list[tuple[int, int, int]] = []
    for move in moves:
        assert move.destination is not None
        found.append((rows[move.bundle], model.brokers.rows[move.source], model.brokers.rows[move.destination]))
    return found


@pytest.mark.parametrize("kind", ONE_POOL)
def test_the_fullest_broker_is_never_fuller_after_a_round(kind: str) -> None:
    """Unless all are within the even level and the tolerance."""
    for seed in SEEDS:
        model = instance(kind, seed, brokers=3, bundles=8)
        then = peaks(after(model, Plan().decide(model, WHOLE).moves), WHOLE).max()
        assert then <= max(peaks(model, WHOLE).max(), even_limit(model, WHOLE)) + 1e-9, f"seed {seed}"


@pytest.mark.parametrize("kind", ONE_POOL)
def test_what_is_within_tolerance_is_left_alone(kind: str) -> None:
    balanced = 0
    for seed in SEEDS:
        model = instance(kind, seed, brokers=3, bundles=8)
        model = after(model, Plan().decide(model, WHOLE).moves, rest_s=0.0)
        draft = Draft(model, WHOLE)
        if draft.peak.max() <= even_limit(model, WHOLE) and not draft.idle():
            balanced += 1
            assert Plan().decide(model, WHOLE).moves == (), f"seed {seed}"
    assert balanced


def test_placed_is_where_the_bundles_are_after_the_moves() -> None:
    model = a_giant_among_small_ones()
    decision = Plan().decide(model, WHOLE)
    assert list(placed(model, decision)) == list(after(model, decision.moves).bundles.owner)
