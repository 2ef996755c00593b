"""`/v1/balancing`: where balance stands; pause and resume."""

from __future__ import annotations

import msgspec

from loadmanager.broker.node import Node
from loadmanager.leader.rebalancing import actions
from loadmanager.leader.rebalancing.status import balance_status
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.access import May
from loadmanager_api.openapi import answers
from loadmanager_api.plan_schemas import BalancingShown, PauseShown, PauseWish
from loadmanager_api.presenting_plans import balancing_shown, pause_shown
from loadmanager_api.routing import Acting, AuthorOf, ControlRouter, Permission, TheNode

router = ControlRouter(prefix="/v1/balancing", tags=["balance"])


@router.get("")
async def show_balancing(node: TheNode, acting: Acting) -> BalancingShown:
    """Show the last round's decision, moves under way, pauses, what is held back, and how even the brokers are."""
    rebalancer = acting.rebalancer
    status = await balance_status(rebalancer, node.decisions, node.settings.advertised)
    return balancing_shown(rebalancer, status)


@router.post("/pause", responses=answers(404, 409, 412))
async def pause(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: PauseWish) -> PauseShown:
    """Pause automatic moves and moves of plans: in the cluster, in a namespace, or from and to a broker."""
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    subject = actions.Subject(wish.namespace, wish.broker)
    changed = await actions.pause(node.policies, subject, author.or_named(wish.author), wish.reason)
    return _paused(node, may, changed=changed)


@router.post("/resume", responses=answers(409, 412))
async def resume(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: PauseWish) -> PauseShown:
    """End a pause: the cluster's, or that of the given namespace or broker. Other pauses stay."""
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    subject = actions.Subject(wish.namespace, wish.broker)
    changed = await actions.resume(node.policies, subject, author.or_named(wish.author), wish.reason)
    return _paused(node, may, changed=changed)


def _paused(node: Node, may: May, *, changed: bool) -> PauseShown:
    """What is paused, without namespaces that the sender may not view."""
    found = actions.paused(node.policies.current())
    seen = tuple(name for name in found.namespaces if may.has(AccessRole.VIEWER, name))
    return pause_shown(msgspec.structs.replace(found, namespaces=seen), changed=changed)
