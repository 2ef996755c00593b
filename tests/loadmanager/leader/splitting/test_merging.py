"""Which neighbours are merged, which never; and that a swinging load cannot make bundles flap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.boundaries import NoCuts, evenly
from loadmanager.model.host import BundleLoad
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.merging import (
    Cold,
    MergeDecision,
    MergeRule,
    MergeView,
    decide_merges,
    why_not_merged,
)
from loadmanager.strategies.splitting.splits import Limits, View, decide_splits, exceeded
from statechannel.law.bundle import FULL_UPPER, Bundle, even_boundaries, tile

RING = tile("t/n", even_boundaries(8))
COLD = BundleLoad(keys=3, in_rate_msg_s=10)
LONG_AGO = {bundle: Cold(1, 0.0) for bundle in RING}
NOW_S = 4000.0


def settings(**some: Any) -> Settings:
    chosen: dict[str, Any] = {"namespace_min_bundles": 1, **some}
    return Settings(**{"merge": True, **chosen})


def view(*bundles: Bundle, load: BundleLoad = COLD, **more: Any) -> MergeView:
    known: dict[str, Any] = {"loads": dict.fromkeys(bundles, load), "counts": {"t/n": 8}, **more}
    return MergeView(dict.fromkeys(bundles, 1), **known)


def decide(seen: MergeView, its: Settings | None = None, cold: dict[Bundle, Cold] | None = None) -> MergeDecision:
    used = its or settings()
    return decide_merges(seen, lambda _: used, LONG_AGO if cold is None else cold, NOW_S)


def merged(decision: MergeDecision) -> list[tuple[int, ...]]:
    return [tuple(RING.index(bundle) for bundle in merge.bundles) for merge in decision.merges]


def test_cold_neighbours_become_one_bundle_in_one_record():
    decision = decide(view(*RING[2:5]))
    assert merged(decision) == [(2, 3, 4)]
    assert decision.merges[0].whole == Bundle("t/n", RING[2].lo, RING[4].hi)
    assert "3 cold neighbours" in decision.merges[0].reason


def test_what_lies_apart_or_belongs_to_another_namespace_is_not_merged():
    decision = decide(view(RING[0], RING[2], Bundle("t/other", RING[3].lo, RING[3].hi)))
    assert not decision.merges


def test_no_more_go_together_than_stay_cold_together():
    tenth = Limits.of(settings()).keys / 10
    assert merged(decide(view(*RING[:6], load=BundleLoad(keys=int(tenth * 0.4))))) == [(0, 1), (2, 3), (4, 5)]
    assert merged(decide(view(*RING[:2], load=BundleLoad(keys=int(tenth / 2))))) == []
    assert merged(decide(view(*RING[:2], load=BundleLoad(keys=int(tenth / 2) - 1)))) == [(0, 1)]


@pytest.mark.parametrize("field", ["keys", "sessions", "in_rate_msg_s", "out_rate_bytes_s"])
def test_one_warm_respect_keeps_a_bundle(field: str):
    warm = BundleLoad(**{field: {"in_rate_msg_s": 3001.0, "out_rate_bytes_s": 1.1e7}.get(field, 101)})  # type: ignore[arg-type]
    seen = view(*RING[:2], loads={RING[0]: COLD, RING[1]: warm})
    decision = decide(seen)
    assert not decision.merges
    assert decision.counts[MergeRule.NOT_COLD] == 1
    assert RING[1] not in decision.cold
    assert "cold is below 10%" in why_not_merged(seen, RING[1], settings(), {}, NOW_S)


def test_a_bundle_that_nobody_measured_is_not_cold():
    decision = decide(view(*RING[:2], loads={RING[0]: BundleLoad()}))
    assert not decision.merges
    assert decision.counts[MergeRule.NOT_MEASURED] == 1


def test_without_any_limit_nothing_is_cold():
    off = settings(split_max_keys=0, split_max_sessions=0, split_max_rate_msg_s=0, split_max_bandwidth_bytes_s=0)
    assert not decide(view(*RING), off).merges


def test_namespace_is_never_merged_below_its_minimum_in_one_round():
    decision = decide(view(*RING), settings(namespace_min_bundles=6))
    assert sum(len(merge.bundles) - 1 for merge in decision.merges) == 2
    apart = view(*RING[:2], *RING[4:6])
    assert sum(len(m.bundles) - 1 for m in decide(apart, settings(namespace_min_bundles=7)).merges) == 1
    assert decide(apart, settings(namespace_min_bundles=8)).counts[MergeRule.NAMESPACE_SMALL] == 2


def test_policies_keep_bundles_apart():
    assert not decide(view(*RING[:2], left_alone=lambda bundle: "paused" if bundle == RING[0] else "")).merges
    assert merged(decide(view(*RING[:4], policies=lambda bundle: bundle in RING[:2]))) == [(0, 1), (2, 3)]


def test_one_round_begins_no_more_than_so_many():
    apart = view(*RING[:2], *RING[3:5], *RING[6:8])
    decision = decide(apart, settings(split_bundles_per_round=2))
    assert merged(decision) == [(0, 1), (3, 4)]
    assert decision.counts[MergeRule.ROUND_FULL] == 2


def test_switches_end_it():
    for off in ({"balancing": False}, {"merge": False}):
        assert decide(view(*RING), settings(**off)).counts == {MergeRule.SWITCHED_OFF: 8}


# --- rest


def test_a_bundle_must_have_been_cold_all_the_time():
    its = settings(merge_rest_s=100)
    cold: dict[Bundle, Cold] = {}
    for now_s, load, expected in [(0, COLD, 0), (99, COLD, 0), (100, COLD, 1)]:
        decision = decide_merges(view(*RING[:2], load=load), lambda _: its, cold, now_s)
        assert len(decision.merges) == expected, now_s
        cold = dict(decision.cold)
    warm = decide_merges(view(*RING[:2], load=BundleLoad(keys=500)), lambda _: its, cold, 101)
    again = decide_merges(view(*RING[:2]), lambda _: its, warm.cold, 102)
    assert not again.merges
    assert again.counts[MergeRule.REST] == 2
    assert "cold for 98 s of 100 s" in why_not_merged(view(*RING[:2]), RING[0], its, again.cold, 200)


def test_a_new_ownership_begins_the_rest_anew():
    moved = {bundle: Cold(0, 0.0) for bundle in RING}
    assert not decide(view(*RING[:2]), cold=moved).merges


# --- laws

loads_ = st.builds(
    BundleLoad, st.integers(0, 60), st.integers(0, 60), st.floats(0, 2e3), st.floats(0, 2e3), st.floats(0, 1e7)
)


@given(st.lists(loads_, min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 40))
def test_a_merged_bundle_never_meets_a_condition_of_a_split(loads: list[BundleLoad], floor: int, round_: int):
    bundles = tile("t/n", even_boundaries(len(loads)))
    its = settings(namespace_min_bundles=floor, split_bundles_per_round=max(1, round_))
    seen = MergeView(dict.fromkeys(bundles, 1), dict(zip(bundles, loads, strict=True)), {"t/n": len(bundles)})
    decision = decide_merges(seen, lambda _: its, {bundle: Cold(1, 0.0) for bundle in bundles}, NOW_S)
    limits = Limits.of(its)
    for merge in decision.merges:
        assert exceeded(merge.load, limits) is None
        split = decide_splits(
            View({merge.whole: merge.load}, (merge.whole,), {"t/n": 1}), lambda _: its, {merge.whole: 99}
        )
        assert not split.splits
        assert all(a.hi == b.lo for a, b in itertools.pairwise(merge.bundles))
    went = sum(len(merge.bundles) - 1 for merge in decision.merges)
    assert not went or len(bundles) - went >= floor
    together = [bundle for merge in decision.merges for bundle in merge.bundles]
    assert len(together) == len(set(together))


class Swinging:
    """One owner with all of a namespace, a load that changes with time, and a look every minute."""

    def __init__(self, rate_at: Callable[[float], float], its: Settings) -> None:
        self.rate_at, self.settings = rate_at, its
        self.tokens: dict[Bundle, int] = dict.fromkeys(tile("t/n", even_boundaries(4)), 0)
        self.now_s = 0.0
        self.hits: dict[Bundle, int] = {}
        self.cold: dict[Bundle, Cold] = {}
        self.splits: list[tuple[float, Bundle]] = []
        self.merges: list[tuple[float, Bundle]] = []

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            self.now_s += self.settings.split_interval_s
            self.look(self.now_s)

    def load(self, bundle: Bundle, now_s: float) -> BundleLoad:
        width = (bundle.hi - bundle.lo) / FULL_UPPER
        return BundleLoad(keys=max(2, int(100 * width)), in_rate_msg_s=self.rate_at(now_s) * width)

    def look(self, now_s: float) -> None:
        counts = {"t/n": len(self.tokens)}
        loads = {bundle: self.load(bundle, now_s) for bundle in self.tokens}
        splitting = decide_splits(View(loads, tuple(loads), counts), lambda _: self.settings, self.hits)
        self.hits = dict(splitting.hits)
        for split in splitting.splits:
            cuts = evenly(split.bundle, split.parts)
            assert not isinstance(cuts, NoCuts)
            del self.tokens[split.bundle]
            self.tokens |= dict.fromkeys(tile("t/n", (split.bundle.lo, *cuts, split.bundle.hi)), int(now_s))
            self.splits.append((now_s, split.bundle))
        at_rest = {bundle: token for bundle, token in self.tokens.items() if bundle in loads}
        merging = decide_merges(MergeView(at_rest, loads, counts), lambda _: self.settings, self.cold, now_s)
        self.cold = dict(merging.cold)
        for merge in merging.merges:
            for bundle in merge.bundles:
                del self.tokens[bundle]
            self.tokens[merge.whole] = int(now_s)
            self.merges.append((now_s, merge.whole))


DAY_S = 86_400.0


@pytest.mark.parametrize("period_s", [120, 600, 3600, 4 * 3600, 12 * 3600])
def test_swinging_load_costs_one_split_and_merge_per_rest_time_at_most(period_s: float):
    cluster = Swinging(
        lambda now_s: 100_000.0 * (1 + math.sin(2 * math.pi * now_s / period_s)), settings(namespace_min_bundles=4)
    )
    cluster.run(DAY_S)
    rest_s = cluster.settings.merge_rest_s
    for when_s, whole in cluster.merges:
        within = [t for t, parent in cluster.splits if when_s - rest_s < t <= when_s and _overlap(parent, whole)]
        assert not within, "what was split is merged only after its rest"
    for spot in range(0, FULL_UPPER, 2**28):
        flips = sum(spot in bundle for _, bundle in cluster.merges)
        assert flips <= DAY_S / rest_s
    if period_s <= rest_s:
        assert not cluster.merges, "a load that comes back within the rest time merges nothing"


def test_load_that_ends_is_split_once_and_merged_back_to_the_minimum():
    cluster = Swinging(lambda now_s: 400_000.0 if now_s < 7_200 else 100.0, settings(namespace_min_bundles=4))
    cluster.run(7_200)
    assert len(cluster.tokens) >= 16
    at_peak = len(cluster.splits)
    cluster.run(DAY_S)
    assert len(cluster.splits) == at_peak
    assert len(cluster.tokens) == 4


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.lo < other.hi and other.lo < one.hi
