"""`/v1/advice`: what the load history advises, what becomes of it, and what administrators say of it.

Any broker answers; the leader applies what is approved. Nothing is applied because it was published.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.node import Node
from loadmanager.leader.advice.model import Verdict
from loadmanager_api.advice_schemas import AdviceShown, AdviceSummary, AdviceWished, VerdictWished
from loadmanager_api.authorship import Author
from loadmanager_api.crossing import ControlRouter
from loadmanager_api.kept import Acting, TheNode
from loadmanager_api.presenting_advice import advice_of, advice_shown, summary_shown

router = ControlRouter(prefix="/v1/advice", tags=["advice"])


@router.get("")
async def list_advice(
    node: TheNode, acting: Acting, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> list[AdviceSummary]:
    """Of the newest data first."""
    await node.advice.refresh()
    return [summary_shown(entry, acting.advising.waiting(entry.id)) for entry in node.advice.all()[:limit]]


@router.post("", status_code=201)
async def publish(node: TheNode, acting: Acting, wish: AdviceWished) -> AdviceShown:
    """Propose it, to be approved. The same advice again changes nothing. 412: out of bounds, stale, of another cluster;
    409: too much advice waits already."""
    entry = await node.advice.publish(advice_of(wish), node.settings)
    return advice_shown(entry, acting.advising.waiting(entry.id))


@router.get("/{advice_id}")
async def show_advice(node: TheNode, acting: Acting, advice_id: str) -> AdviceShown:
    """All of it: where it comes from, what it promises, what has become of it."""
    await node.advice.refresh()
    return advice_shown(node.advice.get(advice_id), acting.advising.waiting(advice_id))


@router.post("/{advice_id}/approve")
async def approve(node: TheNode, acting: Acting, author: Author, advice_id: str, wish: VerdictWished) -> AdviceShown:
    """The leader may apply it: soon, within its bounds, if nobody has changed since what it is about."""
    return await _say(node, acting, advice_id, Verdict.APPROVE, author, wish)


@router.post("/{advice_id}/reject")
async def reject(node: TheNode, acting: Acting, author: Author, advice_id: str, wish: VerdictWished) -> AdviceShown:
    """It may not. 409 once it is applied: then `withdraw`."""
    return await _say(node, acting, advice_id, Verdict.REJECT, author, wish)


@router.post("/{advice_id}/withdraw")
async def withdraw(node: TheNode, acting: Acting, author: Author, advice_id: str, wish: VerdictWished) -> AdviceShown:
    """The leader undoes it, where nobody else has changed it since."""
    return await _say(node, acting, advice_id, Verdict.WITHDRAW, author, wish)


async def _say(
    node: Node, acting: Incarnation, advice_id: str, verdict: Verdict, author: str, wish: VerdictWished
) -> AdviceShown:
    entry = await node.advice.review(advice_id, verdict, author, wish.reason)
    return advice_shown(entry, acting.advising.waiting(advice_id))
