"""What the policies say about single bundles: whether a bundle must stay, how long it rests, what a move costs. Pure.

Computed once for each pair of a namespace and a combination of bundle policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import Brokers
from loadmanager.model.constraints import FREE
from loadmanager.model.policies.model import NamespacePolicy, Policies
from loadmanager.model.policies.numbering import numbered
from loadmanager.model.policies.overriding import balances, overrides_for, why_paused
from loadmanager.model.policies.permissions import WHEREVER, Claimed, Permissions
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle

Ints = NDArray[np.int64]
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
