"""`/v1/explain`, `/v1/decisions`, `/v1/what-if`, `/v1/plan`: why, what if, and what would be done now.

Any broker answers, from the topics of the log. One such answer may take as long as a dozen rounds of balancing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import Response
from pydantic import Field

from loadmanager.cluster.journal import offset_of
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.decisions.codec import kept_memory
from loadmanager.decisions.explaining.broker import BrokerAnswer
from loadmanager.decisions.explaining.bundle import BundleAnswer
from loadmanager.decisions.explaining.explainer import Explainer
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.explaining.what_if import (
    BROKERS_AT_MOST,
    Again,
    Edits,
    ExplainedRecord,
    Preview,
    WhatIf,
    record_shown,
)
from loadmanager.decisions.explaining.whereabouts import ChannelReader
from loadmanager.decisions.record import Summary
from loadmanager.errors import Invalid, Unavailable
from loadmanager.leader.quarantine.evidence import Quarantine
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.model.policies.model import Policy
from loadmanager_api.openapi import answers, shape
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import ControlRouter
from loadmanager_api.shapes import WHOLE, Body
from loadmanager_api.state import kept, node_behind
from statechannel.law.bundle import Bundle

LATEST_MS = 2**53


class LiveView:
    """The live view of this broker; it need not lead."""

    def __init__(self, deciding: Decider, policies: PolicyStore, quarantine: Quarantine) -> None:
        self._deciding = deciding
        self._policies = policies
        self._quarantine = quarantine

    async def now(self) -> Situation:
        """The present situation. It has no round, because nothing is decided yet."""
        settings = self._deciding.settings()
        return Situation(
            at_ms=self._deciding.wall_ms(),
            settings=settings,
            strategy=settings.balancing_strategy,
            model=await self._deciding.model(settings),
            memory=kept_memory(self._deciding.memory),
            policies_revision=self._policies.documents.revision,
        )

    def documents(self) -> Mapping[str, Policy]:
        """The policies in force, by `kind/name`."""
        return self._policies.documents.values()

    def evidence(self, bundle: Bundle) -> tuple[str, ...]:
        """Evidence that a bundle is the cause of lost brokers; empty unless two or more were."""
        if not self._quarantine.is_drawn(bundle):
            return ()
        found = self._quarantine.evidence(bundle)
        return (str(found), *map(str, found.deaths))

    def left_out(self) -> Mapping[str, str]:
        """The registered brokers that rounds leave out at present, and why."""
        return self._deciding.left_out()


async def _explainer(request: Request) -> Explainer:
    """This broker's explainer. Raises Unavailable until it has read the channel."""
    node = node_behind(request)
    if node.incarnation is None:
        raise Unavailable("this broker is starting: it has not read the channel yet; try again")
    channel = node.channel
    replays = kept(request).replay_queue
    policies = node.policies

    async def documents_at(revision: int) -> Mapping[str, Policy] | None:
        return policies.documents.at(revision)

    return Explainer(
        node.decisions,
        ChannelReader(node.world.log, channel.topic, channel.table.partitions, replays),
        replays,
        documents_at,
        node.world.run_blocking,
        LiveView(node.incarnation.rebalancer.deciding, policies, node.quarantine),
    )


async def _moment(
    at: Annotated[str | None, Query(max_length=40, description="a moment: ISO 8601, or ms since 1970")] = None,
) -> int | None:
    return None if at is None else moment(at)


Explaining = Annotated[Explainer, Depends(_explainer)]
Moment = Annotated[int | None, Depends(_moment)]
"""The query `at` in ms of wall time; None: now."""


def moment(text: str) -> int:
    """A time in ms since 1970; one without a zone is UTC. Raises Invalid."""
    try:
        if text.isascii() and text.isdigit():
            found = int(text)
        else:
            parsed = datetime.fromisoformat(text.replace(" ", "+"))  # a `+` in a URL arrives as a space
            found = round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Invalid(f"{text!r} is not a time; write 2030-01-31T12:00:00Z, or milliseconds since 1970") from None
    if not 0 <= found <= LATEST_MS:
        raise Invalid(f"{text!r} lies outside of the times that a log knows")
    return found


def shown(answer: Any) -> Response:
    """The answer as JSON; infinite numbers are null."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


router = ControlRouter(prefix="/v1", tags=["explain"])


Name = Annotated[str, Field(min_length=1, max_length=300)]


class WhatIfRequest(Body):
    """The differences to assume; each may be left out.

    `capacity` is that of each new broker (`cpu` in cores, …), by default the median of all. `loads` gives a factor for
    each namespace. `policies` are documents by `kind/name`; null deletes one. `rested` assumes that no bundle moved
    lately.
    """

    add_brokers: Annotated[int, Field(strict=True, ge=0, le=BROKERS_AT_MOST), WHOLE] = 0
    capacity: Annotated[dict[Name, float], Field(max_length=5)] = Field({})
    remove_brokers: Annotated[list[Name], Field(max_length=BROKERS_AT_MOST)] = Field([])
    settings: Annotated[dict[Name, float | int | str | bool], Field(max_length=200)] = Field({})
    loads: Annotated[dict[Name, float], Field(max_length=1_000)] = Field({})
    policies: Annotated[dict[Name, dict[str, Any] | None], Field(max_length=1_000)] = Field({})
    rested: bool = False

    def edits(self) -> Edits:
        """For the question itself."""
        return msgspec.convert(self.model_dump(), Edits)


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


@router.get("/decisions/{decision_id}", responses=answers(404, 412, json=shape(ExplainedRecord)))
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
async def what_if(explaining: Explaining, wanted: WhatIfRequest, at: Moment) -> Response:
    """Show the decision under changed assumptions, beside the decision without them. Changes nothing."""
    return shown(await explaining.what_if(wanted.edits(), at))


@router.get("/plan", responses=answers(409, 412, json=shape(Preview)))
async def preview_plan(explaining: Explaining) -> Response:
    """Show what a round of balancing would do now. Changes nothing."""
    return shown(await explaining.preview())
