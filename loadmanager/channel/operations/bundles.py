"""Moves single bundles: transfer, unload, and cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.channel.operations.writer import RACES, AdminWriter, always_changing, lost_race
from loadmanager.cluster.membership import Membership
from loadmanager.errors import Conflict, NotFound
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

LOOKED_AT_ONCE = 50
"""Bundles of one record that are looked at in one turn of the loop."""

_TOO_LATE = {
    State.ASSIGNING: "its new owner is taking it now",
    State.RELEASING: "its owner has stopped serving it already, and the move goes on",
    State.REVOKING: "the leader is taking it from its owner",
}


async def unload(writer: AdminWriter, bundle: Bundle) -> None:
    """Take the bundle from its owner; the next lookup assigns it. Nothing to do if nobody owns it.

    Raises NotFound, Conflict, Unavailable.
    """
    async with writer.deadline(bundle):
        await writer.sure(lambda: writer.bundle(bundle))
        for _ in range(RACES):
            entry = await writer.settled(bundle)
            if entry.state is State.UNASSIGNED:
                return
            verdict = await writer.publish(writer.on([entry], Action.UNLOAD))
            if not lost_race(verdict):
                await _released(writer, bundle, writer.accepted(verdict).offset)
                return
    raise always_changing(bundle)


async def unload_all(writer: AdminWriter, wanted: Sequence[Bundle]) -> None:
    """As `unload`, for bundles of one namespace that one record can name.

    Raises NotFound, Conflict, Unavailable.
    """
    async with writer.deadline(f"{len(wanted)} bundles of {wanted[0].namespace}"):
        for _ in range(RACES):
            entries = [await writer.settled(bundle) for bundle in wanted]
            owned = [entry for entry in entries if entry.state is not State.UNASSIGNED]
            if not owned:
                return
            verdict = await writer.publish(writer.on(owned, Action.UNLOAD))
            if not lost_race(verdict):
                change = writer.accepted(verdict)
                for seen, transition in enumerate(change.transitions):
                    if seen % LOOKED_AT_ONCE == 0:  # the same few records wake hundreds of such tasks
                        await writer.turnstile.passed()
                    await _released(writer, transition.bundle, change.offset)
                wanted = [refusal.bundle for refusal in change.refused if refusal.bundle is not None]
    raise always_changing(f"{wanted[0]} and {len(wanted) - 1} more")


async def transfer(writer: AdminWriter, bundle: Bundle, to: BrokerId, reason: str = "admin") -> None:
    """Move the bundle there and return when it has arrived; an unowned one is assigned there.

    Raises NotFound, Conflict (it is there already, the move was cancelled), Unavailable (not in time: the move may
    still happen).
    """
    async with writer.deadline(bundle):
        for _ in range(RACES):
            entry = await writer.settled(bundle)
            if entry.holder is not None and entry.holder.name == to.name:
                raise Conflict(f"{to.name} owns {bundle} already")
            action = Action.OWN if entry.state is State.UNASSIGNED else Action.TRANSFER
            verdict = await writer.publish(writer.on([entry], action, to, reason))
            if not lost_race(verdict):
                writer.accepted(verdict)
                await _arrived(writer, bundle, to)
                return
    raise always_changing(bundle)


async def cancel(writer: AdminWriter, bundle: Bundle) -> None:
    """Call off the bundle's transfer or split; it stays where it is, whole.

    Raises NotFound, Conflict (it is in none, or too far on its way), Unavailable.
    """
    for _ in range(RACES):
        entry = await writer.sure(lambda: _on_its_way(writer.bundle(bundle)))
        verdict = await writer.publish(writer.on([entry], Action.CANCEL))
        if not lost_race(verdict):
            writer.accepted(verdict)
            return
    raise always_changing(bundle)


def _on_its_way(entry: Ownership) -> Ownership:
    if entry.state in (State.TRANSFERRING, State.SPLITTING):
        return entry
    why = _TOO_LATE.get(entry.state, "no transfer and no split of it is under way")
    raise Conflict(f"{entry.bundle} is {entry.state}, there is nothing to cancel: {why}")


def destination(membership: Membership, clock_s: Callable[[], float], name: str) -> BrokerId:
    """The broker of that name, if it takes bundles now. Raises NotFound, Conflict."""
    peer = membership.peers.get(name)
    if peer is None:
        known = ", ".join(sorted(membership.peers)) or "none"
        raise NotFound(f"there is no broker {name}; registered: {known}")
    if not membership.is_live(peer.broker, clock_s()):
        raise Conflict(f"{name} does not answer: {membership.suspected.get(peer.broker, 'it is going away')}")
    if peer.registration.draining:
        raise Conflict(f"{name} is draining and takes no bundles")
    if peer.registration.behind:
        raise Conflict(f"{name} cannot read the channel at present, and would not notice the bundle")
    return peer.broker


def permission(bundle: Bundle, to: BrokerId, rule: str, *, author: str, force: bool) -> str:
    """The record's reason for a transfer that `rule` forbids (empty: no rule does). Raises Conflict."""
    if not rule:
        return "admin"
    if not force:
        raise Conflict(f"{bundle} may not go to {to.name}: {rule}. Change the rule, or insist (?force=true, --force)")
    return f"forced by {author}: {rule}"


async def _released(writer: AdminWriter, bundle: Bundle, revision: int) -> None:
    await writer.until(bundle, lambda e: e.state is not State.RELEASING or e.revision != revision)


async def _arrived(writer: AdminWriter, bundle: Bundle, to: BrokerId) -> None:
    entry = await writer.until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED, State.REVOKING))
    if entry.holder != to or entry.state is not State.ASSIGNED:
        raise Conflict(f"{bundle} did not arrive at {to.name}: {entry.state} at {entry.holder} after {entry.action}")
