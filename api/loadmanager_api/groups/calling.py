"""Asks the coordinator that a broker hosts, on the loop of the service: never on the one that renews proofs.

The endpoints call it from their own loop, or from the control loop, which waits for nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from loadmanager.broker.node import Node
from loadmanager.consumers.coordinator.messages import NO_COORDINATOR
from loadmanager.errors import Conflict, NotFound, Unavailable
from statechannel.errors import LogError, LogUnavailable, TopicUnknown

if TYPE_CHECKING:
    from loadmanager.consumers.coordinator.service import Coordinator

T = TypeVar("T")


def coordinator_of(node: Node) -> Coordinator | None:
    """The coordinator of consumer groups that this broker hosts; None if it hosts something else."""
    return getattr(node.host, "coordinator", None)


def the_coordinator_of(node: Node) -> Coordinator:
    """The same. Raises NotFound if this broker hosts something else."""
    found = coordinator_of(node)
    if found is None:
        raise NotFound(f"{node.settings.advertised} {NO_COORDINATOR}")
    return found


async def ask(coordinator: Coordinator, work: Callable[[Coordinator], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on the coordinator's loop; a cancelled call cancels it. Raises what it raises, Conflict for what Kafka
    refuses, Unavailable if the broker has not started or has ended."""
    loop = coordinator.loop
    if loop is None or loop.is_closed():
        raise Unavailable("the coordinator of consumer groups is not running: this broker is starting, or has ended")
    try:
        if loop is asyncio.get_running_loop():
            return await work(coordinator)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(coordinator), loop))
    except LogUnavailable:
        raise
    except TopicUnknown as error:
        raise Unavailable(str(error)) from error
    except LogError as error:
        raise Conflict(str(error)) from error
