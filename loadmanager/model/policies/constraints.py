"""Applies the policies to the rows of a model: columns of brokers, hard rules, and bundles that must move. Pure.

Bundles with the same permissions share a kind: they have the same isolation of their namespace and the same bundle
policies, and their own broker either tolerates each of them or none. Whether a bundle
must stay, how long it rests and what its move costs is computed once for each pair of a namespace and a combination
of bundle policies. Anti-affinity groups are columns: how many of a group's namespaces have bundles on each broker.

A model has only the hottest bundles of each broker, but a cold bundle may be misplaced as well. So all bundles in the
table are searched for those whose broker the policies forbid, e.g. after a policy has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import ALLOWED, FREE, UNLIMITED, Brokers, Constraints
from loadmanager.model.load import weights_of
from loadmanager.model.policies.effective import Claims, balances, overrides_for, why_paused
from loadmanager.model.policies.model import NamespacePolicy, Policies
from loadmanager.model.policies.permissions import WHEREVER, Claimed, Fleet, Permissions
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

Ints = NDArray[np.int64]

DENSE = 1 << 24
"""Up to this many possible keys, a table of all is quicker than sorting those that occur."""


def numbered(keys: Ints, possible: int) -> tuple[Ints, Ints]:
    """The distinct keys, ascending, and each key's index among them. Keys are from 0 to below `possible`."""
    if possible > DENSE:
        distinct, places = np.unique(keys, return_inverse=True)
        return distinct, places.astype(np.int64)
    occurs = np.zeros(possible, np.bool_)
    occurs[keys] = True
    distinct = np.flatnonzero(occurs).astype(np.int64)
    place = np.zeros(possible, np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[keys]


Holdings = Mapping[str, Mapping[BrokerId, int]]
"""For each namespace in a group, how many bundles each broker holds by the whole table."""


class Spread(msgspec.Struct, frozen=True, eq=False):
    """The groups as columns; `of_namespace`: (namespaces,), the group of each or FREE; the rest as in `Constraints`."""

    groups: tuple[str, ...]
    of_namespace: NDArray[np.int64]
    presence: NDArray[np.int64] | None
    namespace_here: NDArray[np.int64] | None


def grouped(policies: Mapping[str, NamespacePolicy]) -> dict[str, str]:
    """The anti-affinity group of each namespace that is in one."""
    return {name: each.anti_affinity_group for name, each in policies.items() if each.anti_affinity_group}


def spread(
    policies: Mapping[str, NamespacePolicy],
    namespaces: Sequence[str],
    rows: Mapping[BrokerId, int],
    holdings: Holdings,
) -> Spread:
    """The groups of these namespaces; `rows` are the brokers'."""
    group_of = grouped(policies)
    groups = tuple(sorted(set(group_of.values())))
    if not groups:
        return Spread((), np.full(len(namespaces), FREE, np.int64), None, None)
    number = {group: at for at, group in enumerate(groups)}
    of_namespace = np.fromiter(
        (number[group_of[name]] if name in group_of else FREE for name in namespaces), np.int64, len(namespaces)
    )
    presence = np.zeros((len(groups), len(rows)), np.int64)
    for name, group in group_of.items():
        for broker, held in holdings.get(name, {}).items():
            if held > 0 and broker in rows:
                presence[number[group], rows[broker]] += 1
    here = np.zeros((len(namespaces), len(rows)), np.int64)
    for at, name in enumerate(namespaces):
        if name in group_of:
            for broker, held in holdings.get(name, {}).items():
                if broker in rows:
                    here[at, rows[broker]] = held
    return Spread(groups, of_namespace, presence, here)


Combined = tuple[Ints, Sequence[Claimed]]
"""(m,), which combination of bundle policies holds for each bundle; and the combinations."""

_NOTHING = NamespacePolicy()
_UNPINNED = -2


class BundleRows(Protocol):
    """The columns of a model's bundles that are needed here."""

    @property
    def ids(self) -> Sequence[Bundle]:
        """(m,)"""
        ...

    @property
    def namespaces(self) -> tuple[str, ...]:
        """By index."""
        ...

    @property
    def namespace(self) -> Ints:
        """(m,), an index into `namespaces`."""
        ...

    @property
    def owner(self) -> Ints:
        """(m,), a broker's row, or -1."""
        ...


class Terms(msgspec.Struct, frozen=True, eq=False):
    """Columns of `Constraints`, (m,) each."""

    fixed: NDArray[np.int16]
    rest_s: NDArray[np.float64]
    weight: NDArray[np.float64]


class _Columns:
    """(pairs,) each, with the values that hold without any policy."""

    def __init__(self, pairs: int, rest_s: float) -> None:
        self.firm = np.full(pairs, FREE, np.int16)
        """Rules that hold even if the broker drains."""
        self.soft = np.full(pairs, FREE, np.int16)
        """Rules that a drain overrides."""
        self.pinned = np.full(pairs, _UNPINNED, np.int64)
        self.pin = np.full(pairs, FREE, np.int16)
        self.rest_s = np.full(pairs, rest_s)
        self.weight = np.ones(pairs)


def terms_of(
    policies: Policies,
    permissions: Permissions,
    brokers: Brokers,
    bundles: BundleRows,
    combined: Combined,
    settings: Settings,
) -> Terms:
    """The terms of each bundle. A drain of its broker overrides pins and `balancing`, but no pause."""
    combination, combinations = combined
    key = bundles.namespace * len(combinations) + combination
    pairs, pair = numbered(key, len(bundles.namespaces) * len(combinations))
    columns = _Columns(len(pairs), settings.bundle_rest_s)
    for at, each in enumerate(pairs.tolist()):
        namespace, claimed = bundles.namespaces[each // len(combinations)], combinations[each % len(combinations)]
        if claimed or policies.cluster.paused or namespace in policies.namespaces:
            _fill(columns, at, policies, permissions, namespace, claimed, brokers)
    owner = bundles.owner
    going = (owner >= 0) & brokers.draining[owner] if len(brokers) else np.zeros(len(owner), np.bool_)
    soft = np.where(columns.pinned[pair] == owner, columns.pin[pair], columns.soft[pair])
    firm = columns.firm[pair]
    return Terms(
        fixed=np.where((firm == FREE) & ~going, soft, firm).astype(np.int16),
        rest_s=columns.rest_s[pair],
        weight=columns.weight[pair],
    )


def _fill(
    columns: _Columns,
    at: int,
    policies: Policies,
    permissions: Permissions,
    namespace: str,
    claimed: Claimed,
    brokers: Brokers,
) -> None:
    rules = permissions.rules
    paused = why_paused(policies, namespace, claimed)
    if paused:
        columns.firm[at] = rules.number(paused)
    elif not balances(policies, namespace, claimed):
        columns.soft[at] = rules.number("balancing is off for it")
    if any(each.pin == WHEREVER for each in claimed):
        columns.soft[at] = rules.number("pinned to where it is")
    bound = permissions.pinned_to(claimed)
    if bound >= 0:
        columns.pinned[at], columns.pin[at] = bound, rules.number(f"pinned to {brokers.ids[bound].name}")
    overrides = overrides_for(policies, namespace, claimed)
    columns.rest_s[at] = float(overrides.get("bundle_rest_s", columns.rest_s[at]))
    columns.weight[at] = policies.namespaces.get(namespace, _NOTHING).weight
    for each in claimed:
        columns.weight[at] *= each.weight


CAPACITIES = ("cpu", "memory_bytes", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s")
"""The names of capacities, in the order of a model's resources."""


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
        spread_over_domains=any(brokers.domains),
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


def misplaced(
    policies: Policies, brokers: Brokers, table: OwnershipTable, settings: Settings
) -> Iterator[tuple[Bundle, BrokerId]]:
    """Assigned bundles that must leave their broker, each once; `brokers` come from `with_policies`.

    Bundles that a pause or a quarantine keeps there are not among them.
    """
    seen: set[Bundle] = set()
    claims = Claims(policies.bundles)
    for entry in _suspects(policies, brokers, table, settings, claims):
        holder, bundle = entry.holder, entry.bundle
        if bundle in seen or holder is None or holder not in brokers.rows or entry.state is not State.ASSIGNED:
            continue
        seen.add(bundle)
        if not why_paused(policies, bundle.namespace, tuple(policy for _, policy in claims.on(bundle))):
            yield bundle, holder


def kept_apart(policies: Policies, brokers: Brokers, table: OwnershipTable) -> Iterator[tuple[Bundle, BrokerId]]:
    """Assigned bundles of namespaces that share an anti-affinity group: a model needs all to keep them apart."""
    groups = grouped(policies.namespaces)
    sizes = Counter(groups.values())
    for name, group in groups.items():
        namespace = table.namespace(name)
        if namespace is None or sizes[group] == 1:
            continue
        for entry in namespace.entries:
            if entry.state is State.ASSIGNED and entry.holder is not None and entry.holder in brokers.rows:
                yield entry.bundle, entry.holder


def _suspects(
    policies: Policies, brokers: Brokers, table: OwnershipTable, settings: Settings, claims: Claims
) -> Iterator[Ownership]:
    for broker in brokers.ids:
        policy = policies.brokers.get(broker.name)
        if policy is not None and policy.drain:
            yield from (entry for bundle in table.held_by(broker) if (entry := table.get(bundle)) is not None)
    if not (policies.isolation or policies.bundles):
        return
    permissions = Permissions(policies, fleet_of(brokers, settings), newest_only=settings.prefer_later_versions)
    for name in table.namespaces() if policies.isolation else tuple(claims.namespaces):
        yield from _in_namespace(name, permissions, brokers.rows, table, claims)


def _in_namespace(
    name: str, permissions: Permissions, rows: Mapping[BrokerId, int], table: OwnershipTable, claims: Claims
) -> Iterator[Ownership]:
    namespace = table.namespace(name)
    matched = permissions.matched(name)
    newcomers, tolerated = permissions.of_namespace(matched)
    wrong = ((newcomers != ALLOWED) & ~tolerated).tolist()
    claimed_here = name in claims
    if namespace is None or not (any(wrong) or claimed_here):
        return
    for entry in namespace.entries:
        row = -1 if entry.holder is None else rows.get(entry.holder, -1)
        if row < 0:
            continue
        claimed = tuple(policy for _, policy in claims.on(entry.bundle)) if claimed_here else ()
        if claimed:
            stays = row if bool(tolerated[row]) else -1
            if int(permissions.row(matched, claimed, stays)[row]) != ALLOWED:
                yield entry
        elif wrong[row]:
            yield entry
