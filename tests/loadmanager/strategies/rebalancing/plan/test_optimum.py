"""The plan against the optimum of small models, found by trying everything: balance, load moved, and the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.cover import cover
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.exact import search
from loadmanager.strategies.rebalancing.plan.scale import EPSILON, UNEVEN
from tests.loadmanager.strategies.rebalancing.plan.random_models import after, plain_model

AT_ONCE = Settings(balancing_budget=1.0, balancing_moves_per_round=100_000)


def cost_of(draft: Draft, peak: Floats, held: Floats) -> float:
    usage = sum(draft.costs.usage(at, float(peak[at]), int(held[at])) for at in range(len(peak)))
    return usage + UNEVEN * bool((peak - draft.scale.ceiling > EPSILON).any())


def best_possible(model: ClusterModel) -> tuple[float, float]:
    """The objective at its lowest over every placement, and the least load moved by which all are within tolerance."""
    draft = Draft(model, AT_ONCE)
    n, rows = len(model.brokers), range(len(model.bundles))
    best, least = np.inf, np.inf
    for places in itertools.product(range(n), repeat=len(rows)):
        usage, held, spent, moved = draft.usage.copy(), model.brokers.bundles.astype(np.float64), 0.0, 0.0
        for row, place in enumerate(places):
            owner = int(model.bundles.owner[row])
            if place == owner:
                continue
            load = draft.load_of(row)
            usage[:, owner] -= load * draft.scale.per_load[:, owner]
            usage[:, place] += load * draft.scale.per_load[:, place]
            held[owner] -= 1
            held[place] += 1
            spent += draft.cost_of(row, place)
            moved += float(draft.size[row])
        peak = usage.max(axis=0)
        best = min(best, cost_of(draft, peak, held) + spent)
        if (peak <= draft.scale.limit + EPSILON).all():
            least = min(least, moved)
    return best, least


def figures(model: ClusterModel) -> tuple[float, float, float, bool]:
    """The objective with the plan, what it is without, the load moved, and whether all are within tolerance then."""
    draft, decision = Draft(model, AT_ONCE), Plan().decide(model, AT_ONCE)
    result = Draft(after(model, decision.moves), AT_ONCE)
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    moved = sum(float(draft.size[rows[move.bundle]]) for move in decision.moves)
    spent = sum(
        draft.cost_of(rows[move.bundle], model.brokers.rows[move.destination])
        for move in decision.moves
        if move.destination is not None
    )
    achieved = cost_of(draft, result.peak, result.bundles.astype(np.float64)) + spent
    before = cost_of(draft, draft.peak, draft.bundles.astype(np.float64))
    return achieved, before, moved, bool((result.peak <= draft.scale.limit + EPSILON).all())


@pytest.mark.slow
def test_small_models_end_near_the_optimum_of_the_objective() -> None:
    shares: list[float] = []
    for seed in range(60):
        model = plain_model(seed, 3, 6, dimensions=1 + seed % 2, sigma=0.6, skew=2.0)
        achieved, before, _, _ = figures(model)
        best, _ = best_possible(model)
        assert best <= achieved + 1e-9, "the oracle is wrong"
        shares.append(1.0 if before - best < 1e-6 else (before - achieved) / (before - best))
    assert np.mean(shares) > 0.97
    assert min(shares) > 0.7


@pytest.mark.slow
def test_reachable_tolerance_is_reached_with_little_more_than_least_load() -> None:
    reachable = reached = 0
    ratios: list[float] = []
    for seed in range(60):
        model = plain_model(seed, 3, 7, sigma=0.5, skew=1.0, mean=0.3)
        _, least = best_possible(model)
        if not np.isfinite(least):
            continue
        _, _, moved, within = figures(model)
        reachable += 1
        reached += within
        if within and least > 0:
            ratios.append(moved / least)
    assert reachable > 15
    assert reached >= 0.9 * reachable
    assert np.mean(ratios) < 1.05


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_within_tolerance_moves_less_than_the_certificate_says(seed: int) -> None:
    model = plain_model(seed, 3, 7, sigma=0.5, mean=0.3)
    certificate = Plan().decide(model, AT_ONCE).certificate
    _, least = best_possible(model)
    assert certificate is not None
    assert certificate.bound <= least + 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_cover_of_few_bundles_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    relief = rng.lognormal(0.0, 1.0, 10)
    cost, need = relief * rng.choice((1.0, 2.0), 10), float(relief.sum() * rng.random())
    chosen = cover(relief, cost, need)
    sets = (list(each) for size in range(11) for each in itertools.combinations(range(10), size))
    best = min(cost[each].sum() for each in sets if relief[each].sum() >= need)
    assert relief[chosen].sum() >= need
    assert cost[chosen].sum() == pytest.approx(best)
    assert list(relief[chosen]) == sorted(relief[chosen], reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_cover_of_many_bundles_is_within_a_hundredth_of_the_need(seed: int) -> None:
    rng = np.random.default_rng(seed)
    relief = rng.lognormal(0.0, 1.0, 300)
    need = float(relief.sum() * rng.uniform(0.05, 0.6))
    chosen = cover(relief, relief + 0.001, need)
    assert need <= relief[chosen].sum() <= need * 1.01


def test_a_cover_that_is_impossible_is_everything() -> None:
    assert sorted(cover(np.array([1.0, 2.0]), np.ones(2), 5.0)) == [0, 1]


@pytest.mark.slow
def test_the_exact_search_alone_solves_what_single_moves_cannot() -> None:
    solved = 0
    for seed in range(20):
        model = plain_model(seed, 3, 8, sigma=0.3, skew=1.0, mean=0.3)
        draft = Draft(model, AT_ONCE)
        before = cost_of(draft, draft.peak, draft.bundles.astype(np.float64))
        if not search(draft, draft.free_holdings):
            continue
        spent = sum(draft.cost_of(step.row, step.destination) for step in draft.steps)
        then = cost_of(draft, draft.peak, draft.bundles.astype(np.float64))
        assert then + spent < before
        best, _ = best_possible(model)
        solved += then + spent <= best + 0.02 * (before - best)
    assert solved >= 10


@pytest.mark.parametrize("seed", [7, 50])
def test_the_exact_search_counts_what_an_uneven_pool_costs(seed: int) -> None:
    """The moves of the best placement cost more than they gain in usage, but end with every broker in tolerance."""
    model = plain_model(seed, 3, 8, sigma=0.3, mean=0.3)
    draft = Draft(model, AT_ONCE)
    before = draft.total
    assert search(draft, draft.free_holdings)
    assert not draft.uneven
    assert draft.total < before
