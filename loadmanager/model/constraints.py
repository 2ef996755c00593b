"""The hard rules of a placement, worked out for the rows of a model: who may hold what, what must stay. Values only.

Made from policies (`loadmanager.model.policies`); a model without policies has `unconstrained(…)`. Bundles with the
same permissions share a row of `forbidden`, so that a hundred thousand bundles under ten policies cost ten rows.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

ALLOWED = -1
FREE = -1


class Constraints(msgspec.Struct, frozen=True, eq=False):
    """n brokers, m bundles, k kinds of bundles, g anti-affinity groups.

    A bundle may go to broker b iff `forbidden[kind[bundle], b] == ALLOWED`; else the number names the rule that refuses
    it. A bundle whose own broker is forbidden is misplaced: it must go. `fixed[bundle]` names the rule that keeps it
    where it is (pinned, quarantined, paused, its namespace is excluded from balancing), FREE if none does.
    """

    rules: tuple[str, ...]
    """What `forbidden` and `fixed` point to, in words: "isolation policy 'pay'", "pinned to a:6650", …"""
    kind: NDArray[np.int64]
    """(m,)"""
    forbidden: NDArray[np.int16]
    """(k, n)"""
    fixed: NDArray[np.int16]
    """(m,)"""
    rest_s: NDArray[np.float64]
    """(m,), how long a moved bundle rests."""
    weight: NDArray[np.float64]
    """(m,), what a move of it costs as a multiple of a usual one; above 0."""
    group: NDArray[np.int64]
    """(m,), the anti-affinity group of the bundle's namespace, FREE if none."""
    groups: tuple[str, ...] = ()
    spread_over_domains: bool = False
    """Whether a group is spread over failure domains first, and over brokers then."""
    presence: NDArray[np.int64] | None = None
    """(g, n): how many *namespaces* of the group have bundles on the broker, by the whole table; None: no groups."""
    namespace_here: NDArray[np.int64] | None = None
    """(namespaces, n): how many bundles of the namespace the broker holds, for namespaces in a group; None without."""
    isolated: NDArray[np.bool_] | None = None
    """(m,): an isolation policy holds for the bundle's namespace; None: for none."""

    def columns(self) -> tuple[NDArray[np.generic], ...]:
        """Everything in it that is an array."""
        columns = (self.kind, self.forbidden, self.fixed, self.rest_s, self.weight, self.group)
        optional = (self.presence, self.namespace_here, self.isolated)
        return (*columns, *(each for each in optional if each is not None))


def unconstrained(brokers: int, bundles: int, rest_s: float) -> Constraints:
    """No policy at all."""
    return Constraints(
        rules=(),
        kind=np.zeros(bundles, np.int64),
        forbidden=np.full((1, brokers), ALLOWED, np.int16),
        fixed=np.full(bundles, FREE, np.int16),
        rest_s=np.full(bundles, rest_s),
        weight=np.ones(bundles),
        group=np.full(bundles, FREE, np.int64),
    )
