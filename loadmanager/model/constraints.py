"""The hard rules of a placement, for the rows of a model: who may hold a bundle, which bundles must stay. Values only.

`loadmanager.model.policies` computes them from policies; a model without policies has `unconstrained(…)`. Bundles with
the same permissions share a row of `forbidden`, so 100,000 bundles under ten policies cost ten rows.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

ALLOWED = -1
FREE = -1


class Constraints(msgspec.Struct, frozen=True, eq=False):
    """The rules for n brokers, m bundles, k kinds of bundles and g anti-affinity groups.

    A bundle may go to broker b iff `forbidden[kind[bundle], b] == ALLOWED`; else the number names the rule that refuses
    it. A bundle whose own broker is forbidden is misplaced and must go. `fixed[bundle]` names the rule that keeps it
    where it is (pinned, quarantined, paused, namespace excluded from balancing), FREE if there is none.
    """

    rules: tuple[str, ...]
    """The rules that `forbidden` and `fixed` index, in words: "isolation policy 'pay'", "pinned to a:6650"."""
    kind: NDArray[np.int64]
    """(m,)"""
    forbidden: NDArray[np.int16]
    """(k, n)"""
    fixed: NDArray[np.int16]
    """(m,)"""
    rest_s: NDArray[np.float64]
    """(m,), how long a moved bundle rests."""
    weight: NDArray[np.float64]
    """(m,), the cost of a move as a multiple of a usual one; above 0."""
    group: NDArray[np.int64]
    """(m,), the anti-affinity group of the bundle's namespace, FREE if none."""
    groups: tuple[str, ...] = ()
    spread_over_domains: bool = False
    """Whether a group is spread over failure domains first, then over brokers."""
    presence: NDArray[np.int64] | None = None
    """(g, n): how many *namespaces* of the group have bundles on the broker, by the whole table; None: no groups."""
    namespace_here: NDArray[np.int64] | None = None
    """(namespaces, n): how many bundles of the namespace the broker holds, for namespaces in a group; None without."""
    isolated: NDArray[np.bool_] | None = None
    """(m,): whether an isolation policy holds for the bundle's namespace; None if for no bundle."""

    def columns(self) -> tuple[NDArray[np.generic], ...]:
        """All arrays."""
        columns = (self.kind, self.forbidden, self.fixed, self.rest_s, self.weight, self.group)
        optional = (self.presence, self.namespace_here, self.isolated)
        return (*columns, *(each for each in optional if each is not None))


def unconstrained(brokers: int, bundles: int, rest_s: float) -> Constraints:
    """Constraints without any policy."""
    return Constraints(
        rules=(),
        kind=np.zeros(bundles, np.int64),
        forbidden=np.full((1, brokers), ALLOWED, np.int16),
        fixed=np.full(bundles, FREE, np.int16),
        rest_s=np.full(bundles, rest_s),
        weight=np.ones(bundles),
        group=np.full(bundles, FREE, np.int64),
    )
