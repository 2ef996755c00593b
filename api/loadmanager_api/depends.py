"""What routes take beside the parameters of a request: the node in some state, and who sent it and what they may do.

The node's states answer 503 while it is in an earlier one.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.node import Node
from loadmanager.errors import Unavailable
from loadmanager_api.access.authorship import Sender, sender_of
from loadmanager_api.access.gate import May
from loadmanager_api.http.probes import acting
from loadmanager_api.kept import node_behind


async def _any_node(request: Request) -> Node:
    return node_behind(request)


async def _caught_up_node(request: Request) -> Node:
    node = node_behind(request)
    if node.incarnation is None:
        raise Unavailable("this broker is starting: it has not read the channel yet; try again")
    return node


async def _incarnation(request: Request) -> Incarnation:
    return acting(node_behind(request))


AnyNode = Annotated[Node, Depends(_any_node)]
"""The node, in any state."""

TheNode = Annotated[Node, Depends(_caught_up_node)]
"""The node once its replica has been read to the end; its table may be read."""

Acting = Annotated[Incarnation, Depends(_incarnation)]
"""The incarnation that is registered and acts."""


async def _may(request: Request) -> May:
    return May(request.scope)


Permission = Annotated[May, Depends(_may)]
"""What the sender of the request may do."""


async def _sender(request: Request) -> Sender:
    return sender_of(request.scope)


async def _author(request: Request) -> str:
    return sender_of(request.scope).name


Author = Annotated[str, Depends(_author)]
"""The authenticated principal; without authentication the header `X-Author`, else the client's address."""

AuthorOf = Annotated[Sender, Depends(_sender)]
"""The same, for requests whose body may name an author."""
