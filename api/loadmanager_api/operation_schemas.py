"""Operations as they are shown: their state, their progress, and the answer that they have or will have."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from pydantic import BaseModel

from loadmanager.broker.node import Node
from loadmanager.cluster.operation_log import Operation, OperationState
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class ShownState(StrEnum):
    """`lost`: its broker is gone before it ended; it may have been carried out in part."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class OperationShown(BaseModel):
    """A request that is or was carried out, once. `action` names what was asked for, `about` the thing.

    `status` and `result` are its answer: null while it runs; `result` too if the answer has no body, or a very long
    one. `progress` is the present state of the thing as the asked broker knows it: of a bundle its `state` and `owner`,
    of a namespace how many `bundles` it has and how many of them are `owned`; null for all else.
    """

    id: str
    action: str
    about: str
    namespace: str
    principal: str
    broker: str
    state: ShownState
    begun_ms: int
    cancelled_by: str | None
    ended_ms: int | None
    status: int | None
    result: Any
    progress: dict[str, Any] | None


def operation_shown(node: Node, operation: Operation) -> OperationShown:
    """The operation as this broker knows it. Runs on any loop."""
    begun, cancelled, ended = operation.begun, operation.cancelled, operation.ended
    return OperationShown(
        id=operation.id,
        action=begun.action,
        about=begun.about,
        namespace=begun.namespace,
        principal=begun.principal,
        broker=begun.broker,
        state=state_of(node, operation),
        begun_ms=begun.at_ms,
        cancelled_by=None if cancelled is None else cancelled.principal,
        ended_ms=None if ended is None else ended.at_ms,
        status=None if ended is None else ended.status,
        result=None if ended is None else _parsed(ended.body),
        progress=_progress(node, begun.about, begun.namespace),
    )


def state_of(node: Node, operation: Operation) -> ShownState:
    """Its state, as far as this broker knows who is there."""
    if operation.ended is not None:
        return ShownState.DONE if operation.ended.status < 400 else ShownState.FAILED
    peer = node.membership.peers.get(BrokerId.parse(operation.begun.broker).name)
    if peer is None or str(peer.broker) != operation.begun.broker:
        return ShownState.LOST
    return ShownState.RUNNING if operation.state is OperationState.RUNNING else ShownState.CANCELLING


def _parsed(body: str | None) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError:
        return body


def _progress(node: Node, about: str, namespace: str) -> dict[str, Any] | None:
    table = node.channel.table
    if not namespace:
        return None
    if about == namespace:
        known = table.namespace(namespace)
        return {"bundles": 0 if known is None else known.count, "owned": table.count_held_in(namespace)}
    try:
        entry = table.get(Bundle.parse(about))
    except InvalidName:
        return None
    if entry is None:
        return {"state": None, "owner": None}
    return {"state": entry.state, "owner": None if entry.holder is None else entry.holder.name}
