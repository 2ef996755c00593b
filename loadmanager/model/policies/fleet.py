"""The brokers as rules look at them: names, releases, draining, usage. Values only."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_NUMBER = re.compile(r"\d+|[^\d.]+")


class Fleet(msgspec.Struct, frozen=True, eq=False):
    """The live brokers, n rows. `usage` is the fullest resource as a fraction, 0 if unknown."""

    names: tuple[str, ...]
    versions: tuple[str, ...]
    draining: NDArray[np.bool_]
    usage: NDArray[np.float64]

    def row(self, name: str) -> int:
        """The broker's row, -1 without one."""
        return self.names.index(name) if name in self.names else -1


def older(versions: Sequence[str], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,): whether the broker's release is older than the newest release in `among`."""
    keys = {version: _release(version) for version in set(versions)}
    newest = max((keys[versions[row]] for row in np.flatnonzero(among).tolist()), default=None)
    if newest is None:
        return np.zeros(len(versions), np.bool_)
    behind = {version for version, key in keys.items() if key < newest}
    return np.fromiter((version in behind for version in versions), np.bool_, len(versions))


def _release(version: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key: 0.9 comes before 0.10, and 1.0rc1 before 1.0."""
    parts = _NUMBER.findall(version)
    key = [(1, int(part), "") if part.isdigit() else (-1, 0, part) for part in parts]
    return (*key, (0, 0, ""))
