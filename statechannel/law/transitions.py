"""THE TABLE: what may happen to a bundle, in which state, by whom. Everything that affects ownership is here.

Theory of operation. Every broker reads the same records in the same order. For each it looks up the rows of
(state, action). The first row whose actor and guard fit decides the next state; if none fits, every reader refuses the
record. The table does not know which broker reads it, reads no clock and does no I/O. Before the lookup `table.py`
checks that the author saw the bundle's present revision, and a leader's epoch.

The state alone decides who serves: the holder, in SERVING_STATES (in Assigning once it has acquired).
`docs/state-machine.md` is drawn from this file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Role


class State(StrEnum):
    """The state of a bundle."""

    __hash__ = str.__hash__  # an enumeration's own hash is slow Python, and every step is looked up by these

    UNASSIGNED = "unassigned"
    ASSIGNING = "assigning"
    ASSIGNED = "assigned"
    TRANSFERRING = "transferring"
    RELEASING = "releasing"
    SPLITTING = "splitting"
    REVOKING = "revoking"


class Who(StrEnum):
    """The actor's relation to the bundle."""

    ANY = "any broker"
    HOLDER = "holder"
    TARGET = "target"
    LEADER = "leader"
    ADMIN = "admin"


class Then(StrEnum):
    """What becomes of holder and target."""

    HOLD_TO = "holder := to"
    HOLD_TARGET = "holder := target"
    AIM_TO = "target := to"
    KEEP = "holder stays, no target"
    KEEP_BOTH = "holder and target stay"
    NOBODY = "no holder"


class Parties(msgspec.Struct, frozen=True, gc=False):
    """What a guard may look at besides the record."""

    bundle: Bundle
    holder: BrokerId | None
    target: BrokerId | None


_RELATIONS: dict[tuple[Role, bool, bool], frozenset[Who]] = {
    (role, holds, is_target): frozenset(
        {Who.LEADER}
        if role is Role.LEADER
        else {Who.ADMIN}
        if role is Role.ADMIN
        else {Who.ANY} | ({Who.HOLDER} if holds else set()) | ({Who.TARGET} if is_target else set())
    )
    for role in Role
    for holds in (False, True)
    for is_target in (False, True)
}


def relations(record: Record, holder: BrokerId | None, target: BrokerId | None) -> frozenset[Who]:
    """The actor's relations to a bundle: broker *and incarnation* must agree, never the name alone.

    The caller has checked a leader's epoch.
    """
    return _RELATIONS[record.role, record.actor == holder, record.actor == target]


Guard = Callable[[Parties, Record], bool]


def to_is_given(parties: Parties, record: Record) -> bool:
    """The record names a destination."""
    return record.to is not None


def to_is_another(parties: Parties, record: Record) -> bool:
    """The record names a destination, and it is not the broker that holds the bundle, whatever its incarnation."""
    return record.to is not None and parties.holder is not None and record.to.name != parties.holder.name


def to_is_not_the_revoked(parties: Parties, record: Record) -> bool:
    """The record names a destination, and it is not the incarnation that was revoked."""
    return record.to is not None and record.to != parties.holder


def to_is_none(parties: Parties, record: Record) -> bool:
    """The record names no destination."""
    return record.to is None


def target_is_known(parties: Parties, record: Record) -> bool:
    """The bundle has a target."""
    return parties.target is not None


def target_is_none(parties: Parties, record: Record) -> bool:
    """The bundle has no target."""
    return parties.target is None


def cuts_lie_inside(parties: Parties, record: Record) -> bool:
    """The cuts, if the record names any, run strictly upwards inside the bundle."""
    edges = (parties.bundle.lo, *record.boundaries, parties.bundle.hi)
    return all(a < b for a, b in itertools.pairwise(edges))


class Row(msgspec.Struct, frozen=True, gc=False):
    """One legal step. `fences` marks steps that begin a new ownership, with a new fencing token."""

    state: State
    action: Action
    by: frozenset[Who]
    next: State
    then: Then
    why: str
    guard: Guard | None = None
    fences: bool = False


def _by(*who: Who) -> frozenset[Who]:
    return frozenset(who)


_S, _A = State, Action
_ANY, _HOLDER, _TARGET, _LEADER, _ADMIN = Who.ANY, Who.HOLDER, Who.TARGET, Who.LEADER, Who.ADMIN
_STEER = _by(_LEADER, _ADMIN, _HOLDER)

TABLE: tuple[Row, ...] = (
    Row(
        _S.UNASSIGNED, _A.OWN, _by(_ANY), _S.ASSIGNING, Then.HOLD_TO, "a lookup gives it away", to_is_given,
        fences=True,
    ),
    Row(_S.ASSIGNING, _A.RETURN, _by(_HOLDER), _S.ASSIGNED, Then.KEEP, "acquired: waiting lookups are answered"),
    Row(_S.ASSIGNING, _A.RELEASE, _by(_HOLDER), _S.UNASSIGNED, Then.NOBODY, "declined: the next lookup assigns"),
    Row(_S.ASSIGNED, _A.TRANSFER, _STEER, _S.TRANSFERRING, Then.AIM_TO, "planned: the holder serves on", to_is_another),
    Row(_S.TRANSFERRING, _A.READY, _by(_TARGET), _S.RELEASING, Then.KEEP_BOTH, "the target is warm: the holder stops"),
    Row(
        _S.RELEASING, _A.RELEASE, _by(_HOLDER), _S.ASSIGNING, Then.HOLD_TARGET, "the target's turn", target_is_known,
        fences=True,
    ),
    Row(_S.ASSIGNED, _A.UNLOAD, _STEER, _S.RELEASING, Then.KEEP, "given back: the holder stops"),
    Row(_S.RELEASING, _A.RELEASE, _by(_HOLDER), _S.UNASSIGNED, Then.NOBODY, "the next lookup assigns", target_is_none),
    Row(_S.ASSIGNED, _A.SPLIT, _STEER, _S.SPLITTING, Then.KEEP, "the holder finds cuts, serves on", cuts_lie_inside),
    Row(_S.TRANSFERRING, _A.CANCEL, _by(_LEADER, _ADMIN, _HOLDER, _TARGET), _S.ASSIGNED, Then.KEEP, "the move is off"),
    Row(_S.SPLITTING, _A.CANCEL, _STEER, _S.ASSIGNED, Then.KEEP, "the split is off"),
    *(
        Row(state, _A.REVOKE, _by(_LEADER), _S.REVOKING, Then.KEEP, "the holder is dead or stuck: no broker serves")
        for state in (_S.ASSIGNING, _S.ASSIGNED, _S.TRANSFERRING, _S.RELEASING, _S.SPLITTING)
    ),
    Row(_S.REVOKING, _A.RELEASE, _by(_HOLDER), _S.UNASSIGNED, Then.NOBODY, "the holder stopped by itself", to_is_none),
    Row(
        _S.REVOKING, _A.RELEASE, _by(_LEADER), _S.ASSIGNING, Then.HOLD_TO, "the holder's proofs are out",
        to_is_not_the_revoked, fences=True,
    ),
    Row(_S.REVOKING, _A.RELEASE, _by(_LEADER), _S.UNASSIGNED, Then.NOBODY, "proofs are out; no place yet", to_is_none),
)  # fmt: skip
"""The steps of single bundles. Steps that change boundaries are in RESHAPING."""


class Reshape(msgspec.Struct, frozen=True, gc=False):
    """One legal step that changes which bundles exist; all-or-nothing. New bundles are `next`, at the same holder."""

    states: frozenset[State]
    action: Action
    by: frozenset[Who]
    next: State | None
    why: str


RESHAPING: tuple[Reshape, ...] = (
    Reshape(
        frozenset({_S.ASSIGNED, _S.SPLITTING}), _A.CREATE, _by(_HOLDER), _S.ASSIGNED,
        "the parent is gone, its children are at the same holder",
    ),
    Reshape(frozenset({_S.ASSIGNED}), _A.MERGE, _STEER, _S.ASSIGNED, "adjacent bundles of one holder become one"),
    Reshape(frozenset(), _A.CREATE_NAMESPACE, _by(_ADMIN), _S.UNASSIGNED, "the namespace does not exist yet"),
    Reshape(frozenset({_S.UNASSIGNED}), _A.DELETE_NAMESPACE, _by(_ADMIN), None, "all its bundles were unloaded first"),
)  # fmt: skip

IN_FLIGHT = frozenset({_S.ASSIGNING, _S.TRANSFERRING, _S.RELEASING, _S.SPLITTING, _S.REVOKING})
"""States that some broker must end; the leader watches them with deadlines."""

SERVING_STATES = frozenset({_S.ASSIGNING, _S.ASSIGNED, _S.TRANSFERRING, _S.SPLITTING})
"""States in which the holder may serve; in Assigning only once it has acquired."""

_ROWS: dict[tuple[State, Action], tuple[Row, ...]] = {
    (state, action): tuple(row for row in TABLE if (row.state, row.action) == (state, action))
    for state in State
    for action in Action
}
_RESHAPES: dict[Action, Reshape] = {row.action: row for row in RESHAPING}


def rows(state: State, action: Action) -> tuple[Row, ...]:
    """The rows for this state and action, in order; empty where the diagram has no arrow."""
    return _ROWS[state, action]


def reshape(action: Action) -> Reshape | None:
    """The reshaping row of an action, None if it does not change boundaries."""
    return _RESHAPES.get(action)
