"""Applies the policies to the rows of a model: columns of brokers, and the hard rules as columns. Pure.

Bundles with the same permissions share a kind: they have the same isolation of their namespace and the same bundle
policies, and their own broker either tolerates each of them or none.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import UNLIMITED, Brokers
from loadmanager.model.constraints import Constraints
from loadmanager.model.load.usage import weights_of
from loadmanager.model.policies.affinity import Holdings, spread
from loadmanager.model.policies.claims import Claims
from loadmanager.model.policies.fleet import Fleet
from loadmanager.model.policies.model import Policies
from loadmanager.model.policies.numbering import numbered
from loadmanager.model.policies.permissions import Claimed, Permissions
from loadmanager.model.policies.terms import BundleRows, terms_of
from loadmanager.settings import Settings

CAPACITIES = ("cpu", "memory_bytes", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s")
"""The names of capacities, in the order of a model's resources."""

Ints = NDArray[np.int64]


def with_policies(policies: Policies, brokers: Brokers) -> Brokers:
    """The brokers with their policies applied: drains, pauses, limits, capacities, failure domains."""
    domain_of = {name: domain for domain, each in policies.failure_domains.items() for name in each.brokers}
    if not (policies.brokers or domain_of or policies.cluster.paused):
        return brokers
    capacity, most = brokers.capacity.copy(), brokers.max_bundles.copy()
    draining, paused = brokers.draining.copy(), brokers.paused | policies.cluster.paused
    for row, broker in enumerate(brokers.ids):
        policy = policies.brokers.get(broker.name)
        if policy is None:
            continue
        draining[row] |= policy.drain
        paused[row] |= policy.paused
        most[row] = most[row] if policy.max_bundles is None else min(policy.max_bundles, UNLIMITED)
        for resource, value in policy.capacity.items():
            if resource in CAPACITIES:
                capacity[row, CAPACITIES.index(resource)] = value
    domains = tuple(domain_of.get(each.name, said) for each, said in zip(brokers.ids, brokers.domains, strict=True))
    return msgspec.structs.replace(
        brokers, capacity=capacity, draining=draining, paused=paused, max_bundles=most, domains=domains
    )


def constraints_for(
    policies: Policies, brokers: Brokers, bundles: BundleRows, holdings: Holdings, settings: Settings
) -> Constraints:
    """The hard rules for these rows; `brokers` come from `with_policies`.

    `holdings` says, for namespaces in anti-affinity groups, how many bundles each broker holds by the whole table.
    """
    permissions = Permissions(policies, fleet_of(brokers, settings), newest_only=settings.prefer_later_versions)
    combination, combinations = _claimed(policies, bundles)
    kind, forbidden = _kinds(permissions, bundles, combination, combinations)
    terms = terms_of(policies, permissions, brokers, bundles, (combination, combinations), settings)
    spreading = spread(policies.namespaces, bundles.namespaces, brokers.rows, holdings)
    return Constraints(
        rules=permissions.rules.texts(),
        kind=kind,
        forbidden=forbidden,
        fixed=terms.fixed,
        rest_s=terms.rest_s,
        weight=terms.weight,
        group=spreading.of_namespace[bundles.namespace],
        groups=spreading.groups,
        spread_over_domains=settings.failure_domains and any(brokers.domains),
        presence=spreading.presence,
        namespace_here=spreading.namespace_here,
        isolated=_isolated(permissions, bundles),
    )


def fleet_of(brokers: Brokers, settings: Settings) -> Fleet:
    """A model's brokers as the rules look at them, with the usage that placement sees."""
    usage = (brokers.used / brokers.capacity * weights_of(settings).row).max(axis=1, initial=0.0)
    usage[~brokers.known] = 0.0
    return Fleet(tuple(each.name for each in brokers.ids), brokers.versions, brokers.draining, usage)


def _claimed(policies: Policies, bundles: BundleRows) -> tuple[Ints, list[Claimed]]:
    """(m,), which combination of bundle policies holds for each bundle, 0 for none; and the combinations."""
    combination, combinations = np.zeros(len(bundles.ids), np.int64), list[Claimed]([()])
    if not policies.bundles:
        return combination, combinations
    index = {name: at for at, name in enumerate(bundles.namespaces)}
    for namespace, named in Claims(policies.bundles).namespaces.items():
        if namespace not in index:
            continue
        rows = np.flatnonzero(bundles.namespace == index[namespace])
        lo = np.fromiter((bundles.ids[row].lo for row in rows.tolist()), np.int64, len(rows))
        hi = np.fromiter((bundles.ids[row].hi for row in rows.tolist()), np.int64, len(rows))
        order = np.argsort(lo, kind="stable")
        rows, lo, hi = rows[order], lo[order], hi[order]
        firsts = np.searchsorted(np.maximum.accumulate(hi), [bundle.lo for bundle, _ in named], "right").tolist()
        ends = np.searchsorted(lo, [bundle.hi for bundle, _ in named], "left").tolist()
        for (bundle, policy), first, end in zip(named, firsts, ends, strict=True):
            hit = rows[first:end][hi[first:end] > bundle.lo]
            for before in sorted(set(combination[hit].tolist())):
                combination[hit[combination[hit] == before]] = len(combinations)
                combinations.append((*combinations[before], policy))
    return combination, combinations


def _isolated(permissions: Permissions, bundles: BundleRows) -> NDArray[np.bool_] | None:
    by_namespace = np.array([bool(permissions.matched(name)) for name in bundles.namespaces], np.bool_)
    return by_namespace[bundles.namespace] if by_namespace.any() else None


def _kinds(
    permissions: Permissions, bundles: BundleRows, combination: Ints, combinations: list[Claimed]
) -> tuple[Ints, NDArray[np.int16]]:
    matched = [permissions.matched(name) for name in bundles.namespaces]
    distinct = list(dict.fromkeys(matched)) or [()]
    number = {each: at for at, each in enumerate(distinct)}
    isolation = np.array([number[each] for each in matched], np.int64)[bundles.namespace]
    tolerated = np.stack([permissions.of_namespace(each)[1] for each in distinct])
    owner, n = bundles.owner, tolerated.shape[1]
    stays = np.full(len(owner), -1, np.int64)
    if tolerated.any():
        there = owner >= 0
        there[there] = tolerated[isolation[there], owner[there]]
        stays[there] = owner[there]
    key = (isolation * len(combinations) + combination) * (n + 1) + stays + 1
    kinds, kind = numbered(key, len(distinct) * len(combinations) * (n + 1))
    rows = [
        permissions.row(
            distinct[each // (n + 1) // len(combinations)],
            combinations[each // (n + 1) % len(combinations)],
            each % (n + 1) - 1,
        )
        for each in map(int, kinds)
    ]
    return kind, np.stack(rows) if rows else np.zeros((0, n), np.int16)
