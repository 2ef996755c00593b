"""Decides what the leader does now about plans with advice: which end, which is under way, which may begin.

Pure. Appliers add what they find: bounds, and changes by others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmanager.leader.plans.advice import Advice, MoveBundles
from loadmanager.leader.plans.bounds import CLOCKS_APART_MS
from loadmanager.leader.plans.model import Plan, PlanState
from loadmanager.leader.plans.table import OVER, UNDECIDED, UNDER_WAY, PlanAction

KEPT_MS = 30 * 86_400_000
"""How long a finished plan with advice is kept: longer than advice lives, so the same advice cannot come again."""
GIVEN_UP = OVER - {PlanState.DONE, PlanState.VERIFIED}


class Ending(msgspec.Struct, frozen=True):
    """A plan that ends without an operator, how, and why."""

    plan: Plan
    action: PlanAction
    reason: str


class Turn(msgspec.Struct, frozen=True):
    """What to do, in this order: write the endings, continue what is under way; else begin one of `next`."""

    endings: tuple[Ending, ...]
    under_way: tuple[Plan, ...]
    """One plan, or more if another leader began one at the same moment; the next plan waits for all of them."""
    next: tuple[Plan, ...]
    """Plans that may run, by approval and time; the most urgent first."""
    forgotten: tuple[Plan, ...]
    """Plans that ended so long ago that they can be deleted."""


def turn(plans: Sequence[Plan], now_ms: int, *, enabled: bool, review: bool = False) -> Turn:
    """The turn for these plans. `enabled`: advice needs no approval; `review`: except for moves."""
    advised = [plan for plan in plans if plan.advice is not None]
    endings = [ending for plan in advised if (ending := _ending(plan, advised, now_ms)) is not None]
    ended = {ending.plan.id for ending in endings}
    may = [
        plan
        for plan in advised
        if plan.id not in ended
        and plan.state in UNDECIDED
        and not waits_for(plan, now_ms, enabled=enabled, review=review)
    ]
    return Turn(
        tuple(endings),
        tuple(plan for plan in advised if plan.state in UNDER_WAY),
        tuple(sorted(may, key=lambda plan: (plan.until_ms, plan.id))),
        tuple(plan for plan in advised if _is_forgotten(plan, now_ms)),
    )


def advice_of(plan: Plan) -> Advice:
    """The advice of a plan that has some."""
    assert plan.advice is not None, f"plan {plan.id} has no advice"
    return plan.advice


def waits_for(plan: Plan, now_ms: int, *, enabled: bool, review: bool = False) -> str:
    """Which approval or time an undecided plan waits for; empty if none."""
    change = advice_of(plan).change
    if plan.state is PlanState.PROPOSED and not (enabled and not (review and isinstance(change, MoveBundles))):
        return "it waits for approval"
    if isinstance(change, MoveBundles) and now_ms < change.not_before_ms:
        return f"it may be applied in {(change.not_before_ms - now_ms) / 1000:.0f} s at the earliest"
    return ""


def _ending(plan: Plan, plans: Sequence[Plan], now_ms: int) -> Ending | None:
    if plan.state not in UNDECIDED:
        return None
    if now_ms >= plan.until_ms:
        return Ending(plan, PlanAction.EXPIRE, "its time is over, and nobody applied it")
    newer = next((other for other in plans if _replaces(other, plan, now_ms)), None)
    if newer is not None:
        return Ending(plan, PlanAction.SUPERSEDE, f"advice {newer.id} has newer data on the same subject")
    return None


def _replaces(other: Plan, plan: Plan, now_ms: int) -> bool:
    mine, its = advice_of(plan), advice_of(other)
    newer = mine.provenance.data_to_ms < its.provenance.data_to_ms <= now_ms + CLOCKS_APART_MS
    return newer and other.state not in GIVEN_UP and bool(its.targets & mine.targets)


def _is_forgotten(plan: Plan, now_ms: int) -> bool:
    if plan.state not in OVER:
        return False
    done_ms = plan.steps[-1].at_ms if plan.steps else plan.proposed_ms
    return now_ms - max(done_ms, advice_of(plan).expires_ms) > KEPT_MS
