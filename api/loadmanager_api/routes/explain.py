"""`/v1/explain`, `/v1/decisions`, `/v1/what-if`, `/v1/plan`: why, what if, and what would be done now.

Any broker answers, from the topics of the log. One such answer may take as long as a dozen rounds of balancing.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from loadmanager.decisions.explaining.projection import record_shown
from loadmanager.decisions.log import LISTED_AT_MOST
from loadmanager_api.crossing import ControlRouter
from loadmanager_api.explain_schemas import WhatIfWish
from loadmanager_api.explaining import Explaining, Moment, shown
from statechannel.law.bundle import Bundle

router = ControlRouter(prefix="/v1", tags=["explain"])


@router.get("/explain/bundles/{tenant}/{namespace}/{hash_range}")
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


@router.get("/explain/brokers/{broker}")
async def explain_broker(explaining: Explaining, broker: str, at: Moment) -> Response:
    """Explain how full a broker is, with what, and why no (more) bundles were taken from it or given to it."""
    return shown(await explaining.broker(broker, at))


@router.get("/decisions")
async def list_decisions(
    explaining: Explaining,
    limit: Annotated[int, Query(ge=1, le=LISTED_AT_MOST)] = 100,
    before: Annotated[int | None, Query(ge=0, description="only entries below this offset")] = None,
) -> Response:
    """List every round of every leader, also rounds that did nothing, newest first. `next` is the next `before`."""
    found = await explaining.listed(limit, before)
    return shown({"decisions": found, "next": found[-1].offset if len(found) == limit else None})


@router.get("/decisions/{decision_id}")
async def show_decision(explaining: Explaining, decision_id: str) -> Response:
    """Show one decision (`epoch.round`): its moves with their status, what was weighed and refused, its settings."""
    return shown(record_shown(await explaining.decision(decision_id)))


@router.get("/decisions/{decision_id}/again")
async def decide_again(explaining: Explaining, decision_id: str) -> Response:
    """Run the strategy again on exactly the same input. `same` tells whether the result is the same; null: not
    possible.
    """
    return shown(await explaining.decide_again(decision_id))


@router.post("/what-if")
async def what_if(explaining: Explaining, wish: WhatIfWish, at: Moment) -> Response:
    """Show the decision under changed assumptions, beside the decision without them. Changes nothing."""
    return shown(await explaining.what_if(wish.edits(), at))


@router.get("/plan")
async def preview_plan(explaining: Explaining) -> Response:
    """Show what a round of balancing would do now. Changes nothing."""
    return shown(await explaining.preview())
