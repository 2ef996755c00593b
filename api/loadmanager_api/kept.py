"""State of one broker's endpoints, which comes with each request: the routes belong to no broker (`app.py`)."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import cast

import msgspec
from starlette.requests import Request

from loadmanager.broker.metrics import NodeMetrics
from loadmanager.broker.node import Node
from loadmanager.channel.log_status import SnapshotLists
from loadmanager.channel.replay_queue import TIMEOUT_S, ReplayQueue
from loadmanager.channel.watch import Watching
from loadmanager.embedding.handover import Handover
from loadmanager_api.access.access import Access
from loadmanager_api.draining import Draining
from loadmanager_api.groups.backlogs import Backlogs
from loadmanager_api.http.counts import HttpCounts, Requests
from loadmanager_api.http.lookups import Batches
from loadmanager_api.http.watch import Relays
from loadmanager_api.long_work import Attempts
from statechannel.law.partition import ClusterIdentity

KEPT = "loadmanager.kept"
"""The key in an ASGI scope of the endpoints' state."""

HANDOVER: ContextVar[Handover] = ContextVar("loadmanager.handover")
"""The handover of the broker whose endpoints received the present request."""


class Kept(msgspec.Struct, frozen=True):
    """State of one broker's endpoints between requests.

    All of it belongs to the control loop, except the first two fields, the counts of requests, `attempts`, `relays`,
    `backlogs`, `batches` and `access` (None: anybody may do anything). When `closing` is set, answers without an end
    stop.
    """

    handover: Handover
    closing: asyncio.Event
    draining: Draining
    replay_queue: ReplayQueue
    watching: Watching
    relays: Relays
    snapshot_lists: SnapshotLists
    metrics: NodeMetrics
    counts: HttpCounts
    requests: Requests
    attempts: Attempts
    backlogs: Backlogs
    batches: Batches
    access: Access | None = None

    @classmethod
    async def of(cls, handover: Handover, closing: asyncio.Event, access: Access | None = None) -> Kept:
        """Make it on the control loop, whose `handover.at_end` closes it."""
        node = handover.node
        replays = ReplayQueue(node.world.log, node.channel.topic, TIMEOUT_S)
        watching = Watching(node.channel.replica, replays)
        kept = cls(
            handover,
            closing,
            Draining(node),
            replays,
            watching,
            Relays(handover, watching),
            SnapshotLists(node.world.log, node.channel.topic),
            NodeMetrics(node),
            HttpCounts(),
            Requests(),
            Attempts(),
            Backlogs(node),
            Batches(),
            access,
        )
        if access is not None:
            node.policies.on_change(access.grant)
        handover.at_end(kept.close)
        return kept

    @property
    def node(self) -> Node:
        """The node, to be read as other threads may: the control loop changes it at any time."""
        return self.handover.node

    def cluster(self) -> ClusterIdentity | None:
        """The broker's cluster, None before it has read its log."""
        return self.node.channel.replica.cluster_identity

    async def close(self) -> None:
        """Stop background work of requests."""
        self.watching.close()
        await self.draining.close()


def kept(request: Request) -> Kept:
    """The state of the endpoints that received a request."""
    return cast("Kept", request.scope[KEPT])


def node_behind(request: Request) -> Node:
    """The node whose endpoints received a request."""
    return kept(request).node
