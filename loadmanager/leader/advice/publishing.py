"""Turns advice into a plan that waits for a decision. Anybody may publish: publishing alone changes nothing."""

from __future__ import annotations

from loadmanager.errors import Conflict, NotFound
from loadmanager.leader.plans.advice import Advice, ChangeSettings, check_seal, sealed
from loadmanager.leader.plans.bounds import check, check_steps
from loadmanager.leader.plans.model import Plan, PlanKind, PlanState
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.table import OVER
from loadmanager.settings import Settings

OPEN_AT_MOST = 100
"""The most open plans with advice; a job that advises more than people can review is a mistake."""


async def publish(store: PlanStore, advice: Advice, cluster: str, now_ms: int, present: Settings | None = None) -> Plan:
    """Propose the advice; the same advice again changes nothing. Raises Invalid, Conflict, LogUnavailable.

    `present` are the cluster's settings, if known: changes that are too large a step from them are refused.
    """
    advice = advice if advice.id else sealed(advice)
    check_seal(advice)
    check(advice, cluster, now_ms)
    if present is not None and isinstance(advice.change, ChangeSettings):
        check_steps(advice.change, present)
    await store.refresh()
    plan = Plan(
        id=advice.id,
        kind=PlanKind.ADVICE,
        state=PlanState.PROPOSED,
        proposed_ms=now_ms,
        author=advice.provenance.job,
        reason=advice.reason,
        advice=advice,
    )
    try:
        return store.get(plan.id)
    except NotFound:
        pass
    if sum(each.advice is not None and each.state not in OVER for each in store.all()) >= OPEN_AT_MOST:
        raise Conflict(f"{OPEN_AT_MOST} pieces of advice wait for a decision: approve or reject some first")
    try:
        return await store.add(plan)
    except Conflict:
        return store.get(plan.id)  # somebody has published the same at this moment
