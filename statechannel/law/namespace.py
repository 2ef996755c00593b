"""A namespace in the table: its bundles in one array, so that each costs little and is found by its position.

Python's garbage collector walks lists: a million entries took 25 ms, during which no proof was written. It does not
look into NumPy's arrays, nor, after the first time, into tuples of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from statechannel.law.bundle import FULL_UPPER, Bundle, index_of
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class Created(msgspec.Struct, frozen=True, gc=False):
    """What bundles that have not changed since their namespace was created have in common."""

    name: str
    offset: int
    by: BrokerId

    def entry(self, bounds: Sequence[int], index: int) -> Ownership:
        """The entry of one of them, given the lower bounds of all bundles."""
        bundle, offset = self.bundle(bounds, index), self.offset
        return Ownership(bundle, State.UNASSIGNED, None, None, offset, offset, Action.CREATE_NAMESPACE, self.by)

    def bundle(self, bounds: Sequence[int], index: int) -> Bundle:
        """The one between two bounds."""
        return Bundle(self.name, bounds[index], bounds[index + 1] if index + 1 < len(bounds) else FULL_UPPER)


Objects = NDArray[np.object_]

MADE_AT_ONCE = 500
"""How many entries an iteration makes at a time."""


class Entries(Sequence[Ownership]):
    """The entries of a namespace, lowest first. One that never changed is stored as None and made when looked at."""

    __slots__ = ("_bounds", "_created", "_entries")

    def __init__(self, entries: Objects, bounds: Sequence[int], created: Created | None) -> None:
        self._entries = entries
        self._bounds = bounds
        self._created = created

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Ownership: ...
    @overload
    def __getitem__(self, at: slice) -> list[Ownership]: ...
    def __getitem__(self, at: int | slice) -> Ownership | list[Ownership]:
        if isinstance(at, int):
            index = at if at >= 0 else at + len(self._entries)
            return self._entries[index] or self._made(index)
        found: list[Ownership | None] = self._entries[at].tolist()
        if self._created is None:
            return found  # type: ignore[return-value] # without None then
        indices = range(*at.indices(len(self._entries)))
        return [self._made(index) if entry is None else entry for index, entry in zip(indices, found, strict=True)]

    def __iter__(self) -> Iterator[Ownership]:
        for begin in range(0, len(self._entries), MADE_AT_ONCE):  # a caller of the first few does not pay for all
            yield from self[begin : begin + MADE_AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _made(self, index: int) -> Ownership:
        assert self._created is not None, "only what is as it was created has no entry"
        return self._created.entry(self._bounds, index)


class Namespace:
    """A namespace's bundles, lowest first; a deleted namespace keeps its name and revision and has no bundles.

    The set of bundles of one object never changes: a reshaped namespace is a new object. An entry of a single bundle
    is replaced in place; other threads see the old or the new one. What `share` returned never changes: the first
    change after it copies the array. An entry is made with the first record about its bundle, so that a namespace of
    65,536 bundles is created as quickly as its boundaries.
    """

    __slots__ = ("_created", "_entries", "_latest", "_shared", "lower_bounds", "name", "revision")

    def __init__(self, name: str, revision: int, entries: Iterable[Ownership] = ()) -> None:
        self.name = name
        self.revision = revision
        listed = list(entries)
        self._entries = _side_by_side(listed)
        self._created: Created | None = None
        self._shared = False
        self._latest: int | None = None
        self.lower_bounds: Sequence[int] = tuple(entry.bundle.lo for entry in listed)

    @classmethod
    def created(cls, name: str, offset: int, boundaries: Sequence[int], by: BrokerId) -> Namespace:
        """A new namespace with bundles between all neighbouring boundaries, unassigned."""
        namespace = cls(name, offset)
        namespace.lower_bounds = tuple(boundaries[:-1])
        namespace._entries = np.full(len(namespace.lower_bounds), None, np.object_)
        namespace._created = Created(name, offset, by)
        namespace._latest = offset
        return namespace

    @property
    def exists(self) -> bool:
        return len(self._entries) > 0

    @property
    def latest(self) -> int:
        """The offset of the last record accepted for it or for any of its bundles. Walks them the first time."""
        if self._latest is None:
            self._latest = max((entry.revision for entry in self.touched()), default=self.revision)
        return self._latest

    @property
    def entries(self) -> tuple[Ownership, ...]:
        """The entries as of now, lowest first."""
        return tuple(self._all())

    @property
    def count(self) -> int:
        """The number of bundles."""
        return len(self._entries)

    def touched(self, begin: int = 0, end: int | None = None) -> list[Ownership]:
        """The entries in `[begin, end)` whose bundles have changed since the namespace was created."""
        return [entry for entry in self._entries[begin:end].tolist() if entry is not None]

    def some(self, begin: int, end: int) -> list[Ownership]:
        """The entries in `[begin, end)`, without making the others."""
        return self._all()[begin:end]

    def share(self) -> Sequence[Ownership]:
        """As `entries`, without making each: takes the same time for a million bundles as for one."""
        self._shared = True
        return self._all()

    def _all(self) -> Entries:
        return Entries(self._entries, self.lower_bounds, self._created)

    def frozen(self) -> Namespace:
        """An independent copy of the namespace, as quick as `share`."""
        frozen = Namespace(self.name, self.revision)
        frozen._entries, frozen._created, frozen._shared = self._entries, self._created, True
        frozen._latest = self._latest
        frozen.lower_bounds = self.lower_bounds
        self._shared = True
        return frozen

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return tuple(entry.bundle for entry in self._all())

    def entry_at(self, position: int) -> Ownership:
        """The entry of the bundle that a position falls into. The namespace must exist."""
        index = index_of(self.lower_bounds, position)
        entry: Ownership | None = self._entries[index]
        return entry or self._made(index)

    def bundle_at(self, position: int) -> Bundle:
        """The bundle that a position falls into. The namespace must exist."""
        return self.entry_at(position).bundle

    def get(self, bundle: Bundle) -> Ownership | None:
        """The entry of a bundle of this namespace; None if no bundle has exactly this range."""
        if not self.lower_bounds:
            return None
        index = index_of(self.lower_bounds, bundle.lo)
        entry: Ownership = self._entries[index] or self._made(index)
        return entry if entry.bundle.lo == bundle.lo and entry.bundle.hi == bundle.hi else None

    def _made(self, index: int) -> Ownership:
        assert self._created is not None, "only what is as it was created has no entry"
        return self._created.entry(self.lower_bounds, index)

    def put(self, entry: Ownership) -> None:
        """Replace the entry of an existing bundle."""
        if self._shared:
            self._entries = self._entries.copy()
            self._shared = False
        self._entries[index_of(self.lower_bounds, entry.bundle.lo)] = entry
        if self._latest is not None and entry.revision > self._latest:
            self._latest = entry.revision

    def reshaped(self, revision: int, lo: int, hi: int, entries: Sequence[Ownership]) -> Namespace:
        """The namespace with the bundles between two boundaries replaced by others."""
        if not self.lower_bounds:
            return Namespace(self.name, revision, entries)
        first, last = index_of(self.lower_bounds, lo), index_of(self.lower_bounds, hi - 1)
        reshaped = Namespace(self.name, revision)  # copies the other entries: there may be thousands
        bounds, new = self.lower_bounds, _side_by_side(entries)
        reshaped._entries = np.concatenate([self._entries[:first], new, self._entries[last + 1 :]])
        reshaped._created = self._created
        reshaped.lower_bounds = (*bounds[:first], *(entry.bundle.lo for entry in entries), *bounds[last + 1 :])
        return reshaped


def _side_by_side(entries: Sequence[Ownership]) -> Objects:
    return np.fromiter(entries, np.object_, len(entries))  # a list would be searched for arrays: ten times slower
