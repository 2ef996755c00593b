"""Judges records that change which bundles exist: namespace create and delete, split's `create`, `merge`.

Each is all-or-nothing. Pure: reads the table, and returns the transitions or a Refusal. The rows are
`transitions.RESHAPING`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec

from statechannel.errors import InvalidName, InvariantError
from statechannel.law.bundle import Bundle, check_namespace, check_tiling, tile, tiles_exactly
from statechannel.law.namespace import Namespace
from statechannel.law.record import NEVER, UNSAID, Action, Record
from statechannel.law.transitions import Reshape, State, relations, reshape
from statechannel.law.verdict import Ownership, Reason, Refusal, Transition, Whole


class Known(Protocol):
    """The queries of the ownership table that judging a reshaping record needs."""

    def get(self, bundle: Bundle) -> Ownership | None:
        """The entry of a bundle."""
        ...

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, also if it was deleted."""
        ...

    def is_held(self, namespace: str) -> bool:
        """Whether any of its bundles has a holder."""
        ...

    def partition_of(self, namespace: str) -> int:
        """The partition of a namespace's records."""
        ...


class Reshaped(msgspec.Struct, frozen=True, gc=False):
    """The bundles that go (no `after`) and come (no `before`) in one namespace.

    `now` is the namespace after it was created or deleted as a whole, else None.
    """

    namespace: str
    transitions: Sequence[Transition]
    now: Namespace | None = None


def judge(table: Known, partition: int, offset: int, record: Record) -> Reshaped | Refusal:
    """What a reshaping record does to its namespace, or why it does not count."""
    row = reshape(record.action)
    name = record.namespace or (record.subjects[0].bundle.namespace if record.subjects else None)
    if row is None or name is None:
        return Refusal(Reason.MALFORMED, f"{record.action} names no namespace")
    if any(subject.bundle.namespace != name for subject in record.subjects):
        return Refusal(Reason.MALFORMED, f"{record.action} of {name} names bundles of another namespace")
    if table.partition_of(name) != partition:
        return Refusal(Reason.WRONG_PARTITION, f"the records of {name} belong in partition {table.partition_of(name)}")
    match record.action:
        case Action.CREATE_NAMESPACE:
            return _create_namespace(table, offset, record, name, row)
        case Action.DELETE_NAMESPACE:
            return _delete_namespace(table, offset, record, name, row)
        case Action.CREATE:
            return _create_children(table, offset, record, name, row)
        case Action.MERGE:
            return _merge(table, offset, record, name, row)
        case _:
            raise InvariantError(f"{record.action} is no reshaping action")


def _create_namespace(table: Known, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    known = table.namespace(name)
    if known is not None and known.exists:
        return Refusal(Reason.NAMESPACE_EXISTS, f"namespace {name} exists already")
    if record.seen_namespace != (known.revision if known else NEVER):
        return Refusal(Reason.STALE, f"{name} was deleted after the author of this record had read it")
    if _is_barred(record, row):
        return _not_allowed(record, row)
    try:
        check_namespace(name)
    except InvalidName as error:
        return Refusal(Reason.MALFORMED, str(error))
    try:
        created = Namespace.created(name, offset, check_tiling(record.boundaries), record.actor)
    except InvalidName as error:
        return Refusal(Reason.BAD_BOUNDARIES, str(error))
    return Reshaped(name, Whole(created.share(), came=True), created)


def _delete_namespace(table: Known, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    known = table.namespace(name)
    if known is None or not known.exists:
        return Refusal(Reason.NO_NAMESPACE, f"there is no namespace {name}")
    if record.seen_namespace != known.revision:
        return Refusal(Reason.STALE, f"the bundles of {name} changed after the author of this record had read them")
    if record.seen_latest not in (UNSAID, known.latest):
        newest = max(known.touched() or known.entries[:1], key=attrgetter("revision"))
        detail = f"its author had read up to {record.seen_latest}, and {newest.action} by {newest.by} came after that"
        return Refusal(Reason.STALE, detail, newest.bundle, newest)
    if _is_barred(record, row):
        return _not_allowed(record, row)
    if table.is_held(name):
        held = next(e for e in known.touched() if e.state not in row.states)
        return Refusal(Reason.NOT_UNASSIGNED, f"{held.bundle} is {held.state}: unload it first", held.bundle, held)
    return Reshaped(name, Whole(known.share(), came=False), Namespace(name, offset))


def _create_children(table: Known, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    if len(record.subjects) != 1:
        return Refusal(Reason.MALFORMED, "create must name exactly one parent")
    parent = _present(table, record, 0, row)
    if isinstance(parent, Refusal):
        return parent
    if _is_barred(record, row, parent):
        return _not_allowed(record, row, parent)
    cuts = (parent.bundle.lo, *record.boundaries, parent.bundle.hi)
    if len(cuts) < 3 or any(a >= b for a, b in itertools.pairwise(cuts)):
        return Refusal(Reason.BAD_BOUNDARIES, "cuts must run strictly upwards inside the parent", parent.bundle, parent)
    children = tile(name, cuts)
    return Reshaped(
        name,
        (
            Transition(parent, None),
            *(Transition(None, _born(child, parent, offset, record)) for child in children),
        ),
    )


def _merge(table: Known, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    if len(record.subjects) < 2:
        return Refusal(Reason.MALFORMED, "merge must name two or more bundles")
    parts: list[Ownership] = []
    for index in range(len(record.subjects)):
        part = _present(table, record, index, row)
        if isinstance(part, Refusal):
            return part
        parts.append(part)
    if any(left.bundle.hi != right.bundle.lo for left, right in itertools.pairwise(parts)):
        return Refusal(Reason.NOT_MERGEABLE, "the bundles must be adjacent, lowest first", parts[0].bundle, parts[0])
    holder = parts[0].holder
    if any(part.holder != holder for part in parts):
        return Refusal(Reason.NOT_MERGEABLE, "the bundles have different owners", parts[0].bundle, parts[0])
    if _is_barred(record, row, parts[0]):
        return _not_allowed(record, row, parts[0])
    whole = Bundle(name, parts[0].bundle.lo, parts[-1].bundle.hi)
    return Reshaped(
        name,
        (*(Transition(p, None) for p in parts), Transition(None, _born(whole, parts[0], offset, record))),
    )


def _present(table: Known, record: Record, index: int, row: Reshape) -> Ownership | Refusal:
    """The entry of one subject, if the bundle exists, is as its author saw it, and in a state of the row."""
    subject = record.subjects[index]
    entry = table.get(subject.bundle)
    if entry is None:
        return Refusal(Reason.NO_BUNDLE, f"there is no bundle {subject.bundle}", subject.bundle)
    if subject.seen != entry.revision:
        detail = f"its author had seen revision {subject.seen}, {entry.action} by {entry.by} came first"
        return Refusal(Reason.STALE, detail, entry.bundle, entry)
    if entry.state not in row.states:
        return Refusal(Reason.ILLEGAL, f"{record.action} is not possible from {entry.state}", entry.bundle, entry)
    return entry


def _born(bundle: Bundle, parent: Ownership, offset: int, record: Record) -> Ownership:
    """A bundle that this record cuts out of another or merges; it stays at the same holder."""
    return Ownership(
        bundle=bundle,
        state=State.ASSIGNED,
        holder=parent.holder,
        target=None,
        revision=offset,
        token=offset,
        action=record.action,
        by=record.actor,
    )


def _is_barred(record: Record, row: Reshape, entry: Ownership | None = None) -> bool:
    return row.by.isdisjoint(relations(record, entry.holder if entry else None, None))


def _not_allowed(record: Record, row: Reshape, entry: Ownership | None = None) -> Refusal:
    may = ", ".join(sorted(who.value for who in row.by))
    detail = f"{record.action} is only for {may}; {record.actor} acts as {record.role}"
    return Refusal(Reason.NOT_ALLOWED, detail, entry.bundle if entry else None, entry)


def tiles_again(gone: Iterable[Ownership], born: Iterable[Ownership]) -> bool:
    """Whether the new bundles cover exactly the range of those that are gone."""
    old, new = [entry.bundle for entry in gone], [entry.bundle for entry in born]
    return tiles_exactly(new, old[0].lo, old[-1].hi)
