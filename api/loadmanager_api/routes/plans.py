"""`/v1/plans`: changes that are looked at before they are made: moves of the strategy, bulk unloads, advice of the load
history. Any broker answers; the leader runs them. Nothing is done because it was published.
"""

from __future__ import annotations

import msgspec

from loadmanager.broker.incarnation import Incarnation
from loadmanager.leader.plans.advice import Advice
from loadmanager.leader.plans.plan import Plan, PlanKind, PlanState
from loadmanager.leader.plans.store import publish
from loadmanager.leader.plans.table import PlanAction
from loadmanager.leader.rebalancing.actions import OperatorActions, Unload
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.sender import Sender
from loadmanager_api.advice_schemas import AdviceWished
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.plan_schemas import PlanShown, PlanSummary, ProposalWish, UnloadWish, Wish
from loadmanager_api.presenting_plans import plan_shown, summary_shown
from loadmanager_api.routing import Acting, AuthorOf, ControlRouter, Permission, TheNode

router = ControlRouter(prefix="/v1/plans", tags=["balance"])


@router.get("")
async def list_plans(
    node: TheNode,
    acting: Acting,
    paging: Paging,
    kind: PlanKind | None = None,
    state: PlanState | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> list[PlanSummary]:
    """List plans, newest first: of one kind or state, or all."""
    found = [each for each in node.plans.all() if kind in (None, each.kind) and state in (None, each.state)]
    return [
        summary_shown(acting.rebalancer, plan) for plan in paging.of(found, _newest_first, limit, cursor, r"\d+\..+")
    ]


def _newest_first(plan: Plan) -> str:
    return f"{2**53 - plan.proposed_ms}.{plan.id}"


@router.post("", status_code=201, responses=answers(409, 412))
async def propose(node: TheNode, acting: Acting, author: AuthorOf, wish: ProposalWish) -> PlanShown:
    """Propose what the strategy would do now, as a plan that waits for approval. 409 if it would do nothing."""
    overrides = {
        name: value for name, value in (("strategy", wish.strategy), ("tolerance", wish.tolerance)) if value is not None
    }
    return _shown(
        acting, await OperatorActions(acting.rebalancer).propose(author.or_named(wish.author), wish.reason, overrides)
    )


@router.post("/unload", status_code=201, responses=answers(404, 409, 412))
async def unload(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: UnloadWish) -> PlanShown:
    """Unload all bundles of a namespace or broker in waves, or move them to one broker. Answers at once.

    GET of the plan shows its progress, its `cancel` stops it. With `review` it waits for approval.
    """
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    what = Unload(wish.namespace, wish.broker, wish.to, wish.wave)
    actions = OperatorActions(acting.rebalancer)
    return _shown(acting, await actions.unload(what, author.or_named(wish.author), wish.reason, review=wish.review))


@router.post("/advice", status_code=201, responses=answers(409, 412))
async def publish_advice(node: TheNode, acting: Acting, wish: AdviceWished) -> PlanShown:
    """Propose advice as a plan that waits for approval. The same advice again changes nothing.

    412: out of bounds, stale, or of another cluster. 409: too much advice waits already.
    """
    settings, advice = node.settings, msgspec.convert(wish.model_dump(), Advice)
    return _shown(acting, await publish(node.plans, advice, settings.cluster, node.world.wall_ms(), settings))


@router.get("/{plan_id}", responses=answers(404))
async def show_plan(node: TheNode, acting: Acting, plan_id: str) -> PlanShown:
    """Show one plan, with the present status of each move."""
    return _shown(acting, await OperatorActions(acting.rebalancer).plan(plan_id))


@router.post("/{plan_id}/approve", responses=answers(404, 409))
async def approve(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Approve a plan: it may run. 409 if somebody else was faster, or if all its bundles have moved since."""
    return await _act(acting, author, plan_id, PlanAction.APPROVE, wish)


@router.post("/{plan_id}/reject", responses=answers(404, 409))
async def reject(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Reject a plan: it must not run."""
    return await _act(acting, author, plan_id, PlanAction.REJECT, wish)


@router.post("/{plan_id}/run", responses=answers(404, 409))
async def run(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Run a plan: the leader begins its moves, within the limits. Bundles that have moved since are skipped."""
    return await _act(acting, author, plan_id, PlanAction.RUN, wish)


@router.post("/{plan_id}/cancel", responses=answers(404, 409))
async def cancel_plan(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Cancel a plan: no more of its moves begin; those under way are completed."""
    return await _act(acting, author, plan_id, PlanAction.CANCEL, wish)


@router.post("/{plan_id}/verify", responses=answers(404, 409))
async def verify(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Compare a plan with the present: which of its moves still hold, and how full its brokers are against the
    prediction.
    """
    return _shown(acting, await OperatorActions(acting.rebalancer).verify(plan_id, author.or_named(wish.author)))


@router.post("/{plan_id}/undo", status_code=201, responses=answers(404, 409))
async def undo(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Propose a plan that moves back every bundle that still is where this plan put it; `left_out` lists the others."""
    by = author.or_named(wish.author)
    return _shown(acting, await OperatorActions(acting.rebalancer).undo(plan_id, by, wish.reason))


@router.post("/{plan_id}/withdraw", responses=answers(404, 409))
async def withdraw(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Withdraw a plan: the leader undoes it at once, except what somebody else has changed since."""
    return await _act(acting, author, plan_id, PlanAction.WITHDRAW, wish)


async def _act(acting: Incarnation, author: Sender, plan_id: str, action: PlanAction, wish: Wish) -> PlanShown:
    by = author.or_named(wish.author)
    return _shown(acting, await OperatorActions(acting.rebalancer).act(plan_id, action, by, wish.reason))


def _shown(acting: Incarnation, plan: Plan) -> PlanShown:
    return plan_shown(acting.rebalancer, plan)
