"""What a route may ask for: the node, its running incarnation, and what the endpoints of one broker keep. Answers 503
while there is no incarnation yet.

All of it comes with the request: the application itself knows of no broker, and serves any number of them (`app.py`).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

import msgspec
from fastapi import Depends, Request

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.metrics import NodeMetrics
from loadmanager.broker.node import Node
from loadmanager.channel.history.replaying import ReplayQueue
from loadmanager.channel.history.snapshot_lists import SnapshotLists
from loadmanager.channel.history.watching import Watching
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager_api.draining import Draining
from loadmanager_api.http_counts import HttpCounts

KEPT = "loadmanager.kept"
"""The key in an ASGI scope of what the endpoints keep."""


class Kept(msgspec.Struct, frozen=True):
    """What the endpoints of one broker keep from one request to the next. All but the first two and the counts is the
    control loop's.

    When `closing` is set, answers that do not end by themselves end.
    """

    handover: Handover
    closing: asyncio.Event
    draining: Draining
    replay_queue: ReplayQueue
    watching: Watching
    snapshot_lists: SnapshotLists
    metrics: NodeMetrics
    counts: HttpCounts

    @classmethod
    async def of(cls, handover: Handover, closing: asyncio.Event) -> Kept:
        """On the control loop, whose `handover.at_end` closes it."""
        node = handover.node
        replays = ReplayQueue(node.world.log, node.channel.topic)
        kept = cls(
            handover,
            closing,
            Draining(node),
            replays,
            Watching(node.channel.replica, replays),
            SnapshotLists(node.world.log, node.channel.topic),
            NodeMetrics(node),
            HttpCounts(),
        )
        handover.at_end(kept.close)
        return kept

    @property
    def node(self) -> Node:
        """To be read as other threads may; the control loop does with it what it likes."""
        return self.handover.node

    async def close(self) -> None:
        """End what runs behind requests."""
        self.watching.close()
        await self.draining.close()


def kept(request: Request) -> Kept:
    """What is kept by the endpoints that a request came through."""
    return cast("Kept", request.scope[KEPT])


def node_behind(request: Request) -> Node:
    """The node whose endpoints a request came through."""
    return kept(request).node


async def _any_node(request: Request) -> Node:
    return node_behind(request)


async def _caught_up_node(request: Request) -> Node:
    node = node_behind(request)
    if node.incarnation is None:
        raise Unavailable("this broker is starting: it has not read the channel yet; try again")
    return node


async def _incarnation(request: Request) -> Incarnation:
    return acting(node_behind(request))


def acting(node: Node) -> Incarnation:
    """The incarnation that is registered and acts. Raises Unavailable."""
    if not node.ready.is_set():
        raise Unavailable("this broker is starting, was fenced and starts anew, or is leaving; try again or elsewhere")
    return node.current


AnyNode = Annotated[Node, Depends(_any_node)]
"""The node, in whichever condition."""

TheNode = Annotated[Node, Depends(_caught_up_node)]
"""The node once its replica has been read to the end; its table may be read."""

Acting = Annotated[Incarnation, Depends(_incarnation)]
"""The incarnation that is registered and acts."""
