"""Which brokers may hold a bundle at one moment: rows that bundles with the same permissions share. Pure.

The most specific rule wins: a quarantine over everything, then a pin, then the bundle's exclusions together with the
isolation of its namespace, then the preference for newer releases. A pin binds while its broker is live and not
draining; otherwise the other rules hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.constraints import ALLOWED
from loadmanager.model.policies.fleet import Fleet, older
from loadmanager.model.policies.isolation import Isolation, Matched
from loadmanager.model.policies.model import BundlePolicy, Policies
from loadmanager.model.policies.rules import Rules

WHEREVER = "*"
"""The pin of a bundle that stays where it is."""

Row = NDArray[np.int16]
Claimed = tuple[BundlePolicy, ...]


class Permissions:
    """The rows of permissions; `rules` grows as rows are requested."""

    def __init__(self, policies: Policies, fleet: Fleet, *, newest_only: bool) -> None:
        self.rules = Rules()
        self._fleet = fleet
        self._isolation = Isolation(policies.isolation, fleet)
        self._newest_only = newest_only
        self._matched: dict[str, Matched] = {}
        self._rows: dict[Matched, tuple[Row, NDArray[np.bool_]]] = {}

    def matched(self, namespace: str) -> Matched:
        """The isolation policies that hold for the namespace."""
        if namespace not in self._matched:
            self._matched[namespace] = self._isolation.matched(namespace)
        return self._matched[namespace]

    def of_namespace(self, matched: Matched) -> tuple[Row, NDArray[np.bool_]]:
        """(n,), ALLOWED or the rule that refuses newcomers; and where present bundles may stay nevertheless."""
        found = self._rows.get(matched)
        if found is None:
            row = self._isolation.row(matched, self.rules)
            tolerated = self._isolation.tolerated(matched)
            if self._newest_only:
                old = older(self._fleet.versions, (row == ALLOWED) & ~self._fleet.draining) & (row == ALLOWED)
                row[old] = self.rules.number("prefer_later_versions: it runs an older release")
                tolerated = tolerated | old
            found = self._rows[matched] = row, tolerated
        return found

    def row(self, matched: Matched, claimed: Claimed = (), stays: int = -1) -> Row:
        """(n,), for a bundle with this isolation and these policies; `stays`: the row of its broker, if tolerated."""
        row = self.of_namespace(matched)[0].copy()
        if stays >= 0:
            row[stays] = ALLOWED
        for policy in claimed:
            for name in policy.exclude:
                at = self._fleet.row(name)
                if at >= 0:
                    row[at] = self.rules.number(f"excluded from {name}")
        pinned = self.pinned_to(claimed)
        if pinned >= 0:
            row[:] = self.rules.number(f"pinned to {self._fleet.names[pinned]}")
            row[pinned] = ALLOWED
        for policy in claimed:
            if policy.quarantined:
                row[:] = self.rules.number(f"quarantined: {policy.quarantined}")
        return row

    def pinned_to(self, claimed: Claimed) -> int:
        """The row of the broker to which a pin now binds the bundle, -1 if there is none."""
        for policy in claimed:
            at = self._fleet.row(policy.pin) if policy.pin not in ("", WHEREVER) else -1
            if at >= 0 and not self._fleet.draining[at]:
                return at
        return -1
