"""Anti-affinity: where other namespaces of a bundle's group are, after the plan's moves so far.

A broker counts by itself and by its failure domain. Without a domain it is a domain of its own.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import FREE, ClusterModel, Flags, Floats, Ints


class Affinity:
    """Counts of *other* namespaces of the group, by broker and by domain. Mutable: follows the plan's moves."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        constraints = model.constraints
        self._by_domain = constraints.spread_over_domains
        self._presence = None if constraints.presence is None else constraints.presence.copy()
        self._here = None if constraints.namespace_here is None else constraints.namespace_here.copy()
        names = [domain or f"#{row}" for row, domain in enumerate(model.brokers.domains)]
        self._domain: Ints = np.unique(np.array(names), return_inverse=True)[1] if names else np.zeros(0, np.int64)
        self._nobody: Ints = np.zeros(len(names), np.int64)
        self._others: tuple[int, Ints, Ints] | None = None  # the namespace that was last asked for, and its counts

    def others(self, row: int) -> tuple[Ints, Ints]:
        """(n,), (n,): other namespaces of the bundle's group in the broker's domain, and on the broker itself.

        The first is 0 if domains don't count. Only for bundles in a group.
        """
        group, namespace = int(self._model.constraints.group[row]), int(self._model.bundles.namespace[row])
        if self._presence is None or self._here is None or group == FREE:
            return self._nobody, self._nobody
        if self._others is None or self._others[0] != namespace:
            on_broker = self._presence[group] - (self._here[namespace] > 0)
            in_domain = self._nobody
            if self._by_domain:
                in_domain = np.bincount(self._domain, on_broker).astype(np.int64)[self._domain]
            self._others = namespace, in_domain, on_broker
        return self._others[1:]

    def refused(self, row: int, source: int) -> Flags:
        """(n,): brokers where anti-affinity would get worse than on the source, by domain first."""
        in_domain, on_broker = self.others(row)
        equal = in_domain == in_domain[source]
        return (in_domain > in_domain[source]) | (equal & (on_broker > on_broker[source]))

    def better(self, row: int, source: int) -> Flags:
        """(n,): brokers where anti-affinity would get better than on the source, by domain first."""
        in_domain, on_broker = self.others(row)
        equal = in_domain == in_domain[source]
        return (in_domain < in_domain[source]) | (equal & (on_broker < on_broker[source]))

    def held(self, row: int, broker: int) -> int:
        """How many bundles of the bundle's namespace the broker holds, by the whole table."""
        return 0 if self._here is None else int(self._here[self._model.bundles.namespace[row], broker])

    def held_by(self, row: int) -> Ints:
        """(n,): as `held`, for every broker."""
        return np.zeros_like(self._domain) if self._here is None else self._here[self._model.bundles.namespace[row]]

    def fewest(self, row: int, after: Floats) -> Floats:
        """(n,): `after`, but infinite on brokers with more others than necessary; infinite entries stay excluded."""
        kept = np.isfinite(after)
        for counts in self.others(row):
            kept &= counts == counts[kept].min(initial=np.iinfo(np.int64).max)
        return np.where(kept, after, np.inf)

    def move(self, row: int, source: int, destination: int) -> None:
        """Follow a move."""
        group, namespace = int(self._model.constraints.group[row]), int(self._model.bundles.namespace[row])
        if self._presence is None or self._here is None or group == FREE:
            return
        self._others = None
        here = self._here[namespace]
        here[source] -= 1
        self._presence[group, source] -= int(here[source] == 0)
        self._presence[group, destination] += int(here[destination] == 0)
        here[destination] += 1
