"""Numbers the combinations that occur, out of all possible ones. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

DENSE = 1 << 24
"""Up to this many possible keys, a table of all is quicker than sorting those that occur."""


def numbered(keys: Ints, possible: int) -> tuple[Ints, Ints]:
    """The distinct keys, ascending, and each key's index among them. Keys are from 0 to below `possible`."""
    if possible > DENSE:
        distinct, places = np.unique(keys, return_inverse=True)
        return distinct, places.astype(np.int64)
    occurs = np.zeros(possible, np.bool_)
    occurs[keys] = True
    distinct = np.flatnonzero(occurs).astype(np.int64)
    place = np.zeros(possible, np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[keys]
