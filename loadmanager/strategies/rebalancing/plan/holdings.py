"""The bundles of each broker, without a scan of all bundles for each."""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Flags, Ints


class Holdings:
    """Rows of the chosen bundles by their broker in the model, ascending."""

    def __init__(self, owner: Ints, chosen: Flags, brokers: int) -> None:
        rows = np.flatnonzero(chosen)
        # numpy sorts 16-bit keys by radix sort: linear
        small = owner[rows].astype(np.uint16 if brokers < 2**16 else np.int64)
        self._rows = rows[np.argsort(small, kind="stable")]
        self._ends = np.cumsum(np.bincount(owner[rows], minlength=brokers))

    def of(self, broker: int) -> Ints:
        """Rows of the bundles of one broker."""
        return self._rows[(self._ends[broker - 1] if broker else 0) : self._ends[broker]]
