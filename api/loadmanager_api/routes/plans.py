"""`/v1/plans`: changes that are looked at before they are made: moves of the strategy, bulk unloads, advice of the load
history. Any broker answers; the leader runs them. Nothing is done because it was published.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query

from loadmanager.broker.incarnation import Incarnation
from loadmanager.leader.advice.publishing import publish
from loadmanager.leader.plans.advice import Advice
from loadmanager.leader.plans.model import Plan, PlanKind
from loadmanager.leader.plans.table import PlanAction
from loadmanager.leader.rebalancing.operating import Operating, Unload
from loadmanager_api.advice_schemas import AdviceWished
from loadmanager_api.authorship import Author
from loadmanager_api.crossing import ControlRouter
from loadmanager_api.kept import Acting, TheNode
from loadmanager_api.plan_schemas import PlanShown, PlanSummary, ProposalWish, UnloadWish, Wish
from loadmanager_api.presenting_plans import plan_shown, summary_shown

router = ControlRouter(prefix="/v1/plans", tags=["balance"])


@router.get("")
async def list_plans(
    node: TheNode,
    acting: Acting,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    kind: PlanKind | None = None,
) -> list[PlanSummary]:
    """List plans, newest first: of one kind, or of all."""
    operating = Operating(acting.rebalancer)
    return [summary_shown(operating, plan) for plan in operating.plans() if kind in (None, plan.kind)][:limit]


@router.post("", status_code=201)
async def propose(node: TheNode, acting: Acting, author: Author, wish: ProposalWish) -> PlanShown:
    """Propose what the strategy would do now, as a plan that waits for approval. 409 if it would do nothing."""
    overrides = {
        name: value for name, value in (("strategy", wish.strategy), ("tolerance", wish.tolerance)) if value is not None
    }
    return _shown(acting, await Operating(acting.rebalancer).propose(wish.author or author, wish.reason, overrides))


@router.post("/unload", status_code=201)
async def unload(node: TheNode, acting: Acting, author: Author, wish: UnloadWish) -> PlanShown:
    """Unload all bundles of a namespace or broker in waves, or move them to one broker. Answers at once.

    GET of the plan shows its progress, its `cancel` stops it. With `review` it waits for approval.
    """
    what = Unload(wish.namespace, wish.broker, wish.to, wish.wave)
    operating = Operating(acting.rebalancer)
    return _shown(acting, await operating.unload(what, wish.author or author, wish.reason, review=wish.review))


@router.post("/advice", status_code=201)
async def publish_advice(node: TheNode, acting: Acting, wish: AdviceWished) -> PlanShown:
    """Propose advice as a plan that waits for approval. The same advice again changes nothing.

    412: out of bounds, stale, or of another cluster. 409: too much advice waits already.
    """
    settings, advice = node.settings, msgspec.convert(wish.model_dump(), Advice)
    return _shown(acting, await publish(node.plans, advice, settings.cluster, node.world.wall_ms(), settings))


@router.get("/{plan_id}")
async def show_plan(node: TheNode, acting: Acting, plan_id: str) -> PlanShown:
    """Show one plan, with the present status of each move."""
    return _shown(acting, await Operating(acting.rebalancer).plan(plan_id))


@router.post("/{plan_id}/approve")
async def approve(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Approve a plan: it may run. 409 if somebody else was faster, or if all its bundles have moved since."""
    return await _act(acting, author, plan_id, PlanAction.APPROVE, wish)


@router.post("/{plan_id}/reject")
async def reject(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Reject a plan: it must not run."""
    return await _act(acting, author, plan_id, PlanAction.REJECT, wish)


@router.post("/{plan_id}/run")
async def run(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Run a plan: the leader begins its moves, within the limits. Bundles that have moved since are skipped."""
    return await _act(acting, author, plan_id, PlanAction.RUN, wish)


@router.post("/{plan_id}/cancel")
async def cancel(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Cancel a plan: no more of its moves begin; those under way are completed."""
    return await _act(acting, author, plan_id, PlanAction.CANCEL, wish)


@router.post("/{plan_id}/verify")
async def verify(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Compare a plan with the present: which of its moves still hold, and how full its brokers are against the
    prediction.
    """
    return _shown(acting, await Operating(acting.rebalancer).verify(plan_id, wish.author or author))


@router.post("/{plan_id}/undo", status_code=201)
async def undo(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Propose a plan that moves back every bundle that still is where this plan put it; `left_out` lists the others."""
    return _shown(acting, await Operating(acting.rebalancer).undo(plan_id, wish.author or author, wish.reason))


@router.post("/{plan_id}/withdraw")
async def withdraw(node: TheNode, acting: Acting, author: Author, plan_id: str, wish: Wish) -> PlanShown:
    """Withdraw a plan: the leader undoes it at once, except what somebody else has changed since."""
    return await _act(acting, author, plan_id, PlanAction.WITHDRAW, wish)


async def _act(acting: Incarnation, author: str, plan_id: str, action: PlanAction, wish: Wish) -> PlanShown:
    return _shown(acting, await Operating(acting.rebalancer).act(plan_id, action, wish.author or author, wish.reason))


def _shown(acting: Incarnation, plan: Plan) -> PlanShown:
    return plan_shown(Operating(acting.rebalancer), plan)
