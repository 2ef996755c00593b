"""Decides which cold neighbours an owner merges, and why not the others. Pure; the memory goes in and out.

The neighbours belong to one owner, touch, are under the same policies, and together stay below `MERGE_BELOW` of
every split limit. Each has been cold, under the same ownership, for `merge_rest_s`. Two things are therefore certain,
whatever the load does:

* A merged bundle meets no condition of a split: it is at most half full in every respect (the setting's bound is 50 %).
* The parts of a split are not merged within `merge_rest_s`, since they have not existed for that time. So a load
  that oscillates, with any period, costs each range at most one split and one merge in `merge_rest_s`.

A bundle whose service reports no load for it is not cold but unmeasured, and stays. Neighbours of different owners are
not brought together: that move would gain nothing but tidiness.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import total_of
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.splits import Limits, SettingsOf, fullest, is_cold, nothing_said
from statechannel.law.bundle import Bundle

MERGE_BELOW = 0.1
"""Neighbours that stay below this fraction of the split limits together are cold: the result is not split again."""


class MergeRule(StrEnum):
    """Why a bundle is not merged with its right neighbour."""

    SWITCHED_OFF = "switched off"
    NOT_MEASURED = "not measured"
    NOT_COLD = "not cold"
    REST = "merge_rest_s"
    POLICY = "policy"
    NO_NEIGHBOUR = "no neighbour here"
    OTHER_POLICIES = "other policies"
    TOGETHER_WARM = "together not cold"
    NAMESPACE_SMALL = "namespace_min_bundles"
    ROUND_FULL = "split_bundles_per_round"


class Cold(msgspec.Struct, frozen=True):
    """Since when a bundle has been cold, under the ownership that began with `token`."""

    token: int
    since_s: float


class MergeView(msgspec.Struct, frozen=True):
    """What an owner knows of its bundles at rest.

    `tokens`: the ownership of each bundle at rest. `loads`: those that its service measured. `counts`: bundles of each
    namespace. `left_alone`: the policy that forbids merging a bundle, else empty. `policies`: equal for bundles under
    the same policies.
    """

    tokens: Mapping[Bundle, int]
    loads: Mapping[Bundle, BundleLoad]
    counts: Mapping[str, int]
    left_alone: Callable[[Bundle], str] = nothing_said
    policies: Callable[[Bundle], Hashable] = nothing_said


class Merge(msgspec.Struct, frozen=True):
    """Neighbours to merge, lowest first, and their load together."""

    bundles: tuple[Bundle, ...]
    load: BundleLoad
    reason: str

    @property
    def whole(self) -> Bundle:
        return Bundle(self.bundles[0].namespace, self.bundles[0].lo, self.bundles[-1].hi)


class MergeDecision(msgspec.Struct, frozen=True):
    """What to merge, how many bundles stay by each rule, and the memory."""

    merges: tuple[Merge, ...]
    counts: Mapping[MergeRule, int]
    cold: Mapping[Bundle, Cold]


def decide_merges(view: MergeView, settings_of: SettingsOf, cold: Mapping[Bundle, Cold], now_s: float) -> MergeDecision:
    """One look at all bundles of an owner. `cold` is the last decision's memory, empty at the start."""
    counts: Counter[MergeRule] = Counter()
    memory: dict[Bundle, Cold] = {}
    ready: set[Bundle] = set()
    for bundle, token in view.tokens.items():
        settings = settings_of(bundle)
        refused = _not_cold(view, bundle, settings)
        if refused is None:
            known = cold.get(bundle)
            memory[bundle] = known if known is not None and known.token == token else Cold(token, now_s)
            rested = now_s - memory[bundle].since_s >= settings.merge_rest_s
            refused = None if rested else MergeRule.REST
        if refused is None:
            ready.add(bundle)
        else:
            counts[refused] += 1
    merges: list[Merge] = []
    gone: Counter[str] = Counter()
    for run in _runs(view, ready, counts):
        merges += _of_run(view, run, settings_of, gone, counts, len(merges))
    return MergeDecision(tuple(merges), dict(counts), memory)


def why_not_merged(
    view: MergeView, bundle: Bundle, settings: Settings, cold: Mapping[Bundle, Cold], now_s: float
) -> str:
    """Why a bundle is not merged, in words."""
    refused = _not_cold(view, bundle, settings)
    load = view.loads.get(bundle)
    if refused is MergeRule.NOT_COLD and load is not None:
        return f"{refused}: {fullest(load, Limits.of(settings))}; cold is below {MERGE_BELOW:.0%}"
    if refused is not None:
        return f"{refused}: {view.left_alone(bundle)}" if refused is MergeRule.POLICY else str(refused)
    since = cold.get(bundle)
    rested_s = 0.0 if since is None else now_s - since.since_s
    if rested_s < settings.merge_rest_s:
        return f"{MergeRule.REST}: cold for {rested_s:.0f} s of {settings.merge_rest_s:g} s"
    return "cold and at rest; it waits for a neighbour that is so too, for more than the fewest bundles, or its turn"


def _not_cold(view: MergeView, bundle: Bundle, settings: Settings) -> MergeRule | None:
    if not settings.balancing or not settings.merge:
        return MergeRule.SWITCHED_OFF
    if bundle not in view.loads:
        return MergeRule.NOT_MEASURED
    if not is_cold(view.loads[bundle], Limits.of(settings), MERGE_BELOW):
        return MergeRule.NOT_COLD
    return MergeRule.POLICY if view.left_alone(bundle) else None


def _runs(view: MergeView, ready: set[Bundle], counts: Counter[MergeRule]) -> Iterator[list[Bundle]]:
    """Runs of adjacent bundles that are all ready and under the same policies."""
    run: list[Bundle] = []
    for bundle in sorted(ready):
        if run and _touch(run[-1], bundle) and view.policies(run[-1]) == view.policies(bundle):
            run.append(bundle)
            continue
        if run:
            counts[MergeRule.OTHER_POLICIES if _touch(run[-1], bundle) else MergeRule.NO_NEIGHBOUR] += 1
            yield run
        run = [bundle]
    if run:
        counts[MergeRule.NO_NEIGHBOUR] += 1
        yield run


def _touch(left: Bundle, right: Bundle) -> bool:
    return left.namespace == right.namespace and left.hi == right.lo


def _of_run(
    view: MergeView,
    run: Sequence[Bundle],
    settings_of: SettingsOf,
    gone: Counter[str],
    counts: Counter[MergeRule],
    decided: int,
) -> list[Merge]:
    """Merges within one run, from its low end: each of as many bundles as stay cold together."""
    merges: list[Merge] = []
    settings, namespace = settings_of(run[0]), run[0].namespace
    begin = 0
    while begin < len(run):
        spare = view.counts.get(namespace, 0) - gone[namespace] - settings.namespace_min_bundles
        end = _cold_together(view, run, begin, settings, min(spare + 1, MOST_PARTS))
        if end - begin >= FEWEST_PARTS and decided + len(merges) >= settings.split_bundles_per_round:
            counts[MergeRule.ROUND_FULL] += len(run) - begin
            break
        if end - begin >= FEWEST_PARTS:
            merges.append(_merge(view, run[begin:end], settings))
            gone[namespace] += end - begin - 1
        elif begin + 1 < len(run):
            counts[MergeRule.NAMESPACE_SMALL if spare < 1 else MergeRule.TOGETHER_WARM] += 1
        begin = end
    return merges


def _cold_together(view: MergeView, run: Sequence[Bundle], begin: int, settings: Settings, most: int) -> int:
    """The end (exclusive) of the bundles that can merge with the one at `begin`."""
    limits, below = Limits.of(settings), MERGE_BELOW
    end, total = begin + 1, view.loads[run[begin]]
    for bundle in itertools.islice(run, begin + 1, begin + max(1, most)):
        total = total_of((total, view.loads[bundle]))
        if not is_cold(total, limits, below):
            break
        end += 1
    return end


def _merge(view: MergeView, bundles: Sequence[Bundle], settings: Settings) -> Merge:
    load = total_of(view.loads[bundle] for bundle in bundles)
    most = fullest(load, Limits.of(settings))
    reason = (
        f"{len(bundles)} cold neighbours, together at most {most}; below {MERGE_BELOW:.0%} "
        f"for {settings.merge_rest_s:g} s"
    )
    return Merge(tuple(bundles), load, reason)
