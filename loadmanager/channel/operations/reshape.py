"""Splits and merges bundles for an administrator, with all checks before anything is written.

Only an owned bundle that is not on its way can be reshaped. In Pulsar the asked broker takes an unowned bundle and
splits it. Here that would bypass the placement strategy: so it is refused, and the answer says how to have it assigned.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec

from loadmanager.channel.operations.writer import RACES, AdminWriter, always_changing, lost_race
from loadmanager.errors import Conflict, Invalid, Unavailable
from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS, NoCuts, check_parts, evenly, specified
from loadmanager.settings.algorithms import Algorithm
from statechannel.law.bundle import MAX_BUNDLES_AT_CREATION, Bundle
from statechannel.law.record import Action, Record
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership


class Split(msgspec.Struct, frozen=True):
    """How to cut: at `boundaries`, or into `parts` where the owner finds the cuts by `algorithm`."""

    boundaries: tuple[int, ...] = ()
    algorithm: str = ""
    parts: int = 0

    @property
    def children(self) -> int:
        return len(self.boundaries) + 1 if self.boundaries else self.parts


def how_to_split(bundle: Bundle, parts: int | None, positions: Sequence[int] | None, algorithm: str | None) -> Split:
    """The split that is asked for. Raises Invalid if it makes no sense.

    Without an algorithm: at the positions if given, else into equal ranges. These cuts need no knowledge of the owner,
    so they are computed here and are in the record.
    """
    if algorithm and algorithm not in list(Algorithm):
        raise Invalid(f"there is no split algorithm {algorithm!r}; there are {', '.join(Algorithm)}")
    chosen = Algorithm(algorithm or (Algorithm.RANGE if positions is None else Algorithm.SPECIFIED))
    if chosen is Algorithm.SPECIFIED:
        if positions and parts is not None and parts != len(positions) + 1:
            raise Invalid(f"these positions make {len(positions) + 1} parts, not {parts}; leave the parts out")
        return Split(_cuts(specified(bundle, positions or ())))
    if positions is not None:
        raise Invalid(f"positions are for {Algorithm.SPECIFIED}, not for {chosen}")
    wanted = FEWEST_PARTS if parts is None else parts
    if chosen is Algorithm.RANGE:
        return Split(_cuts(evenly(bundle, wanted)))
    refusal = check_parts(wanted)
    if refusal is not None:
        raise Invalid(refusal.reason)
    return Split(algorithm=chosen.value, parts=wanted)


def _cuts(found: tuple[int, ...] | NoCuts) -> tuple[int, ...]:
    if isinstance(found, NoCuts):
        raise Invalid(found.reason)
    return found


async def split(writer: AdminWriter, bundle: Bundle, how: Split) -> tuple[Bundle, ...]:
    """Have the owner cut the bundle; returns the children once they exist, lowest first.

    Raises NotFound, Conflict (no owner, on its way, no cuts found, called off), Unavailable (not in time: it may still
    happen).
    """
    async with writer.deadline(f"the split of {bundle}"):
        for _ in range(RACES):
            entry = await writer.sure(lambda: _at_rest(writer.bundle(bundle)))
            _check_room(writer, bundle, how)
            with _following(writer, bundle) as follow:
                verdict = await writer.publish(_split_record(writer, entry, how))
                if not lost_race(verdict):
                    writer.accepted(verdict)
                    return _children(bundle, await follow())
    raise always_changing(bundle)


def _split_record(writer: AdminWriter, entry: Ownership, how: Split) -> Record:
    return msgspec.structs.replace(
        writer.on([entry], Action.SPLIT), boundaries=how.boundaries, algorithm=how.algorithm, parts=how.parts
    )


def _check_room(writer: AdminWriter, bundle: Bundle, how: Split) -> None:
    count = len(writer.namespace(bundle.namespace).lower_bounds) - 1 + how.children
    if count > MAX_BUNDLES_AT_CREATION:
        raise Conflict(f"{bundle.namespace} would have {count} bundles, at most {MAX_BUNDLES_AT_CREATION} are allowed")


@contextmanager
def _following(writer: AdminWriter, bundle: Bundle) -> Generator[Callable[[], Awaitable[Change]]]:
    """A function that waits for, and returns, the change that ends a split begun in this context."""
    changes: list[Change] = []

    def note(change: Change) -> None:
        if any(transition.bundle == bundle for transition in change.transitions):
            changes.append(change)

    async def end() -> Change:
        while len(changes) < 2:  # the first one is the split itself: any other would have made it stale
            now = writer.channel.table.get(bundle)
            if now is None or now.revision != changes[0].offset:
                raise Unavailable(f"the outcome of the split of {bundle} is not known here: look at its namespace")
            await writer.channel.next_change(bundle)
        return changes[1]

    writer.channel.listen(note)
    try:
        yield end
    finally:
        writer.channel.unlisten(note)


def _children(bundle: Bundle, end: Change) -> tuple[Bundle, ...]:
    record = end.record
    if record.action is Action.CREATE:
        return tuple(sorted(t.bundle for t in end.transitions if t.before is None))
    raise Conflict(f"{bundle} was not split: {record.reason or 'no reason given'} ({record.action} by {record.actor})")


def _at_rest(entry: Ownership) -> Ownership:
    match entry.state:
        case State.ASSIGNED:
            return entry
        case State.UNASSIGNED:
            raise Conflict(
                f"nobody owns {entry.bundle}: look up a topic of it, or unload it with a destinationBroker; "
                "then ask again"
            )
        case State.TRANSFERRING | State.SPLITTING:
            raise Conflict(f"{entry.bundle} is {entry.state}: wait until that is over, or cancel it")
        case _:
            raise Conflict(f"{entry.bundle} is {entry.state}: wait until that is over")


# --- merging


async def merge(writer: AdminWriter, bundles: Sequence[Bundle]) -> Bundle:
    """Make one bundle of two or more neighbours of one owner, given in any order; returns it.

    Raises Invalid (too few or many, they do not touch), NotFound, Conflict (no owner, different owners, on their way),
    Unavailable.
    """
    parts = _neighbours(bundles)
    async with writer.deadline(f"the merge of {len(parts)} bundles of {parts[0].namespace}"):
        for _ in range(RACES):
            entries = await writer.sure(lambda: _of_one_owner([_at_rest(writer.bundle(part)) for part in parts]))
            verdict = await writer.publish(writer.on(entries, Action.MERGE))
            if not lost_race(verdict):
                writer.accepted(verdict)
                return Bundle(parts[0].namespace, parts[0].lo, parts[-1].hi)
    raise always_changing(" and ".join(part.range for part in parts))


def _neighbours(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The bundles, lowest first, if they are neighbours. Raises Invalid."""
    if not FEWEST_PARTS <= len(bundles) <= MOST_PARTS:
        raise Invalid(f"a merge takes {FEWEST_PARTS} to {MOST_PARTS} bundles, not {len(bundles)}")
    parts = sorted(bundles)
    if parts[0].namespace != parts[-1].namespace:
        raise Invalid(f"{parts[0]} and {parts[-1]} are of different namespaces")
    apart = next((pair for pair in itertools.pairwise(parts) if pair[0].hi != pair[1].lo), None)
    if apart is not None and apart[0] == apart[1]:
        raise Invalid(f"{apart[0].range} is named twice; a merge takes different bundles")
    if apart is not None:
        raise Invalid(f"{apart[0].range} and {apart[1].range} are no neighbours: one has to begin where the other ends")
    return parts


def _of_one_owner(entries: list[Ownership]) -> list[Ownership]:
    """The entries, if they have one owner. Raises Conflict, with the transfers that would bring them together."""
    owners = Counter(entry.holder for entry in entries)
    if len(owners) == 1:
        return entries
    owner, _ = owners.most_common(1)[0]
    assert owner is not None
    elsewhere = [entry for entry in entries if entry.holder != owner]
    shown = ", ".join(f"{entry.bundle.range} (at {entry.holder})" for entry in elsewhere[:8])
    more = " …" if len(elsewhere) > 8 else ""
    raise Conflict(
        f"the bundles have different owners: first transfer the others to {owner.name}: {shown}{more}; "
        "a transfer is an unload with a destinationBroker"
    )
