"""Namespace isolation as in Pulsar: which brokers may hold a namespace, given the live brokers. Pure.

A namespace goes to the primary brokers of its policy, and also to secondary ones while fewer than `min_available`
primaries are available. If several policies match a namespace, all of them hold. A namespace without a policy goes to
brokers that are no policy's primary; without such a broker it has no place, as in Pulsar: brokers that are reserved for
somebody do not become everybody's because the others are gone.

Secondaries that opened because the primaries were full close only when the primaries are well below the threshold
(`RELIEF`): the bundles that moved there relieved the primaries, and would otherwise be called back at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.constraints import ALLOWED
from loadmanager.model.policies.fleet import Fleet
from loadmanager.model.policies.matching import matches_namespace, matching_brokers
from loadmanager.model.policies.model import IsolationPolicy
from loadmanager.model.policies.pattern import Pattern, compiled
from loadmanager.model.policies.rules import Rules

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
    """A cached `_Asked`: most rounds ask the same again."""
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
