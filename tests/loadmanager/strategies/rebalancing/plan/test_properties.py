"""What holds for every plan, over thousands of random models under rules of every kind."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import CANDIDATES_KEPT, Decision, Stage
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.scale import UNEVEN
from tests.loadmanager.strategies.rebalancing.plan.random_models import after, plain_model, ruled_model

AT_ONCE = Settings(balancing_budget=1.0, balancing_moves_per_round=100_000)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
SEEDS = st.integers(0, 1_000_000)


def decide(model: ClusterModel, chosen: Settings = AT_ONCE) -> Decision:
    return Plan().decide(model, chosen)


@MANY
@given(SEEDS)
def test_no_hard_rule_is_broken_and_every_group_of_moves_gains(seed: int) -> None:
    model = ruled_model(seed)
    decision = decide(model)
    gains: dict[int, float] = defaultdict(float)
    for number, move in enumerate(decision.moves):
        assert move.destination is not None
        row = model.bundles.ids.index(move.bundle)
        source, destination = model.brokers.rows[move.source], model.brokers.rows[move.destination]
        assert source != destination
        assert not model.bundles.in_flight[row]
        assert model.constraints.fixed[row] == FREE
        assert not model.brokers.paused[[source, destination]].any()
        assert model.brokers.known[destination]
        assert not model.brokers.draining[destination]
        assert model.constraints.forbidden[model.constraints.kind[row], destination] == ALLOWED
        if move.stage not in (Stage.POLICY, Stage.DRAIN) and not model.bundles.changed[row]:
            assert destination not in model.bundles.left.get(row, ()), "it went back within its rest time"
            assert model.bundles.moved_s[row] >= model.constraints.rest_s[row] * (
                0.1 if move.stage is Stage.OVERLOAD else 1.0
            )
        gains[move.group or -number - 1] += move.gain
    assert all(gain > 0 for gain in gains.values())
    result = after(model, decision.moves)
    held, most = result.brokers.bundles, model.brokers.max_bundles
    assert ((held <= most) | (held <= model.brokers.bundles)).all()


@pytest.mark.slow
@MANY
@given(SEEDS)
def test_every_bundle_is_moved_or_accounted_for_once(seed: int) -> None:
    model = ruled_model(seed)
    decision = decide(model)
    assert len({move.bundle for move in decision.moves}) == len(decision.moves)
    assert len(decision.candidates) <= CANDIDATES_KEPT
    assert [each.gain for each in decision.candidates] == sorted((e.gain for e in decision.candidates), reverse=True)
    counted = len(decision.moves) + len(decision.candidates) + sum(decision.counts.values())
    assert counted <= len(model.bundles)
    assert all(each.rule and each.detail for each in decision.candidates)
    assert decision.reason


@MANY
@given(SEEDS)
def test_planning_comes_to_an_end(seed: int) -> None:
    model = ruled_model(seed)
    for _ in range(8):
        decision = decide(model)
        if not decision.moves:
            return
        model = after(model, decision.moves)
    pytest.fail("moves in each of eight rounds on the same loads")


@pytest.mark.slow
@MANY
@given(SEEDS, st.sampled_from((3, 6, 12)), st.sampled_from((10, 60, 300)), st.integers(1, 3))
def test_a_plan_that_was_carried_out_is_followed_by_none(seed: int, brokers: int, bundles: int, resources: int) -> None:
    model = plain_model(seed, brokers, bundles, dimensions=resources)
    decision = decide(model)
    again = decide(after(model, decision.moves))
    assert len(again.moves) == 0 or any(each.rule == "budget of the round" for each in decision.candidates)


@pytest.mark.slow
@MANY
@given(SEEDS, st.integers(1, 3))
def test_the_objective_falls_by_what_the_moves_say(seed: int, resources: int) -> None:
    """Or by more: that a pool is even at last is counted for moves that only make sense together, not for others."""
    model = plain_model(seed, 6, 60, dimensions=resources)
    decision = decide(model)
    draft = Draft(model, AT_ONCE)
    before, rows = draft.total, {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    for move in decision.moves:
        assert move.destination is not None
        ends = model.brokers.rows[move.source], model.brokers.rows[move.destination]
        draft.make(rows[move.bundle], *ends, move.stage, gain=move.gain)
    became_even = UNEVEN * (len(Draft(model, AT_ONCE).uneven) - len(draft.uneven))
    falls, gains = before - draft.total, sum(move.gain for move in decision.moves)
    assert falls == pytest.approx(gains, abs=1e-6) or falls == pytest.approx(gains + became_even, abs=1e-6)


@MANY
@given(SEEDS, st.sampled_from(("tight", "default", "loose")))
def test_small_bundles_reach_tolerance_with_hardly_more_load_than_needed(seed: int, tolerance: str) -> None:
    model = plain_model(seed, 8, 800, sigma=0.7)
    chosen = Settings(
        balancing_budget=1.0, balancing_moves_per_round=100_000, balancing_tolerance=cast("float", tolerance)
    )
    decision = decide(model, chosen)
    assert decision.spread_after <= max(chosen.tolerance, 0.01 / 0.4) + 1e-6
    assert decision.certificate is not None
    assert decision.certificate.ratio <= 1.05


@pytest.mark.slow
@MANY
@given(SEEDS)
def test_the_same_model_gets_the_same_decision(seed: int) -> None:
    assert decide(ruled_model(seed)) == decide(ruled_model(seed))


@MANY
@given(SEEDS)
def test_the_model_is_not_changed(seed: int) -> None:
    model = ruled_model(seed)
    before = {name: np.array(getattr(model.brokers, name)) for name in ("used", "bundles", "capacity")}
    digest = model.digest
    decide(model)
    assert all(np.array_equal(getattr(model.brokers, name), column) for name, column in before.items())
    assert ruled_model(seed).digest == digest
