"""Finds the bundle policies that hold for a bundle: those whose range overlaps it. Pure.

A policy is written for a bundle, but holds for its range: the children of a split inherit it, and so does the result of
a merge. If several hold, the one with the smallest range takes precedence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from loadmanager.model.policies.model import BundlePolicy
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
