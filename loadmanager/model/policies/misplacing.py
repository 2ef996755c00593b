"""Finds all bundles in the table whose broker the policies forbid, e.g. after a policy has changed. Pure.

A model has only the hottest bundles of each broker, but a cold bundle may be misplaced as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from loadmanager.model.cluster import Brokers
from loadmanager.model.constraints import ALLOWED
from loadmanager.model.policies.affinity import grouped
from loadmanager.model.policies.claims import Claims
from loadmanager.model.policies.constraining import fleet_of
from loadmanager.model.policies.model import Policies
from loadmanager.model.policies.overriding import why_paused
from loadmanager.model.policies.permissions import Permissions
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


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
