"""What was promised about one step of a bundle: who may take it, and who owns the bundle afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.channel.audit.invariants import Broken, Invariant
from statechannel.law.record import MAX_HAND_OFF_BYTES, Action, Record, Role
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Ownership

OF_NAMESPACE = frozenset({Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE})
RESHAPING = frozenset({Action.CREATE, Action.MERGE}) | OF_NAMESPACE
STEERING = frozenset({Action.TRANSFER, Action.UNLOAD, Action.SPLIT, Action.MERGE})


def wrong_author(record: Record, before: Ownership, by_holder: bool) -> str:
    """What is wrong with the author, empty if nothing is."""
    if record.action in STEERING and not by_holder and record.role is Role.BROKER:
        return f"{record.actor} steers what is not its own"
    if record.action in (Action.CREATE, Action.RETURN) and not by_holder:
        return f"{record.actor} acts as the holder"
    if record.action is Action.READY and (record.role is not Role.BROKER or record.actor != before.target):
        return f"{record.actor} acts as the target"
    if record.action is Action.REVOKE and record.role is not Role.LEADER:
        return f"{record.actor} revokes as {record.role}"
    concerned = by_holder or record.actor == before.target
    if record.action is Action.CANCEL and record.role is Role.BROKER and not concerned:
        return f"{record.actor} cancels what is not its own"
    return ""


def check_owner(record: Record, before: Ownership, after: Ownership | None, by_holder: bool) -> Iterator[Broken]:
    """Broken promises on ownership. `by_holder`: the author held the bundle, and acts as its holder."""
    reshaped = record.action in RESHAPING
    holder = after.holder if after is not None else before.holder
    if record.action is Action.DELETE_NAMESPACE and before.holder is not None:
        yield Broken(Invariant.OWNER, f"{before.bundle} is deleted under {before.holder}")
    if reshaped and record.action not in OF_NAMESPACE and before.state not in (State.ASSIGNED, State.SPLITTING):
        yield Broken(Invariant.OWNER, f"{before.bundle} is reshaped while it is {before.state}")
    if before.holder is not None and holder != before.holder:
        revoked = record.role is Role.LEADER and before.state is State.REVOKING
        declined = by_holder and before.state is State.ASSIGNING
        if not by_holder and not revoked:
            yield Broken(Invariant.OWNER, f"{before.bundle} is taken from {before.holder}")
        if before.state in SERVING_STATES and not declined:
            yield Broken(Invariant.OWNER, f"{before.bundle} leaves {before.holder} while that serves it")
    passed_over = after is not None and after.holder != before.target
    if before.target is not None and record.action is Action.RELEASE and passed_over:
        yield Broken(Invariant.OWNER, f"{before.bundle} was for {before.target}, and went to {holder}")
    if record.action is Action.READY and after is not None and after.target != before.target:
        yield Broken(Invariant.OWNER, f"{before.bundle} is ready at {before.target}, and goes to {after.target}")
    if after is None or reshaped:
        return
    if record.action is Action.RELEASE and before.state is State.REVOKING and holder == before.holder:
        yield Broken(Invariant.OWNER, f"{before.bundle} comes back to {holder}, which was revoked")
    yield from _check_destination(record, before, after)
    own = after.target is not None and before.holder is not None and after.target.name == before.holder.name
    if own and before.target is None:
        yield Broken(Invariant.OWNER, f"{before.bundle} is on its way to its own holder {before.holder}")
    if after.holder not in (None, before.holder) and after.token <= before.token:
        yield Broken(Invariant.TOKEN, f"{after.holder} begins to own {before.bundle} with the old token {after.token}")


def _check_destination(record: Record, before: Ownership, after: Ownership) -> Iterator[Broken]:
    """If the record names a destination, the bundle is there afterwards, or on its way there."""
    match record.action:
        case Action.OWN:
            went = after.holder
        case Action.TRANSFER:
            went = after.target
        case Action.RELEASE if record.role is Role.LEADER:
            went = after.holder
        case _:
            return
    if went != record.to:
        yield Broken(Invariant.OWNER, f"{before.bundle} was to go to {record.to}, and went to {went}")


def check_hand_off(record: Record, before: Ownership, after: Ownership) -> Iterator[Broken]:
    """A hand-off reaches the owner that it was released to, and nobody else."""
    said = ((each.bundle, each.seen, each.hand_off) for each in record.subjects)
    given = next((data for bundle, seen, data in said if (bundle, seen) == (before.bundle, before.revision)), None)
    handed = record.action is Action.RELEASE and before.target is not None and after.holder == before.target
    if after.hand_off is not None and len(after.hand_off) > MAX_HAND_OFF_BYTES:
        yield Broken(Invariant.HAND_OFF, f"{before.bundle} hands over {len(after.hand_off)} bytes")
    if after.hand_off != (given if handed else None):
        yield Broken(Invariant.HAND_OFF, f"what {before.bundle} hands over is not what {record.action} gave")
