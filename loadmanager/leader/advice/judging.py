"""What the leader does about plans that have advice now: which ones end by themselves, which one is under way, and
which ones may be begun. Pure; what appliers find (bounds, changes by others) comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmanager.leader.plans.advice import Advice, MoveBundles
from loadmanager.leader.plans.bounds import CLOCKS_APART_MS
from loadmanager.leader.plans.model import Plan, PlanState
from loadmanager.leader.plans.table import OVER, UNDECIDED, UNDER_WAY, PlanAction

KEPT_MS = 30 * 86_400_000
"""How long a plan with advice is kept once it is over: longer than any advice lives, so it cannot come again."""
GIVEN_UP = OVER - {PlanState.DONE, PlanState.VERIFIED}


class Ending(msgspec.Struct, frozen=True):
    """A plan that is over by itself, how, and why."""

    plan: Plan
    action: PlanAction
    reason: str


class Turn(msgspec.Struct, frozen=True):
    """What there is to do, in this order: write the endings, go on with what is under way; else begin one of `next`."""

    endings: tuple[Ending, ...]
    under_way: tuple[Plan, ...]
    """One, but for what another leader began at the same moment: the next one waits for all of them."""
    next: tuple[Plan, ...]
    """That may run as far as approval and time go, the most urgent first."""
    forgotten: tuple[Plan, ...]
    """Over for so long that nobody asks."""


def turn(plans: Sequence[Plan], now_ms: int, *, enabled: bool, review: bool = False) -> Turn:
    """For the plans as they stand. `enabled`: advice is followed without approval; `review`: but for moves."""
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
    """Of a plan that has some."""
    assert plan.advice is not None, f"plan {plan.id} has no advice"
    return plan.advice


def waits_for(plan: Plan, now_ms: int, *, enabled: bool, review: bool = False) -> str:
    """What has to happen before an undecided plan can run, as far as approval and time go."""
    change = advice_of(plan).change
    if plan.state is PlanState.PROPOSED and not (enabled and not (review and isinstance(change, MoveBundles))):
        return "it waits for approval"
    if isinstance(change, MoveBundles) and now_ms < change.not_before_ms:
        return f"it is not to be applied for another {(change.not_before_ms - now_ms) / 1000:.0f} s"
    return ""


def _ending(plan: Plan, plans: Sequence[Plan], now_ms: int) -> Ending | None:
    if plan.state not in UNDECIDED:
        return None
    if now_ms >= plan.until_ms:
        return Ending(plan, PlanAction.EXPIRE, "its time is over, and nobody had it applied")
    newer = next((other for other in plans if _replaces(other, plan, now_ms)), None)
    if newer is not None:
        return Ending(plan, PlanAction.SUPERSEDE, f"advice {newer.id} is of newer data, and about the same")
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
