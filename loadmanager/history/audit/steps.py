"""What was promised about one bundle in one step: who may take it, and whose it is afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from loadmanager.history.audit.findings import Broken, Invariant
from statechannel.record import Action, Record, Role
from statechannel.transitions import SERVING_STATES, State
from statechannel.verdict import Ownership

OF_NAMESPACE = frozenset({Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE})
RESHAPING = frozenset({Action.CREATE, Action.MERGE}) | OF_NAMESPACE
STEERING = frozenset({Action.TRANSFER, Action.UNLOAD, Action.SPLIT, Action.MERGE})


def wrong_author(record: Record, before: Ownership, by_holder: bool) -> str:
    """Who must not do this, if somebody does."""
    if record.action in STEERING and not by_holder and record.role is Role.BROKER:
        return f"{record.actor} steers what is not its own"
    if record.action in (Action.CREATE, Action.RETURN) and not by_holder:
        return f"{record.actor} acts as the holder"
    if record.action is Action.READY and (record.role is not Role.BROKER or record.actor != before.target):
        return f"{record.actor} acts as the target"
    if record.action is Action.REVOKE and record.role is not Role.LEADER:
        return f"{record.actor} revokes as {record.role}"
    return ""


def check_owner(record: Record, before: Ownership, after: Ownership | None, by_holder: bool) -> Iterator[Broken]:
    """What a step breaks of who owns the bundle. `by_holder`: its author held it, and acts as such."""
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
    own = after.target is not None and before.holder is not None and after.target.name == before.holder.name
    if own and before.target is None:
        yield Broken(Invariant.OWNER, f"{before.bundle} is on its way to its own holder {before.holder}")
    if after.holder not in (None, before.holder) and after.token <= before.token:
        yield Broken(Invariant.TOKEN, f"{after.holder} begins to own {before.bundle} with the old token {after.token}")
