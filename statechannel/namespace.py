"""A namespace as the table keeps it: its bundles side by side, so that one costs little and is found by its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statechannel.bundle import Bundle, index_of
from statechannel.verdict import Ownership


class Namespace:
    """A namespace's bundles, lowest first; a deleted one keeps its name and revision and has none.

    Which bundles there are never changes in one object: a reshaped namespace is a new one. What is known of a single
    bundle does change in place; other threads see it as before or after. What `share` gave away stays as it was: the
    first change after it goes to a copy.
    """

    __slots__ = ("_entries", "_shared", "lower_bounds", "name", "revision")

    def __init__(self, name: str, revision: int, entries: Iterable[Ownership] = ()) -> None:
        self.name = name
        self.revision = revision
        self._entries = list(entries)
        self._shared = False
        self.lower_bounds: Sequence[int] = [entry.bundle.lo for entry in self._entries]

    @property
    def exists(self) -> bool:
        return bool(self._entries)

    @property
    def entries(self) -> tuple[Ownership, ...]:
        """What is known of each bundle now, lowest first."""
        return tuple(self._entries)

    def share(self) -> Sequence[Ownership]:
        """What `entries` gives, without a look at each: a million bundles are shared as quickly as one."""
        self._shared = True
        return self._entries

    def picture(self) -> Namespace:
        """The namespace as it is now; neither sees what is done to the other later. As quick as `share`."""
        picture = Namespace(self.name, self.revision)
        picture._entries, picture._shared = self._entries, True
        picture.lower_bounds = self.lower_bounds
        self._shared = True
        return picture

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return tuple(entry.bundle for entry in self._entries)

    def entry_at(self, position: int) -> Ownership:
        """What is known of the bundle that holds a position of the ring. The namespace must exist."""
        return self._entries[index_of(self.lower_bounds, position)]

    def bundle_at(self, position: int) -> Bundle:
        """The bundle that holds a position of the ring. The namespace must exist."""
        return self.entry_at(position).bundle

    def get(self, bundle: Bundle) -> Ownership | None:
        """What is known of a bundle of this namespace; None if there is none of exactly this range."""
        if not self._entries:
            return None
        entry = self._entries[index_of(self.lower_bounds, bundle.lo)]
        return entry if entry.bundle.lo == bundle.lo and entry.bundle.hi == bundle.hi else None

    def put(self, entry: Ownership) -> None:
        """Replace what is known of a bundle that is there."""
        if self._shared:
            self._entries = list(self._entries)
            self._shared = False
        self._entries[index_of(self.lower_bounds, entry.bundle.lo)] = entry

    def reshaped(self, revision: int, lo: int, hi: int, entries: Sequence[Ownership]) -> Namespace:
        """The namespace with the bundles between two boundaries replaced by others."""
        if not self._entries:
            return Namespace(self.name, revision, entries)
        first, last = index_of(self.lower_bounds, lo), index_of(self.lower_bounds, hi - 1)
        reshaped = Namespace(self.name, revision)  # the rest by copying: a large one may be cut into thousands
        reshaped._entries = [*self._entries[:first], *entries, *self._entries[last + 1 :]]
        bounds = self.lower_bounds
        reshaped.lower_bounds = [*bounds[:first], *(entry.bundle.lo for entry in entries), *bounds[last + 1 :]]
        return reshaped
