"""`/v1/explain`, `/v1/decisions`, `/v1/what-if`, `/v1/plan`: why, what if, and what would be done now.

Any broker answers, from the topics of the log. One such answer may take as long as a dozen rounds of balancing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query
from fastapi.responses import Response

from loadmanager.cluster.journal import offset_of
from loadmanager.decisions.explaining.answer import BrokerAnswer, BundleAnswer
from loadmanager.decisions.explaining.deciding_again import Again
from loadmanager.decisions.explaining.projection import RecordShown, record_shown
from loadmanager.decisions.explaining.what_if import Preview, WhatIf
from loadmanager.decisions.record import Summary
from loadmanager_api.explain_schemas import WhatIfWish
from loadmanager_api.explaining import Explaining, Moment, shown
from loadmanager_api.openapi import answers, shape
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import ControlRouter
from statechannel.law.bundle import Bundle

router = ControlRouter(prefix="/v1", tags=["explain"])


class DecisionPage(msgspec.Struct):
    """Decisions, newest first. `next` is the `cursor` of the next page, null if there is none."""

    decisions: list[Summary]
    next: str | None


@router.get(
    "/explain/bundles/{tenant}/{namespace}/{hash_range}", responses=answers(404, 410, 412, json=shape(BundleAnswer))
)
async def explain_bundle(
    explaining: Explaining,
    tenant: str,
    namespace: str,
    hash_range: str,
    at: Moment,
    trying: Annotated[
        bool, Query(alias="try", description="whether to run the strategy on possible changes, too")
    ] = True,
) -> Response:
    """Explain why a bundle is where it is, why the last round did not move it, and what would move it, and where.

    With `at`, explain a moment that the logs still hold; 410 for one that they no longer hold.
    """
    bundle = Bundle.of(f"{tenant}/{namespace}", hash_range)
    return shown(await explaining.bundle(bundle, at, trying=trying))


@router.get("/explain/brokers/{broker}", responses=answers(404, 410, 412, json=shape(BrokerAnswer)))
async def explain_broker(explaining: Explaining, broker: str, at: Moment) -> Response:
    """Explain how full a broker is, with what, and why no (more) bundles were taken from it or given to it."""
    return shown(await explaining.broker(broker, at))


@router.get("/decisions", responses=answers(json=shape(DecisionPage)))
async def list_decisions(
    explaining: Explaining,
    paging: Paging,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List every round of every leader, also rounds that did nothing, newest first."""
    found = await explaining.listed(limit, paging.read(cursor, offset_of))
    return shown(DecisionPage(found, paging.next(found[-1].offset if len(found) == limit else None)))


@router.get("/decisions/{decision_id}", responses=answers(404, 412, json=shape(RecordShown)))
async def show_decision(explaining: Explaining, decision_id: str) -> Response:
    """Show one decision (`epoch.round`): its moves with their status, what was weighed and refused, its settings."""
    return shown(record_shown(await explaining.decision(decision_id)))


@router.get("/decisions/{decision_id}/again", responses=answers(404, 412, json=shape(Again)))
async def decide_again(explaining: Explaining, decision_id: str) -> Response:
    """Run the strategy again on exactly the same input. `same` tells whether the result is the same; null: not
    possible.
    """
    return shown(await explaining.decide_again(decision_id))


@router.post("/what-if", responses=answers(409, 410, 412, json=shape(WhatIf)))
async def what_if(explaining: Explaining, wish: WhatIfWish, at: Moment) -> Response:
    """Show the decision under changed assumptions, beside the decision without them. Changes nothing."""
    return shown(await explaining.what_if(wish.edits(), at))


@router.get("/plan", responses=answers(409, 412, json=shape(Preview)))
async def preview_plan(explaining: Explaining) -> Response:
    """Show what a round of balancing would do now. Changes nothing."""
    return shown(await explaining.preview())
