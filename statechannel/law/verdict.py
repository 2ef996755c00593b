"""What replaying a record yields: a `Change` with what it did, or a `Refusal` with why not. Both are plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import overload

import msgspec

from statechannel.errors import InvariantError
from statechannel.law.bundle import Bundle
from statechannel.law.record import NEVER, Action, BrokerId, Record
from statechannel.law.transitions import State


class Cutting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How to cut a bundle in Splitting: at `boundaries`, or where the holder finds cuts by `algorithm`."""

    boundaries: tuple[int, ...] = ()
    algorithm: str = ""
    parts: int = 0


NOT_CUT = Cutting()


class Ownership(msgspec.Struct, frozen=True, gc=False):
    """The table's entry of one bundle. There may be a million: a field here costs 8 MB.

    `revision` is the offset of the last accepted record, `action` and `by` are its action and author. `token` is the
    offset of the record that began this ownership. `cutting` says how to do a split in progress.
    """

    bundle: Bundle
    state: State
    holder: BrokerId | None
    target: BrokerId | None
    revision: int
    token: int
    action: Action
    by: BrokerId
    hand_off: bytes | None = None
    cutting: Cutting | None = None

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The cuts of a split in progress, as far as they are given."""
        return (self.cutting or NOT_CUT).boundaries

    @property
    def algorithm(self) -> str:
        """How the holder is to find the cuts of a split in progress."""
        return (self.cutting or NOT_CUT).algorithm

    @property
    def parts(self) -> int:
        """The number of parts of a split in progress, 0 if it follows from the boundaries."""
        return (self.cutting or NOT_CUT).parts


_HOLDER_STATES = frozenset(State) - {State.UNASSIGNED}


def check_entry(entry: Ownership) -> None:
    """Raise InvariantError unless holder and target fit the state."""
    if (entry.holder is not None) != (entry.state in _HOLDER_STATES):
        raise InvariantError(f"{entry.bundle} is {entry.state} with holder {entry.holder}")
    if entry.target is not None and entry.state not in (State.TRANSFERRING, State.RELEASING):
        raise InvariantError(f"{entry.bundle} is {entry.state} with target {entry.target}")
    if entry.target is None and entry.state is State.TRANSFERRING:
        raise InvariantError(f"{entry.bundle} is transferring without a target")
    if not NEVER < entry.token <= entry.revision:
        raise InvariantError(f"{entry.bundle} has token {entry.token} beyond revision {entry.revision}")


class Reason(StrEnum):
    """Why a record, or one bundle of it, was refused."""

    STALE = "stale"
    ILLEGAL = "illegal"
    NOT_ALLOWED = "not-allowed"
    BAD_DESTINATION = "bad-destination"
    DEPOSED = "deposed"
    NO_BUNDLE = "no-bundle"
    NO_NAMESPACE = "no-namespace"
    NAMESPACE_EXISTS = "namespace-exists"
    NOT_UNASSIGNED = "not-unassigned"
    BAD_BOUNDARIES = "bad-boundaries"
    NOT_MERGEABLE = "not-mergeable"
    WRONG_PARTITION = "wrong-partition"
    FOREIGN_CLUSTER = "foreign-cluster"
    RETIRED = "retired"
    AMENDING = "amending"
    DISAGREES = "disagrees"
    MALFORMED = "malformed"


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A record (or one bundle of it) that does not count, why, and which record won.

    `winner` is the bundle's entry after the record that won: its revision, action and author identify that record.
    `others` are the refusals of the record's further bundles, if it named several and all were refused.
    """

    reason: Reason
    detail: str
    bundle: Bundle | None = None
    winner: Ownership | None = None
    others: tuple[Refusal, ...] = ()


class Transition(msgspec.Struct, frozen=True, gc=False):
    """One bundle before and after; None where it did not or does not exist."""

    before: Ownership | None
    after: Ownership | None

    @property
    def bundle(self) -> Bundle:
        entry = self.after or self.before
        assert entry is not None
        return entry.bundle


class Whole(Sequence[Transition]):
    """The transitions of a namespace that was created or deleted as a whole.

    Each is made when it is looked at, since there may be 65,536. `entries` are those created or deleted, and never
    change.
    """

    __slots__ = ("_came", "_entries")

    def __init__(self, entries: Sequence[Ownership], *, came: bool) -> None:
        self._entries = entries
        self._came = came

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Transition: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Transition]: ...
    def __getitem__(self, at: int | slice) -> Transition | Sequence[Transition]:
        if isinstance(at, slice):
            return [self._made(entry) for entry in self._entries[at]]
        return self._made(self._entries[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _made(self, entry: Ownership) -> Transition:
        return Transition(None, entry) if self._came else Transition(entry, None)


class Change(msgspec.Struct, frozen=True, gc=False):
    """An accepted record: what it changed, and which of its bundles were refused."""

    partition: int
    offset: int
    record: Record
    transitions: Sequence[Transition] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def whole(self) -> str | None:
        """The namespace that was created or deleted as a whole, else None.

        Callers that follow single bundles ask this first, since it may have too many bundles to look at each.
        """
        # by type: `isinstance` with an abstract class is slow, and every record is asked
        return self.transitions[0].bundle.namespace if type(self.transitions) is Whole else None

    def bundles(self, known: Iterable[Bundle]) -> list[Bundle]:
        """The bundles that it changed; of a namespace created or deleted as a whole only those that are `known`."""
        whole = self.whole
        if whole is None:
            return [transition.bundle for transition in self.transitions]
        return [bundle for bundle in known if bundle.namespace == whole]


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """No verdict within the time-out. The record may still be read back: ask `Channel.settled` by its id."""

    record_id: str
    detail: str


Verdict = Change | Refusal | Unknown
