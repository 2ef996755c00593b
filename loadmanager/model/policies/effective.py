"""Which policies hold for a bundle, and the settings and pauses that follow from them. Pure.

A policy is written for a bundle, but holds for its range: the children of a split inherit it, and so does the result of
a merge. If several hold, the one with the smallest range takes precedence. Overridden settings were checked when they
were written. What may be split or merged is computed once for each kind of bundle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from itertools import accumulate

from loadmanager.model.policies.model import BundlePolicy, Policies
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle

Named = tuple[tuple[Bundle, BundlePolicy], ...]
"""Policies with their bundles, the smallest range first."""


class Claims:
    """Bundle policies by namespace; look-ups are cheap, however many there are."""

    def __init__(self, policies: Mapping[Bundle, BundlePolicy]) -> None:
        by_namespace: dict[str, list[tuple[Bundle, BundlePolicy]]] = {}
        for bundle in sorted(policies):
            by_namespace.setdefault(bundle.namespace, []).append((bundle, policies[bundle]))
        self._rings = {name: _Ring(found) for name, found in by_namespace.items()}

    @property
    def namespaces(self) -> Mapping[str, Named]:
        """All policies by namespace."""
        return {name: tuple(sorted(ring.named, key=_size)) for name, ring in self._rings.items()}

    def __contains__(self, namespace: str) -> bool:
        """Whether the namespace has bundle policies."""
        return namespace in self._rings

    def on(self, bundle: Bundle) -> Named:
        """The policies that hold for the bundle."""
        ring = self._rings.get(bundle.namespace)
        return () if ring is None else ring.on(bundle)


class _Ring:
    """The policies of one namespace, lowest range first; `reach` is the highest end of any range so far."""

    def __init__(self, named: list[tuple[Bundle, BundlePolicy]]) -> None:
        self.named = named
        self._lo = [bundle.lo for bundle, _ in named]
        self._reach = list(accumulate((bundle.hi for bundle, _ in named), max))

    def on(self, bundle: Bundle) -> Named:
        found: list[tuple[Bundle, BundlePolicy]] = []
        at = bisect_left(self._lo, bundle.hi) - 1
        while at >= 0 and self._reach[at] > bundle.lo:
            if self.named[at][0].hi > bundle.lo:
                found.append(self.named[at])
            at -= 1
        return tuple(sorted(found, key=_size)) if len(found) > 1 else tuple(found)


def _size(named: tuple[Bundle, BundlePolicy]) -> tuple[int, int]:
    return named[0].hi - named[0].lo, named[0].lo


def intersects(one: Bundle, other: Bundle) -> bool:
    """Whether the bundles overlap."""
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi


NAMESPACE_SETTINGS = frozenset(
    {
        "bundle_rest_s",
        "merge",
        "namespace_max_bundles",
        "split",
        "split_algorithm",
        "split_max_bandwidth_bytes_s",
        "split_max_keys",
        "split_max_rate_msg_s",
        "split_max_sessions",
    }
)
"""Settings that a namespace's policy may override."""

BUNDLE_SETTINGS = NAMESPACE_SETTINGS - {"namespace_max_bundles"}
"""Settings that a bundle's policy may override."""

Overrides = Mapping[str, float | int | str | bool]


def overrides_for(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> Overrides:
    """The overrides: the namespace's, and over them the bundle's."""
    named = policies.namespaces.get(namespace)
    overrides = dict(named.settings) if named is not None else {}
    for each in reversed(claimed):  # the smallest range takes precedence
        overrides.update(each.settings)
    return overrides


def settings_for(
    settings: Settings, policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()
) -> Settings:
    """The settings for a namespace, or for a bundle in it with these policies."""
    overrides = overrides_for(policies, namespace, claimed)
    return settings.model_copy(update=dict(overrides)) if overrides else settings


def balances(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> bool:
    """Whether automatic moves, splits and merges apply: the bundle's value, else the namespace's, else yes.

    The cluster's switches and pauses apply in addition.
    """
    for each in claimed:
        if each.balancing is not None:
            return each.balancing
    named = policies.namespaces.get(namespace)
    return named is None or named.balancing is None or named.balancing


def why_paused(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> str:
    """The quarantine or pause that stops all automatic decisions on a bundle, drains included; empty if none."""
    quarantined = next((each.quarantined for each in claimed if each.quarantined), "")
    if quarantined:
        return f"quarantined: {quarantined}"
    if policies.cluster.paused:
        return "the cluster is paused" + (f": {policies.cluster.reason}" if policies.cluster.reason else "")
    named = policies.namespaces.get(namespace)
    return f"namespace {namespace} is paused" if named is not None and named.paused else ""


def why_left_alone(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> str:
    """The rule that stops automatic splits, merges and moves of a bundle; empty if there is none."""
    return why_paused(policies, namespace, claimed) or (
        "" if balances(policies, namespace, claimed) else "balancing is off for it"
    )


_Kind = tuple[str, tuple[Bundle, ...]]
"""A namespace, and the bundles whose policies hold."""


class Ruling:
    """The settings and policies of one moment, for the bundles of this owner."""

    def __init__(self, settings: Settings, policies: Policies, owner: str = "") -> None:
        self.settings = settings
        self.policies = policies
        self._claims = Claims(policies.bundles)
        self._owner = owner
        self._settings: dict[_Kind, Settings] = {}
        self._alone: dict[_Kind, str] = {}

    def settings_of(self, bundle: Bundle) -> Settings:
        """The settings for this bundle."""
        kind, claimed = self._kind(bundle)
        found = self._settings.get(kind)
        if found is None:
            found = self._settings[kind] = settings_for(self.settings, self.policies, bundle.namespace, claimed)
        return found

    def why_left_alone(self, bundle: Bundle) -> str:
        """The policy that stops automatic splits and merges of the bundle, empty if there is none."""
        kind, claimed = self._kind(bundle)
        if kind not in self._alone:
            owner = self.policies.brokers.get(self._owner)
            paused = f"broker {self._owner} is paused" if owner is not None and owner.paused else ""
            self._alone[kind] = paused or why_left_alone(self.policies, bundle.namespace, claimed)
        return self._alone[kind]

    def quarantined(self, bundle: Bundle) -> str:
        """Why no broker may be given the bundle, empty if one may."""
        return next((policy.quarantined for policy in self._kind(bundle)[1] if policy.quarantined), "")

    def policies_of(self, bundle: Bundle) -> Hashable:
        """A value that is equal for bundles of a namespace under the same policies."""
        return self._kind(bundle)[0][1]

    def _kind(self, bundle: Bundle) -> tuple[_Kind, tuple[BundlePolicy, ...]]:
        named = self._claims.on(bundle)
        return (bundle.namespace, tuple(each for each, _ in named)), tuple(policy for _, policy in named)
