"""Helpers of routes that explain: this broker's explainer, times in a query, and answers as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request
from fastapi.responses import Response

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.decisions.explaining.reading import ChannelReader
from loadmanager.decisions.explaining.service import Explainer
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.memory import kept_memory
from loadmanager.errors import Invalid, Unavailable
from loadmanager.leader.quarantine.evidence import Quarantine
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.model.policies.model import Policy
from loadmanager_api.state import kept, node_behind
from statechannel.law.bundle import Bundle

LATEST_MS = 2**53


class LiveView:
    """The live view of this broker; it need not lead."""

    def __init__(self, deciding: Deciding, policies: PolicyStore, quarantine: Quarantine) -> None:
        self._deciding = deciding
        self._policies = policies
        self._quarantine = quarantine

    async def now(self) -> Situation:
        """The present situation. It has no round, because nobody has decided it."""
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


def explainer_of(request: Request) -> Explainer:
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


async def _explainer(request: Request) -> Explainer:
    return explainer_of(request)


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
        raise Invalid(f"{text!r} is no time; write 2030-01-31T12:00:00Z, or milliseconds since 1970") from None
    if not 0 <= found <= LATEST_MS:
        raise Invalid(f"{text!r} lies outside of the times that a log knows")
    return found


def shown(answer: Any) -> Response:
    """The answer as JSON; infinite numbers are null."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
