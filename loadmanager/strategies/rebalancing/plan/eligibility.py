"""Which bundles may move, and where: the hard rules as filters, and each refusal in words. Decides nothing else.

Rest times are shorter in an overload, and yield to drains and policies. A bundle may return to a broker that a plan
took it from only if its load has really changed, or if drains and policies leave no other place.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, ClusterModel, Flags, Floats, Ints

NO_OWNER = "no owner"
IN_FLIGHT = "in flight"
KEPT = "kept by policy"
PAUSED = "broker paused"
UNKNOWN = "no fresh load data"
DRAINING = "broker draining"
RESTING = "resting"
CAME_FROM = "came from there"
FORBIDDEN = "forbidden by policy"
BUNDLE_LIMIT = "bundle limit"
SPREAD = "anti-affinity"
ITS_OWN = "is there already"

URGENT_REST = 0.1
"""The fraction of its rest time after which a bundle may leave an overloaded broker.

Until then too little is known of its load there.
"""

_NO_OWNER, _IN_FLIGHT, _KEPT, _PAUSED, _UNKNOWN, _RESTING, _FREE = range(7)
STATES = (NO_OWNER, IN_FLIGHT, KEPT, PAUSED, UNKNOWN, RESTING, "")
"""What keeps a bundle in place, by the number in `Eligibility.state`; the first that holds. Empty: nothing."""


class Refusal(msgspec.Struct, frozen=True):
    """A rule, and its numbers in words."""

    rule: str
    detail: str


class Eligibility(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The filters of one model. Flags are by bundle; rules that depend on other moves of the plan are in `draft.py`."""

    model: ClusterModel
    settled: Flags
    """It has an owner that isn't paused, is not in flight, and no rule keeps it: it can move at all."""
    rested: Flags
    misplaced: Flags
    """Settled, but a hard rule forbids its broker."""
    drained: Flags
    """Settled on a draining broker."""

    @cached_property
    def urgent(self) -> Flags:
        """It may leave an overloaded broker, though not fully rested."""
        bundles = self.model.bundles
        rested = bundles.changed | (bundles.moved_s >= self.model.constraints.rest_s * URGENT_REST)
        return self._known & rested

    @cached_property
    def free(self) -> Flags:
        """It may move for balance."""
        return self._known & self.rested

    @cached_property
    def _known(self) -> Flags:
        """Settled on a broker with known load, and nothing forces it away."""
        return self.settled & ~self.misplaced & ~self.drained & self.model.brokers.known[self.model.bundles.owner]

    @cached_property
    def state(self) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """Index into STATES."""
        brokers, bundles = self.model.brokers, self.model.bundles
        owner = bundles.owner
        return np.select(
            (
                owner == NOWHERE,
                bundles.in_flight,
                self.model.constraints.fixed != FREE,
                brokers.paused[owner],
                self.misplaced | self.drained,
                ~brokers.known[owner],
                ~self.rested,
            ),
            (_NO_OWNER, _IN_FLIGHT, _KEPT, _PAUSED, _FREE, _UNKNOWN, _RESTING),
            _FREE,
        ).astype(np.int8)

    def keeps(self, row: int) -> Refusal | None:
        """Why the bundle can't move for balance, None if it can."""
        state = int(self.state[row])
        if state == _FREE:
            return None
        return Refusal(STATES[state], self._detail(row, state))

    def _detail(self, row: int, state: int) -> str:
        model = self.model
        if state == _NO_OWNER:
            return "no broker holds it"
        if state == _IN_FLIGHT:
            return "it is being moved, split or revoked"
        if state == _KEPT:
            return model.constraints.rules[int(model.constraints.fixed[row])]
        owner = model.brokers.ids[int(model.bundles.owner[row])].name
        if state == _PAUSED:
            return f"{owner} is paused"
        if state == _UNKNOWN:
            return f"{owner} has not reported its load"
        rest_s, moved_s = float(model.constraints.rest_s[row]), float(model.bundles.moved_s[row])
        return f"moved {moved_s:.0f} s ago, rests for another {rest_s - moved_s:.0f} s of {rest_s:.0f} s"

    def rejects(self, row: int, broker: int) -> Refusal | None:
        """Why the bundle can't go to a broker whatever the loads; None if it can. Ignores limits and anti-affinity."""
        brokers, constraints = self.model.brokers, self.model.constraints
        name = brokers.ids[broker].name
        rule = int(constraints.forbidden[constraints.kind[row], broker])
        if broker == self.model.bundles.owner[row]:
            return Refusal(ITS_OWN, f"{name} holds it")
        if rule != ALLOWED:
            return Refusal(FORBIDDEN, f"{constraints.rules[rule]} forbids {name}")
        if brokers.paused[broker]:
            return Refusal(PAUSED, f"{name} is paused")
        if brokers.draining[broker]:
            return Refusal(DRAINING, f"{name} is draining")
        if not brokers.known[broker]:
            return Refusal(UNKNOWN, f"{name} has not reported its load")
        if broker in self.barred(row):
            return Refusal(CAME_FROM, f"a planned move took it from {name} within its rest time")
        return None

    def barred(self, row: int) -> tuple[int, ...]:
        """Brokers that planned moves took it from, unless its load has really changed since."""
        return () if self.model.bundles.changed[row] else self.model.bundles.left.get(row, ())


def eligibility_of(model: ClusterModel) -> Eligibility:
    """The filters of a model."""
    brokers, bundles, constraints = model.brokers, model.bundles, model.constraints
    owner = bundles.owner
    settled = (owner != NOWHERE) & ~bundles.in_flight & (constraints.fixed == FREE)
    if brokers.paused.any():
        settled &= ~brokers.paused[owner]
    misplaced = np.zeros(len(bundles), np.bool_)
    if (constraints.forbidden != ALLOWED).any():
        misplaced = settled & (constraints.forbidden[constraints.kind, owner] != ALLOWED)
    drained = settled & brokers.draining[owner] & ~misplaced
    rested = bundles.changed | (bundles.moved_s >= constraints.rest_s)
    return Eligibility(model, settled, rested, misplaced, drained)


class Affinity:
    """Anti-affinity: counts of *other* namespaces of a bundle's group, by broker and by failure domain.

    A broker without a domain is a domain of its own. Mutable: follows the plan's moves.
    """

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
