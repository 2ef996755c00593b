"""Tiles: the finest cut of all bundles that a window knew, so that each bundle is a run of tiles despite splits.

A tile has the part of its bundle's load that it has of the bundle's range. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadmanager.model.cluster import Floats, Ints
from statechannel.law.bundle import Bundle


class Tiles(msgspec.Struct, frozen=True, eq=False):
    """m tiles, by namespace and range; bundle i of b has the tiles `first[i]` to before `last[i]`."""

    bundles: tuple[Bundle, ...]
    """The tiles themselves."""
    width: Floats
    """(m,)"""
    first: Ints
    """(b,)"""
    last: Ints
    """(b,)"""

    def __len__(self) -> int:
        return len(self.bundles)

    def parts(self, bundle: int) -> Floats:
        """The part of a bundle that each of its tiles is; they sum to 1."""
        width = self.width[self.first[bundle] : self.last[bundle]]
        return width / width.sum()

    def only(self, kept: Ints) -> tuple[Bundle, ...]:
        """The tiles in these rows."""
        return tuple(self.bundles[row] for row in kept.tolist())


def tiled(names: Sequence[str]) -> Tiles:
    """The tiles of the bundles of these names. Raises InvalidName."""
    bundles = [Bundle.parse(name) for name in names]
    edges: dict[str, set[int]] = {}
    for bundle in bundles:
        edges.setdefault(bundle.namespace, set()).update((bundle.lo, bundle.hi))
    made: list[Bundle] = []
    begins: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for namespace in sorted(edges):
        for lo, hi in pairwise(sorted(edges[namespace])):
            begins[namespace, lo], ends[namespace, hi] = len(made), len(made) + 1
            made.append(Bundle(namespace, lo, hi))
    return Tiles(
        tuple(made),
        np.array([tile.hi - tile.lo for tile in made], np.float64),
        np.array([begins[each.namespace, each.lo] for each in bundles], np.int64),
        np.array([ends[each.namespace, each.hi] for each in bundles], np.int64),
    )
