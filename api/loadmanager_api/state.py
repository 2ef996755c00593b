"""State of one broker's endpoints, which comes with each request: the routes belong to no broker (`server.py`).

It includes the drain that was requested over REST: at most one at a time runs, until it is cancelled.
"""

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
from loadmanager_api.groups.backlogs import Backlogs
from loadmanager_api.http.counts import HttpCounts, Requests
from loadmanager_api.http.lookups import Batches
from loadmanager_api.http.watch import Relays
from loadmanager_api.operations import Attempts
from statechannel.errors import StateChannelError
from statechannel.law.partition import ClusterIdentity


class Draining:
    """The drain of this broker. Close it with the application."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether bundles are being moved away now; False once the given time is over."""
        return self._task is not None and not self._task.done()

    def begin(self, timeout_s: float) -> None:
        """Start, unless a drain runs already."""
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._run(timeout_s))

    async def end(self) -> None:
        """Cancel it: the broker accepts bundles again; those that are gone stay where they are. Raises Fenced."""
        await self.close()
        await self._node.undrain()

    async def close(self) -> None:
        """Stop moving bundles away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self, timeout_s: float) -> None:
        try:
            progress = await self._node.drain(timeout_s)
        except StateChannelError as error:
            self._node.note(f"the drain ended: {error}")
            return
        self._node.note(f"drained: {progress}")


KEPT = "loadmanager.kept"
"""The key in an ASGI scope of the endpoints' state."""

HANDOVER: ContextVar[Handover] = ContextVar("loadmanager.handover")
"""The handover of the broker whose endpoints received the present request."""


class Kept(msgspec.Struct, frozen=True):
    """State of one broker's endpoints between requests.

    All of it belongs to the control loop, except the first two fields, the counts of requests, `attempts`, `relays`,
    `backlogs`, `batches` and `access` (None: every client may do anything). When `closing` is set, endless
    answers stop.
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
