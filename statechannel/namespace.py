"""A namespace as the table knows it: which bundles it consists of."""

from __future__ import annotations

import msgspec

from statechannel.bundle import Bundle, index_of


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace's bundles, lowest first; a deleted one keeps its name and revision and has no bundles."""

    name: str
    revision: int
    bundles: tuple[Bundle, ...] = ()
    lower_bounds: tuple[int, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.bundles)

    def bundle_at(self, position: int) -> Bundle:
        """The bundle that holds a position of the ring."""
        return self.bundles[index_of(self.lower_bounds, position)]
