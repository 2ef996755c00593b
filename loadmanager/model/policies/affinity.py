"""Anti-affinity groups as columns: how many of a group's namespaces have bundles on each broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.constraints import FREE
from loadmanager.model.policies.model import NamespacePolicy
from statechannel.law.record import BrokerId

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
