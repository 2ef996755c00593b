"""Which bundles are split: Pulsar's own cases, each condition, each cap, and what is said of those that stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.host import BundleLoad
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.splits import (
    Cause,
    Kept,
    Limits,
    Rule,
    SplitDecision,
    View,
    decide_splits,
    exceeded,
    judge,
    worth_averaging,
)
from statechannel.law.bundle import Bundle, even_boundaries, tile

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "pulsar" / "shedding.json").read_text())
ENVIRONMENT = VECTORS["split_environment"]
MIB = 2**20
A, B, C, D = tile("t/n", even_boundaries(4))
HOT = BundleLoad(keys=100, in_rate_msg_s=20_000, out_rate_msg_s=20_000)
QUIET = BundleLoad(keys=100)


def settings(**some: Any) -> Settings:
    chosen: dict[str, Any] = {"split_hits": 0, **some}
    return Settings(**chosen)


def view(loads: dict[Bundle, BundleLoad], **more: Any) -> View:
    known: dict[str, Any] = {"assigned": tuple(loads), "counts": {"t/n": 4}, **more}
    return View(loads, **known)


def decide(seen: View, its: Settings, hits: dict[Bundle, int] | None = None) -> SplitDecision:
    return decide_splits(seen, lambda _: its, hits or {})


def only(decision: SplitDecision) -> Kept:
    assert not decision.splits
    (kept,) = decision.kept
    return kept


# --- Pulsar's own cases


def pulsar_load(stats: dict[str, float]) -> BundleLoad:
    names = {"msg_rate_in": "in_rate_msg_s", "topics": "keys"}
    return BundleLoad(**{"keys": 5} | {names[name]: value for name, value in stats.items()})  # type: ignore[arg-type]


def pulsar_settings(case: dict[str, Any]) -> Settings:
    config = ENVIRONMENT["config"] | case.get("config_override", {})
    return Settings(
        namespace_max_bundles=config["namespace_maximum_bundles"],
        split_max_keys=config["max_topics"],
        split_max_sessions=config["max_sessions"],
        split_max_rate_msg_s=config["max_msg_rate"],
        split_max_bandwidth_bytes_s=config["max_bandwidth_mbytes"] * MIB,
        split_bundles_per_round=config["max_splits_per_cycle"],
        split_hits=config["hit_count_threshold"],
    )


@pytest.mark.parametrize("case", VECTORS["split_strategy"], ids=lambda case: case["test"].split(".")[-1])
def test_pulsars_own_tests_agree(case: dict[str, Any]):
    bundles = [Bundle.parse(ENVIRONMENT["bundles"][name].lower()) for name in ENVIRONMENT["walk_order"]]
    loads = dict.fromkeys(bundles, pulsar_load(case["stats_both_bundles"]))
    counts = {"tenant/namespace": case.get("namespace_bundle_count", 0)}
    decision = decide(View(loads, bundles, counts), pulsar_settings(case))
    expected = case["expected"]
    assert len(decision.splits) == expected.get("split_count", len(expected.get("splits", ())))
    for split in decision.splits:
        assert split.parts == 2


# --- conditions


@pytest.mark.parametrize(
    ("load", "cause"),
    [
        (BundleLoad(keys=1001, sessions=9999), Cause.TOPICS),
        (BundleLoad(keys=1000, sessions=1001, in_rate_msg_s=99_999), Cause.SESSIONS),
        (BundleLoad(keys=2, in_rate_msg_s=15_000, out_rate_msg_s=15_001), Cause.MSG_RATE),
        (BundleLoad(keys=2, in_rate_bytes_s=60 * MIB, out_rate_bytes_s=40 * MIB + 1), Cause.BANDWIDTH),
    ],
)
def test_the_first_condition_that_holds_is_the_cause(load: BundleLoad, cause: Cause):
    (split,) = decide(view({A: load}), settings()).splits
    assert split.measure.cause is cause


def test_what_is_exactly_at_every_limit_is_not_above_it():
    full = BundleLoad(1000, 1000, 15_000, 15_000, 50 * MIB, 50 * MIB)
    assert decide(view({A: full}), settings()).counts == {Rule.BELOW_LIMITS: 1}


def test_a_limit_of_nought_is_none():
    huge = BundleLoad(10**6, 10**6, 10.0**9, 0, 10.0**12)
    off = settings(split_max_keys=0, split_max_sessions=0, split_max_rate_msg_s=0, split_max_bandwidth_bytes_s=0)
    assert decide(view({A: huge}), off).counts == {Rule.NO_LIMIT: 1}
    (split,) = decide(view({A: huge}), settings(split_max_keys=0, split_max_sessions=0)).splits
    assert split.measure.cause is Cause.MSG_RATE


def test_one_key_alone_is_not_split_however_hot_it_is():
    decision = decide(view({A: msgspec.structs.replace(HOT, keys=1)}), settings())
    assert not decision.splits
    assert decision.counts == {Rule.TOO_FEW_KEYS: 1}


def test_twice_the_load_makes_more_parts():
    parts = [decide(view({A: BundleLoad(keys=n)}), settings()).splits[0].parts for n in (1001, 1500, 1501, 8000)]
    assert parts == [2, 2, 3, 11]


# --- hits


def test_a_split_takes_one_look_more_than_split_hits():
    hits: dict[Bundle, int] = {}
    for look in range(1, 4):
        decision = decide(view({A: HOT}), settings(split_hits=3), hits)
        assert only(decision).rule is Rule.HITS
        assert decision.hits == {A: look}
        hits = dict(decision.hits)
    decision = decide(view({A: HOT}), settings(split_hits=3), hits)
    assert [split.hits for split in decision.splits] == [4]
    assert decision.hits == {}, "it begins to count anew"


def test_one_quiet_look_in_between_begins_the_count_anew():
    assert decide(view({A: QUIET}), settings(split_hits=3), {A: 3}).hits == {}


def test_bundles_that_went_away_leave_nothing_behind():
    assert decide(view({A: HOT}), settings(split_hits=3), {B: 2}).hits == {A: 1}


def test_what_comes_near_a_limit_or_was_above_it_is_judged_by_its_mean():
    loads = {A: BundleLoad(keys=500), B: BundleLoad(keys=499), C: BundleLoad(), D: BundleLoad(sessions=600)}
    assert worth_averaging(loads, lambda _: settings(), {C: 1}) == [A, C, D]


# --- caps and neighbours


def test_of_several_the_fullest_goes_first_and_the_others_keep_their_hits():
    hotter = msgspec.structs.replace(HOT, keys=5000)
    decision = decide(view({A: HOT, B: hotter}), settings(split_bundles_per_round=1, split_hits=1), {A: 1, B: 1})
    assert [split.bundle for split in decision.splits] == [B]
    assert decision.kept[0].rule is Rule.ROUND_FULL
    assert decision.hits == {A: 2}


def test_namespace_is_never_split_beyond_its_cap_in_one_round():
    eightfold = BundleLoad(keys=8000)
    loads = dict.fromkeys((A, B, C, D), eightfold)
    decision = decide(view(loads), settings(namespace_max_bundles=10, split_max_sessions=0))
    assert 4 + sum(split.parts - 1 for split in decision.splits) == 10
    assert {kept.rule for kept in decision.kept} == {Rule.NAMESPACE_FULL}


def test_a_bundle_beside_one_that_is_being_split_waits():
    loads = {A: HOT, C: HOT}
    decision = decide(view(loads, splitting=(B,)), settings())
    assert not decision.splits
    assert {kept.rule for kept in decision.kept} == {Rule.NEIGHBOUR_SPLITS}
    far = Bundle("t/other", B.lo, B.hi)
    assert len(decide(view(loads, splitting=(far,)), settings()).splits) == 2


def test_what_is_on_its_way_or_kept_by_a_policy_stays_and_says_so():
    seen = view(
        {A: HOT, B: HOT}, assigned=(B,), left_alone=lambda bundle: "namespace t/n is paused" if bundle == B else ""
    )
    rules = {kept.bundle: (kept.rule, kept.detail) for kept in decide(seen, settings()).kept}
    assert rules[A][0] is Rule.NOT_AT_REST
    assert rules[B][0] is Rule.POLICY
    assert "t/n is paused" in rules[B][1]


def test_switches_end_it():
    for off in ({"balancing": False}, {"split": False}):
        assert decide(view({A: HOT}), settings(**off)).counts == {Rule.SWITCHED_OFF: 1}


def test_a_bundle_without_a_position_inside_is_too_narrow():
    narrow = Bundle("t/n", 7, 8)
    assert only(decide(view({narrow: HOT}), settings())).rule is Rule.TOO_NARROW


def test_settings_may_differ_from_bundle_to_bundle():
    strict, loose = settings(), settings(split_max_rate_msg_s=10**6)
    decision = decide_splits(view({A: HOT, B: HOT}), lambda bundle: strict if bundle == A else loose, {})
    assert [split.bundle for split in decision.splits] == [A]


def test_any_bundle_can_be_asked_about():
    found = judge(view({A: QUIET}), A, settings(), 1)
    assert isinstance(found, Kept)
    assert found.detail == "at most 100 keys of 1,000"


loads_ = st.builds(
    BundleLoad,
    keys=st.integers(0, 5000),
    sessions=st.integers(0, 5000),
    in_rate_msg_s=st.floats(0, 1e5),
    in_rate_bytes_s=st.floats(0, 1e9),
)


@given(
    st.lists(loads_, min_size=1, max_size=30),
    st.integers(1, 80),
    st.integers(1, 12),
    st.integers(0, 3),
    st.lists(st.integers(0, 5), max_size=30),
)
def test_whatever_the_loads_the_caps_hold_and_only_hot_bundles_are_split(
    loads: list[BundleLoad], cap: int, a_round: int, needed: int, hits: list[int]
):
    bundles = tile("t/n", even_boundaries(len(loads)))
    its = settings(namespace_max_bundles=cap, split_bundles_per_round=a_round, split_hits=needed)
    before = dict(zip(bundles, hits, strict=False))
    decision = decide(view(dict(zip(bundles, loads, strict=True)), counts={"t/n": len(bundles)}), its, before)
    assert len(decision.splits) <= a_round
    grown = sum(split.parts - 1 for split in decision.splits)
    assert not grown or len(bundles) + grown <= cap
    for split in decision.splits:
        assert exceeded(split.load, Limits.of(its)) is not None
        assert before.get(split.bundle, 0) + 1 > needed
        assert 2 <= split.parts <= split.room
    assert len(decision.splits) + sum(decision.counts.values()) == len(bundles), "each bundle has its verdict"
