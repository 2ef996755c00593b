"""What a route may ask for: the node, or its running incarnation. Answers 503 while there is none yet."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from loadmanager.errors import Unavailable
from loadmanager.incarnation import Incarnation
from loadmanager.node import Node


def node_behind(request: Request) -> Node:
    """The node that this application is the door of."""
    return cast("Node", request.app.state.node)


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
