"""`plan` against the exact optimum of small models of every kind, and its certificate against what had to move.

A line for each kind: how often tolerance was reached where it can be, how much more the plan's moves cost than the
cheapest that do as well, and how often the certificate claimed too much: of plans without a limit, cut short by the
budget, and by the number of moves. In the environment: `PLAN_EXACT_SEEDS=N`, so many models of each kind;
`PLAN_EXACT_SIZE=8x60`, of at most so many brokers and bundles; `PLAN_EXACT_S=60`, no further model of a kind after so
many seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bench.figures import emit
from bench.plan_instances import KINDS, instance
from bench.plan_optimum import SLACK, Problem
from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.model.load import RESOURCES
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft

SEEDS = int(os.environ.get("PLAN_EXACT_SEEDS", "200"))
BROKERS, BUNDLES = map(int, os.environ.get("PLAN_EXACT_SIZE", "4x12").split("x"))
LONGEST_S = float(os.environ.get("PLAN_EXACT_S", "inf"))
WHOLE = Settings().model_copy(update={"balancing_budget": 100.0, "balancing_moves_per_round": 100_000})
"""More than any setting allows: nothing cuts a plan short."""
BUDGET = Settings(balancing_budget=0.1)
TWO_MOVES = Settings(balancing_budget=1.0, balancing_moves_per_round=2)
FAR = 1.2
NEAR = 1.02


class Compared(msgspec.Struct, frozen=True):
    """One model."""

    reachable: bool
    """Some placement that keeps every rule has no broker out of tolerance, except by load that can't leave it."""
    reached: bool
    ratio: float
    """What the plan's moves cost / what the cheapest ones cost by which tolerance is reached; 1 if nothing moves.

    Where it can't be reached they are not comparable: a plan weighs the fullest broker most, and what moves cost."""
    left: float
    """Excess that the plan leaves and the optimum doesn't, as usage summed over brokers."""
    too_much: tuple[str, ...]
    """Which certificates claim more than the optimum moves."""
    tightness: tuple[float, ...]
    """Bound / optimum, of certificates where something has to move."""


def run(kind: str) -> None:
    """All figures of this bench; it needs no log, so `kind` doesn't matter."""
    del kind
    everything: list[Compared] = []
    for name in KINDS:
        found = list(_of(name))
        _emit(name, found)
        everything += found
    _emit("all kinds", everything)


def _of(kind: str) -> Iterator[Compared]:
    begin = time.monotonic()
    for seed in range(SEEDS):
        if time.monotonic() - begin > LONGEST_S:
            return
        if (found := compared(instance(kind, seed, brokers=BROKERS, bundles=BUNDLES))) is not None:
            yield found


def _emit(name: str, found: Iterable[Compared]) -> None:
    each_of = list(found)
    can = [each for each in each_of if each.reachable]
    reached = sum(each.reached for each in can)
    ratios = [each.ratio for each in each_of if each.reached]
    emit("plan-exact", f"tolerance reached, {name}", reached, f"of {len(can)}", target="all", met=reached == len(can))
    worst = max(ratios)
    emit(
        "plan-exact", f"cost of moves ÷ optimum, {name}", float(np.mean(ratios)), "times", target=f"≤ {NEAR}, {FAR}",
        met=bool(np.mean(ratios) <= NEAR and worst <= FAR), worst=round(worst, 3), models=len(ratios),
        far=sum(ratio > FAR for ratio in ratios),
        left_worst=round(max(each.left for each in each_of), 4),
    )  # fmt: skip
    claims = sum(len(each.too_much) for each in each_of)
    tight = [each for one in each_of for each in one.tightness]
    emit(
        "plan-exact", f"certificates that claim too much, {name}", claims, f"of {3 * len(each_of)}", target="0",
        met=claims == 0, tightness=round(float(np.mean(tight)), 3),
    )  # fmt: skip


def compared(model: ClusterModel) -> Compared | None:
    """The model's figures; None if no broker takes part."""
    draft, decision = Draft(model, WHOLE), Plan().decide(model, WHOLE)
    if not draft.scale.takes_part.any():
        return None
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    moved = np.array([rows[move.bundle] for move in decision.moves], np.int64)
    resting = moved[
        ~draft.eligibility.rested[moved] & ~(draft.eligibility.misplaced | draft.eligibility.drained)[moved]
    ]
    problem = Problem(model, draft.scale, rested=True, urgent=bool(resting.size))
    places = placed(model, decision)
    state = problem.state(places)
    best = problem.best(state)
    reachable = best.excess <= SLACK and not best.barred
    cost = draft.costs_of(np.arange(problem.m), np.arange(problem.n))
    spent = float(cost[moved, places[moved]].sum())
    least = problem.least(cost, state)
    too_much, tightness = claims(model, draft, state_of=decision)
    return Compared(
        reachable=reachable,
        reached=state.excess <= SLACK and not state.barred,
        ratio=1.0 if spent <= SLACK else spent / least if least > SLACK else float("inf"),
        left=max(0.0, state.excess - best.excess),
        too_much=too_much,
        tightness=tightness,
    )


def claims(model: ClusterModel, draft: Draft, state_of: Decision) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The certificates of the plan, whole and cut short, against the least that the best placements move: those that
    claim too much, and how tight they are.

    The best: fewest bundles where they may not be, then the least excess, then the least idleness; rest times and ways
    back are no excuse."""
    problem = Problem(model, draft.scale, rested=False)
    best = problem.best(problem.state(placed(model, state_of)))
    decisions = {
        "whole": state_of,
        "budget": Plan().decide(model, BUDGET),
        "two moves": Plan().decide(model, TWO_MOVES),
    }
    least: dict[str, float] = {}
    too_much: list[str] = []
    tightness: list[float] = []
    for name, decision in decisions.items():
        found = decision.certificate
        if found is None:
            continue
        if found.resource not in least:
            at = draft.scale.resources.index(RESOURCES.index(found.resource))
            least[found.resource] = problem.least(_loads(model, draft, at), best)
        optimum = least[found.resource]
        if found.bound > optimum + 1e-5 * (1 + optimum):
            at = draft.scale.resources.index(RESOURCES.index(found.resource))
            optimum = least[found.resource] = problem.stricter().least(_loads(model, draft, at), best)
        if found.bound > optimum + 1e-5 * (1 + optimum):
            too_much.append(name)
        if optimum > SLACK:
            tightness.append(found.bound / optimum)
    return tuple(too_much), tuple(tightness)


def placed(model: ClusterModel, decision: Decision) -> np.ndarray:
    """(m,): where each bundle is after the moves."""
    places, rows = model.bundles.owner.copy(), {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    for move in decision.moves:
        assert move.destination is not None
        places[rows[move.bundle]] = model.brokers.rows[move.destination]
    return places


def _loads(model: ClusterModel, draft: Draft, at: int) -> Floats:
    load = model.bundles.load[:, draft.scale.resources[at]] * draft.scale.unit[at]
    return np.repeat(load[:, None], len(model.brokers), axis=1)
