"""Decides which of its bundles an owner splits now, and why not the others. Pure; the memory goes in and out.

The rule is Pulsar's (`DefaultNamespaceBundleSplitStrategyImpl`), taken from its code: a bundle of two or more keys that
is above a limit in more than `split_hits` looks in a row is split, if its namespace stays within
`namespace_max_bundles` and no neighbour is being split, at most `split_bundles_per_round` at a time. Differences: the
fullest goes first (Pulsar: in map order), one split may make more than two parts, and bundles that the round has no
room for keep their hits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

import msgspec

from loadmanager.model.boundaries import FEWEST_PARTS
from loadmanager.model.host import BundleLoad
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.conditions import Limits, Measure, exceeded, fullest, parts_for
from statechannel.law.bundle import Bundle

WORTH_AVERAGING = 0.5
"""From this fraction of a limit on, a bundle is judged by its mean over the window; below, by the last sample."""
FEWEST_KEYS = 2
"""A bundle with fewer keys does not become cooler by a cut."""

SettingsOf = Callable[[Bundle], Settings]
"""The settings of a bundle: policies may override some for a namespace or a bundle."""


def nothing_said(_bundle: Bundle) -> str:
    """Say that no policy applies."""
    return ""


class Rule(StrEnum):
    """Why a bundle is not split."""

    SWITCHED_OFF = "switched off"
    POLICY = "policy"
    TOO_FEW_KEYS = "too few keys"
    NO_LIMIT = "no limit is set"
    BELOW_LIMITS = "below its limits"
    NOT_AT_REST = "not at rest"
    TOO_NARROW = "too narrow"
    HITS = "not long enough"
    NAMESPACE_FULL = "namespace_max_bundles"
    NEIGHBOUR_SPLITS = "a neighbour is being split"
    ROUND_FULL = "split_bundles_per_round"
    NO_CUTS = "no cuts"


class View(msgspec.Struct, frozen=True):
    """What an owner knows of its bundles.

    `loads`: of all its bundles. `assigned`: those at rest. `counts`: bundles of each namespace. `splitting`: all
    bundles that are being split. `left_alone`: the policy that forbids splitting a bundle, else empty.
    """

    loads: Mapping[Bundle, BundleLoad]
    assigned: Collection[Bundle]
    counts: Mapping[str, int]
    splitting: Collection[Bundle] = ()
    left_alone: Callable[[Bundle], str] = nothing_said


class Hot(msgspec.Struct, frozen=True):
    """A bundle to split: the measure above its limit, for how many looks, and how many parts (at most `room`)."""

    bundle: Bundle
    load: BundleLoad
    measure: Measure
    hits: int
    parts: int
    room: int

    def __str__(self) -> str:
        return f"{self.measure}, {self.hits} looks in a row"


class Kept(msgspec.Struct, frozen=True):
    """A bundle that is not split, with the rule and its numbers."""

    bundle: Bundle
    rule: Rule
    detail: str


class SplitDecision(msgspec.Struct, frozen=True):
    """What to split, fullest first; the hot bundles that stay, and how many stay by each rule."""

    splits: tuple[Hot, ...]
    kept: tuple[Kept, ...]
    """The kept bundles that are above a limit. `judge` explains any other."""
    counts: Mapping[Rule, int]
    hits: Mapping[Bundle, int]
    """The memory: looks in a row in which a bundle was above a limit."""


def decide_splits(view: View, settings_of: SettingsOf, hits: Mapping[Bundle, int]) -> SplitDecision:
    """One look at all bundles of an owner. `hits` is the last decision's memory, empty at the start."""
    counted: dict[Bundle, int] = {}
    hot: list[Hot] = []
    counts: Counter[Rule] = Counter()
    kept: list[Kept] = []
    for bundle in view.loads:
        found = judge(view, bundle, settings_of(bundle), hits.get(bundle, 0) + 1)
        if isinstance(found, Hot):
            counted[bundle] = found.hits
            hot.append(found)
            continue
        counts[found.rule] += 1
        if found.rule is Rule.HITS:
            counted[bundle] = hits.get(bundle, 0) + 1
        if found.rule not in _NOT_HOT:
            kept.append(found)
    hot.sort(key=lambda each: (-each.measure.fill, each.bundle))
    splits, left = _within_caps(view, hot, settings_of)
    for each in splits:
        del counted[each.bundle]
    for each in left:
        counts[each.rule] += 1
    return SplitDecision(tuple(splits), (*kept, *left), dict(counts), counted)


def worth_averaging(
    loads: Mapping[Bundle, BundleLoad], settings_of: SettingsOf, hits: Mapping[Bundle, int]
) -> list[Bundle]:
    """The bundles near a limit, or above one the last time: to be judged by more than one sample."""
    return [
        bundle
        for bundle, load in loads.items()
        if bundle in hits
        or ((near := fullest(load, Limits.of(settings_of(bundle)))) is not None and near.fill >= WORTH_AVERAGING)
    ]


_NOT_HOT = frozenset({Rule.BELOW_LIMITS, Rule.NO_LIMIT, Rule.TOO_FEW_KEYS, Rule.SWITCHED_OFF})


def judge(view: View, bundle: Bundle, settings: Settings, hits: int) -> Hot | Kept:
    """Judge one bundle by itself, in its `hits`-th hot look in a row; ignores the caps on all bundles together."""
    load, limits = view.loads[bundle], Limits.of(settings)
    if not settings.balancing or not settings.split:
        return Kept(bundle, Rule.SWITCHED_OFF, "`balancing` or `split` is off")
    if not limits.any:
        return Kept(bundle, Rule.NO_LIMIT, "every split_max_… is 0")
    if load.keys < FEWEST_KEYS:
        return Kept(bundle, Rule.TOO_FEW_KEYS, f"{load.keys} keys; a cut would not make it cooler")
    measure = exceeded(load, limits)
    if measure is None:
        return Kept(bundle, Rule.BELOW_LIMITS, f"at most {fullest(load, limits)}")
    if policy := view.left_alone(bundle):
        return Kept(bundle, Rule.POLICY, f"{measure}; {policy}")
    if bundle.hi - bundle.lo < FEWEST_PARTS:
        return Kept(bundle, Rule.TOO_NARROW, f"{measure}; there is no position inside it")
    if bundle not in view.assigned:
        return Kept(bundle, Rule.NOT_AT_REST, f"{measure}; it is on its way, or being split")
    if hits <= settings.split_hits:
        return Kept(bundle, Rule.HITS, f"{measure} in {hits} looks in a row; more than {settings.split_hits} make it")
    return Hot(bundle, load, measure, hits, parts_for(load, limits), FEWEST_PARTS)


def _within_caps(view: View, hot: list[Hot], settings_of: SettingsOf) -> tuple[list[Hot], list[Kept]]:
    """The bundles that the namespaces and the round have room for, in this order, and why the others wait."""
    splits: list[Hot] = []
    kept: list[Kept] = []
    more: Counter[str] = Counter()
    for each in hot:
        settings, namespace = settings_of(each.bundle), each.bundle.namespace
        count = view.counts.get(namespace, 0) + more[namespace]
        room = settings.namespace_max_bundles - count + 1
        if room < FEWEST_PARTS:
            detail = f"{each}; {namespace} has {count} bundles, {settings.namespace_max_bundles} at most"
            kept.append(Kept(each.bundle, Rule.NAMESPACE_FULL, detail))
        elif (neighbour := _splitting_beside(each.bundle, view.splitting)) is not None:
            kept.append(Kept(each.bundle, Rule.NEIGHBOUR_SPLITS, f"{each}; {neighbour.range} is being split"))
        elif len(splits) >= settings.split_bundles_per_round:
            kept.append(Kept(each.bundle, Rule.ROUND_FULL, f"{each}; {len(splits)} splits begin in this round"))
        else:
            parts = min(each.parts, room)
            splits.append(msgspec.structs.replace(each, parts=parts, room=room))
            more[namespace] += parts - 1
    return splits, kept


def _splitting_beside(bundle: Bundle, splitting: Collection[Bundle]) -> Bundle | None:
    edges = {bundle.lo, bundle.hi}
    same = (other for other in splitting if other.namespace == bundle.namespace and other != bundle)
    return next((other for other in same if other.lo in edges or other.hi in edges), None)
