"""Which brokers may hold a bundle at one moment: rows that bundles with the same permissions share. Pure.

The most specific rule wins: a quarantine over everything, then a pin, then the bundle's exclusions together with the
isolation of its namespace, then the preference for newer releases. A pin binds while its broker is live and not
draining; otherwise the other rules hold. Each hard rule has a number, the values of `Constraints.forbidden` and
`fixed`.

Namespace isolation is as in Pulsar. A namespace goes to the primary brokers of its policy, and also to secondary ones
while fewer than `min_available` primaries are available. If several policies match a namespace, all of them hold. A
namespace without a policy goes to brokers that are no policy's primary. Without such a broker it has no place, as in
Pulsar: reserved brokers stay reserved when the others are gone. Secondaries that opened because the primaries were full
close only when the primaries are well below the threshold (`RELIEF`). The bundles that moved there relieved the
primaries, and would otherwise be moved back at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import ALLOWED
from loadmanager.model.policies.model import BundlePolicy, IsolationPolicy, Policies
from loadmanager.model.policies.patterns import Pattern, compiled, matches_namespace, matching_brokers

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


MOST = np.iinfo(np.int16).max
"""The most rules that fit into 16 bits; further ones share one number."""


class Rules:
    """Numbers rules in the order in which they are first named."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, rule: str) -> int:
        """The number of this rule; the same words have the same number."""
        if rule not in self._numbers and len(self._numbers) >= MOST:
            rule = "one of very many rules"
        return self._numbers.setdefault(rule, len(self._numbers))

    def texts(self) -> tuple[str, ...]:
        """The rules; each index is the rule's number."""
        return tuple(self._numbers)


RELIEF = 0.8
"""A fraction of the usage threshold: bundles stay on a secondary until the primaries are below it."""

NAMESPACES_KEPT = 100_000

Flags = NDArray[np.bool_]
Matched = tuple[str, ...]
"""The names of the policies that hold for a namespace, sorted."""


class Claim(msgspec.Struct, frozen=True, eq=False):
    """One policy applied to these brokers: `open` ones take newcomers; bundles on `tolerated` ones may stay there."""

    primary: Flags
    open: Flags
    tolerated: Flags


class Isolation:
    """All isolation policies, applied to the brokers of a fleet."""

    def __init__(self, policies: Mapping[str, IsolationPolicy], fleet: Fleet) -> None:
        self._policies = dict(sorted(policies.items()))
        self._claims = {name: claim(policy, fleet) for name, policy in self._policies.items()}
        self._asked = _asked_of(tuple((name, each.namespaces) for name, each in self._policies.items()))
        self._n = len(fleet.names)

    def matched(self, namespace: str) -> Matched:
        """The names of the policies that hold for the namespace."""
        return self._asked.matched(namespace)

    def row(self, matched: Matched, rules: Rules) -> NDArray[np.int16]:
        """(n,): ALLOWED, or the rule that refuses newcomers."""
        row = np.full(self._n, ALLOWED, np.int16)
        if not matched:
            for name, each in self._claims.items():
                row[each.primary & (row == ALLOWED)] = rules.number(f"reserved by isolation policy '{name}'")
        for name in matched:
            row[~self._claims[name].open & (row == ALLOWED)] = rules.number(f"isolation policy '{name}'")
        return row

    def tolerated(self, matched: Matched) -> Flags:
        """(n,): brokers that refuse newcomers, but may keep what they have."""
        stay, open_ = np.ones(self._n, np.bool_), np.ones(self._n, np.bool_)
        for name in matched:
            each = self._claims[name]
            stay &= each.open | each.tolerated
            open_ &= each.open
        return stay & ~open_


def claim(policy: IsolationPolicy, fleet: Fleet) -> Claim:
    """The brokers that a policy gives to its namespaces at present."""
    primary = matching_brokers(policy.primary, fleet.names)
    secondary = matching_brokers(policy.secondary, fleet.names) & ~primary
    limit = policy.usage_threshold_percent / 100
    there = primary & ~fleet.draining
    needed = policy.min_available
    opened = _count(there & (fleet.usage < limit)) < needed
    kept = _count(there & (fleet.usage < RELIEF * limit)) < needed
    nobody = np.zeros(len(fleet.names), np.bool_)
    return Claim(
        primary=primary,
        open=primary | secondary if opened else primary,
        tolerated=secondary if kept and not opened else nobody,
    )


class _Asked:
    """Finds the policies that match a namespace; most patterns name a tenant, and are not tried for other tenants."""

    def __init__(self, policies: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        self._of_tenant: dict[str, list[tuple[str, Pattern]]] = {}
        self._of_any: list[tuple[str, Pattern]] = []
        self._known: dict[str, Matched] = {}
        for name, patterns in policies:
            for pattern in map(compiled, patterns):
                tenant = pattern.tenant
                fitting = self._of_any if tenant is None else self._of_tenant.setdefault(tenant, [])
                fitting.append((name, pattern))

    def matched(self, namespace: str) -> Matched:
        found = self._known.get(namespace)
        if found is None:
            if len(self._known) >= NAMESPACES_KEPT:
                self._known.clear()
            tried = (*self._of_tenant.get(namespace.partition("/")[0], ()), *self._of_any)
            matching = {name for name, pattern in tried if pattern.matches(namespace)}
            found = self._known[namespace] = tuple(sorted(matching))
        return found


@lru_cache(16)
def _asked_of(policies: tuple[tuple[str, tuple[str, ...]], ...]) -> _Asked:
    """A cached `_Asked`: most rounds repeat the same question."""
    return _Asked(policies)


def brokers_of(policies: Mapping[str, IsolationPolicy], namespace: str, brokers: tuple[str, ...]) -> tuple[str, ...]:
    """The brokers that may ever hold the namespace, primary or secondary, whichever are available now."""
    named = [each for each in policies.values() if matches_namespace(each.namespaces, namespace)]
    if not named:
        reserved = tuple(pattern for each in policies.values() for pattern in each.primary)
        return tuple(b for b, claimed in zip(brokers, matching_brokers(reserved, brokers), strict=True) if not claimed)
    fits = np.ones(len(brokers), np.bool_)
    for each in named:
        fits &= matching_brokers((*each.primary, *each.secondary), brokers)
    return tuple(broker for broker, ok in zip(brokers, fits, strict=True) if ok)


def _count(flags: Flags) -> int:
    return int(np.count_nonzero(flags))


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
