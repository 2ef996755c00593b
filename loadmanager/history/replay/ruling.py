"""The policies in force in a window, for its rows of bundles and brokers; from the record of a decision. Pure.

A decision's model has the hard rules computed for the bundles and brokers in it. A bundle that is not in the model gets
the rules of its namespace there. Brokers that came later are under no rule, and neither are namespaces without a bundle
in the model. The rules hold for the whole window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.decisions.codec import BadDecision, NewerDecision, decode
from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, UNLIMITED, ClusterModel, Constraints, Flags, Floats, Ints
from loadmanager.strategies.playground.cluster import SimulatedCluster, View
from statechannel.law.bundle import Bundle

Short = NDArray[np.int16]


class Ruling(msgspec.Struct, frozen=True, eq=False):
    """As `Constraints`, for all m bundles and n brokers of a window.

    What depends on the placement is computed per round. `rest_s` is NaN where no policy sets it.
    """

    rules: tuple[str, ...]
    kind: Ints
    forbidden: Short
    fixed: Short
    rest_s: Floats
    weight: Floats
    group: Ints
    groups: tuple[str, ...]
    spread_over_domains: bool
    isolated: Flags
    domains: tuple[str, ...]
    max_bundles: Ints

    def allowed(self, bundle: int) -> Flags:
        """(n,): which brokers may hold this bundle."""
        found: Flags = self.forbidden[self.kind[bundle]] == ALLOWED
        return found

    def applied(self, view: View, cluster: SimulatedCluster, rest_s: float) -> ClusterModel:
        """The model of a round under these rules; `rest_s` is the setting `bundle_rest_s`."""
        rows, brokers = view.bundle_rows, view.broker_rows
        presence, here = self._apart(cluster, brokers)
        constraints = Constraints(
            rules=self.rules,
            kind=self.kind[rows],
            forbidden=self.forbidden[:, brokers],
            fixed=self.fixed[rows],
            rest_s=np.where(np.isnan(self.rest_s[rows]), rest_s, self.rest_s[rows]),
            weight=self.weight[rows],
            group=self.group[rows],
            groups=self.groups,
            spread_over_domains=self.spread_over_domains,
            presence=presence,
            namespace_here=here,
            isolated=self.isolated[rows] if self.isolated.any() else None,
        )
        there = msgspec.structs.replace(
            view.model.brokers,
            domains=tuple(self.domains[row] for row in brokers.tolist()),
            max_bundles=self.max_bundles[brokers],
        )
        return ClusterModel(there, view.model.bundles, constraints, view.model.at_ms)

    def _apart(self, cluster: SimulatedCluster, brokers: Ints) -> tuple[Ints | None, Ints | None]:
        """(g, n) and (namespaces, n): where namespaces of anti-affinity groups are; None without groups."""
        if not self.groups:
            return None, None
        scenario, place = cluster.scenario, cluster.place
        namespaces, size = len(scenario.namespaces), scenario.brokers
        held = (place != NOWHERE) & (self.group != FREE)
        cells = scenario.namespace[held] * size + place[held]
        here = np.bincount(cells, minlength=namespaces * size).reshape(namespaces, size)[:, brokers]
        group = np.full(namespaces, FREE)
        group[scenario.namespace] = self.group
        presence = np.stack([(here[group == each] > 0).sum(axis=0) for each in range(len(self.groups))])
        return presence.astype(np.int64), here.astype(np.int64)


def ruling(data: bytes, brokers: Sequence[str], bundles: Sequence[Bundle]) -> Ruling | None:
    """The rules for these rows from the record of a decision; None if it cannot be read, or has no model."""
    try:
        record = decode(data)
    except (BadDecision, NewerDecision):
        return None
    model = record.model
    if model is None:
        return None
    usual_s, constraints = record.restored_settings().bundle_rest_s, model.constraints
    rows, homes = _rows_of(model, bundles), _Namespaces(model)
    like = [row if row != NOWHERE else homes.like(bundle.namespace) for row, bundle in zip(rows, bundles, strict=True)]
    source, known = np.array(like, np.int64), np.array(rows, np.int64) != NOWHERE
    ruled = source != NOWHERE
    kind = np.where(ruled, constraints.kind[source], len(constraints.forbidden)) if len(model.bundles) else None
    if kind is None:
        return None
    own_rest_s = np.where(constraints.rest_s == usual_s, np.nan, constraints.rest_s)
    all_fixed = np.array([known[row] or homes.all_fixed(bundle.namespace) for row, bundle in enumerate(bundles)])
    isolated = np.zeros(len(model.bundles), np.bool_) if constraints.isolated is None else constraints.isolated
    row_of = {broker.name: row for row, broker in enumerate(model.brokers.ids)}
    columns = np.array([row_of.get(name, NOWHERE) for name in brokers], np.int64)
    return Ruling(
        rules=constraints.rules,
        kind=kind.astype(np.int64),
        forbidden=_forbidden(constraints, columns),
        fixed=np.where(ruled & all_fixed, constraints.fixed[source], FREE).astype(np.int16),
        rest_s=np.where(ruled, own_rest_s[source], np.nan),
        weight=np.where(ruled, constraints.weight[source], 1.0),
        group=np.where(ruled, constraints.group[source], FREE).astype(np.int64),
        groups=constraints.groups,
        spread_over_domains=constraints.spread_over_domains,
        isolated=ruled & isolated[source],
        domains=tuple("" if row == NOWHERE else model.brokers.domains[row] for row in columns.tolist()),
        max_bundles=np.where(columns == NOWHERE, UNLIMITED, model.brokers.max_bundles[columns]),
    )


def _forbidden(constraints: Constraints, columns: Ints) -> Short:
    """(k + 1, n): the last row is for namespaces that the model does not have."""
    found = np.full((len(constraints.forbidden) + 1, len(columns)), ALLOWED, np.int16)
    there = columns != NOWHERE
    found[:-1, there] = constraints.forbidden[:, columns[there]]
    return found


def _rows_of(model: ClusterModel, bundles: Iterable[Bundle]) -> list[int]:
    """For each bundle the row of the model's bundle that contains it; NOWHERE if there is none."""
    held: dict[str, list[tuple[int, int, int]]] = {}
    for row, each in enumerate(model.bundles.ids):
        held.setdefault(each.namespace, []).append((each.lo, each.hi, row))
    for each in held.values():
        each.sort()
    found: list[int] = []
    for bundle in bundles:
        ranges = held.get(bundle.namespace, [])
        at = bisect_right(ranges, bundle.lo, key=lambda each: each[0]) - 1
        inside = at >= 0 and bundle.hi <= ranges[at][1]
        found.append(ranges[at][2] if inside else NOWHERE)
    return found


class _Namespaces:
    """The rules of most of a namespace's bundles in a model."""

    def __init__(self, model: ClusterModel) -> None:
        self._like: dict[str, int] = {}
        self._fixed: dict[str, bool] = {}
        held: dict[str, list[int]] = {}
        for row, each in enumerate(model.bundles.ids):
            held.setdefault(each.namespace, []).append(row)
        rules, fixed = model.constraints, model.constraints.fixed
        told = list(zip(rules.kind.tolist(), rules.rest_s.tolist(), rules.weight.tolist(), strict=True))
        for name, rows in held.items():
            usual = Counter(told[row] for row in rows).most_common(1)[0][0]
            self._like[name] = next(row for row in rows if told[row] == usual)
            self._fixed[name] = bool((fixed[rows] != FREE).all())

    def like(self, namespace: str) -> int:
        """The row of a bundle with the namespace's usual rules; NOWHERE where the model has none."""
        return self._like.get(namespace, NOWHERE)

    def all_fixed(self, namespace: str) -> bool:
        """Whether all its bundles in the model stay where they are."""
        return self._fixed.get(namespace, False)
