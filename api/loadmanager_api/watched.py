"""The wire format of a watch: server-sent events, each with a JSON object as its data.

`loadmanager/channel/watch.py` decides what a watch sends; docs/http.md describes the events.
"""

from __future__ import annotations

import msgspec

from loadmanager.channel.watch import Piece
from statechannel.law.record import Action, Role, Token
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

RETRY_MS = 1_000


class WatchedBundle(msgspec.Struct, frozen=True, gc=False):
    """One bundle as it is after a change, or was before it."""

    bundle: str
    partition: int
    state: State
    owner: str | None
    incarnation: int | None
    target: str | None
    revision: int
    token: str


class WatchedStep(msgspec.Struct, frozen=True, gc=False):
    """A bundle before and after a change; null where it did not or does not exist."""

    before: WatchedBundle | None
    after: WatchedBundle | None


class WatchedChange(msgspec.Struct, frozen=True):
    """An accepted record. `more`: its next bundles follow in the next event."""

    partition: int
    offset: int
    record_id: str
    action: Action
    actor: str
    role: Role
    epoch: int
    at_ms: int
    reason: str
    cause: str
    to: str | None
    namespace: str | None
    bundles: list[WatchedStep]
    more: bool


def greeting() -> bytes:
    """The first event: after how long a client should reconnect."""
    return f"retry: {RETRY_MS}\n\n".encode()


def encode(piece: Piece, generation: int) -> bytes:
    """The bytes of one event."""
    if piece.kind is None:
        return f"id: {piece.revision}\n: nothing new\n\n".encode()
    head = b"" if piece.revision is None else f"id: {piece.revision}\n".encode()
    data = msgspec.json.encode(_data(piece, generation))
    return b"%bevent: %b\ndata: %b\n\n" % (head, piece.kind.encode(), data)


def _data(piece: Piece, generation: int) -> object:
    match piece.kind:
        case "snapshot":
            assert piece.partition is not None
            return {"bundles": [_bundle(entry, generation, piece.partition) for entry in piece.entries]}
        case "snapshot-end":
            return {"revision": str(piece.revision)}
        case "reload":
            return {"partition": piece.partition}
        case "end":
            return {"reason": piece.why, "resume": str(piece.resume) if piece.resume is not None else None}
        case _:
            return _change(piece, generation)


def _change(piece: Piece, generation: int) -> WatchedChange:
    change = piece.change
    assert change is not None
    record = change.record
    return WatchedChange(
        partition=change.partition,
        offset=change.offset,
        record_id=record.id,
        action=record.action,
        actor=str(record.actor),
        role=record.role,
        epoch=record.epoch,
        at_ms=record.at_ms,
        reason=record.reason,
        cause=record.cause,
        to=str(record.to) if record.to is not None else None,
        namespace=record.namespace,
        bundles=[
            WatchedStep(_known(t.before, generation, change.partition), _known(t.after, generation, change.partition))
            for t in piece.transitions
        ],
        more=piece.more,
    )


def _known(entry: Ownership | None, generation: int, partition: int) -> WatchedBundle | None:
    return None if entry is None else _bundle(entry, generation, partition)


def _bundle(entry: Ownership, generation: int, partition: int) -> WatchedBundle:
    holder = entry.holder
    return WatchedBundle(
        bundle=str(entry.bundle),
        partition=partition,
        state=entry.state,
        owner=holder.name if holder is not None else None,
        incarnation=holder.incarnation if holder is not None else None,
        target=entry.target.name if entry.target is not None else None,
        revision=entry.revision,
        token=str(Token(generation, partition, entry.token)),
    )
