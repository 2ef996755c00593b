"""The strategy `transfer`, rule by rule; what Pulsar's own tests demand is in test_transfer_vectors.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Stage
from loadmanager.strategies.rebalancing.pulsar.shedder import AS_IN_PULSAR, Average, Cause, Outcome, Tuning
from loadmanager.strategies.rebalancing.pulsar.transfer import Transfer, TransferMemory
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, broker, bundle, model

AT_ONCE = Settings(shedder_hit_count=0)
MINUTE_MS = 60_000


def cluster(loads: Mapping[str, float], mbytes: Mapping[str, Sequence[float | Hot]], **overrides: Any) -> ClusterModel:
    """Brokers with a usage, and bundles with MB/s; a broker's throughput is the sum."""
    owned = {name: [_hot(each) for each in sizes] for name, sizes in mbytes.items()}
    return model({name: Host(load) for name, load in loads.items()}, owned, **overrides)


def _hot(size: float | Hot) -> Hot:
    return size if isinstance(size, Hot) else Hot(out_bytes_s=size * 1e6)


def decide(
    cluster: ClusterModel, settings: Settings = AT_ONCE, memory: object = None, tuning: Tuning = AS_IN_PULSAR
) -> Decision:
    return Transfer(tuning).decide(cluster, settings, memory)


def moved(decision: Decision) -> list[tuple[int, str, str]]:
    """Numbers of bundles, from and to."""
    names = {bundle(number): number for number in range(100)}
    return [(names[m.bundle], m.source.name[0], m.destination.name[0] if m.destination else "") for m in decision.moves]


def outcome(decision: Decision) -> Outcome:
    assert isinstance(decision.memory, TransferMemory)
    return decision.memory.outcome


def cause(decision: Decision) -> Cause:
    return outcome(decision).cause


SKEWED = {"a": 0.9, "b": 0.1}
TWENTY = {"a": [10, 10, 10, 20], "b": [1]}


def test_it_takes_four_rounds_in_a_row_by_default() -> None:
    memory: object = None
    for turn in range(4):
        assert not isinstance(memory, TransferMemory) or memory.hits == turn
        decision = decide(cluster(SKEWED, TWENTY, at_ms=turn * MINUTE_MS), Settings(), memory)
        memory = decision.memory
        assert bool(decision.moves) == (turn == 3)
        assert cause(decision) == ("HitCount" if turn < 3 else "Overloaded")
    assert isinstance(memory, TransferMemory)
    assert memory.hits == 0, "it starts anew"


def test_a_round_that_is_fine_ends_the_row() -> None:
    tuning = Tuning(history=0)
    memory = decide(cluster(SKEWED, TWENTY), Settings(), tuning=tuning).memory
    memory = decide(cluster({"a": 0.5, "b": 0.5}, {"a": [10], "b": [10]}), Settings(), memory, tuning).memory
    assert isinstance(memory, TransferMemory)
    assert memory.hits == 0


def test_half_the_difference_goes_the_smallest_first() -> None:
    """50 MB/s at 90 %: 4/9 of it should go, 22.2 MB/s. 10 and 10 do; the third 10 would be too much."""
    decision = decide(cluster(SKEWED, {"a": [20, 10, 10, 10], "b": [1]}))
    assert moved(decision) == [(1, "a", "b"), (2, "a", "b")]
    assert {move.stage for move in decision.moves} == {Stage.OVERLOAD}
    assert outcome(decision).std_after == pytest.approx(0.04), "90 % less 36 %, 10 % and 36 %"


def test_the_last_of_the_reported_bundles_stays() -> None:
    decision = decide(_idle_part())
    assert moved(decision) == [(0, "a", "b"), (1, "a", "b")]
    assert decision.counts["the last one of the report"] == 1


def _idle_part() -> ClusterModel:
    """What is reported is a small part of what the broker does: all of it could go."""
    owned = {"a": [Hot(out_bytes_s=1e6)] * 3, "b": [Hot(out_bytes_s=1e6)]}
    return model({"a": Host(0.9, throughput_bytes_s=100e6), "b": Host(0.1, throughput_bytes_s=10e6)}, owned)


def test_who_reported_one_bundle_or_none_gives_nothing() -> None:
    assert cause(decide(cluster(SKEWED, {"a": [50], "b": [1]}))) == "NoBundles"
    assert cause(decide(cluster(SKEWED, {"b": [1]}))) == "NoLoadData"
    both = decide(cluster({"a": 0.9, "b": 0.8, "c": 0.05}, {"a": [50], "c": [1]}))
    assert cause(both) == "NoLoadData", "it comes before NoBundles"
    assert [each.subject for each in both.refused] == ["a:6650", "b:6650"]


SWAPPED = {"a": [40, 60], "b": [5, 25]}
APART = {"a": 1.0, "b": 0.3}


def test_a_large_bundle_goes_if_others_come_back_and_that_counts() -> None:
    """35 of 100 MB/s should go. 40 is too much, but not if 5 come back. 65 % each then; as if 40 % went, 60 and 70."""
    decision = decide(cluster(APART, SWAPPED))
    assert moved(decision) == [(0, "a", "b"), (2, "b", "a")]
    assert [move.stage for move in decision.moves] == [Stage.SWAP, Stage.SWAP]
    assert len({move.group for move in decision.moves}) == 1
    assert decision.moves[0].group != 0
    assert outcome(decision).std_after == pytest.approx(0, abs=1e-6)


def test_a_swap_needs_the_full_one_to_fall_below_three_quarters() -> None:
    """Going 40, coming 16: the full one would still have 76 of 100."""
    assert cause(decide(cluster(APART, {"a": [40, 60], "b": [16, 20]}))) == "NoBundles"
    assert decide(cluster(APART, {"a": [40, 60], "b": [14, 22]})).moves


def test_swapped_bundle_may_be_a_recent_arrival_but_not_a_forbidden_one() -> None:
    just_moved = Hot(out_bytes_s=5e6, moved_s=1.0)
    assert moved(decide(cluster(APART, {"a": [40, 60], "b": [just_moved, 25]}))) == [(0, "a", "b"), (2, "b", "a")]
    forbidden = Hot(out_bytes_s=5e6, forbidden={"a": "excluded"})
    assert not decide(cluster(APART, {"a": [40, 60], "b": [forbidden, 1000]})).moves


def test_what_comes_back_must_leave_neither_with_what_the_full_one_has_now() -> None:
    """Going 70 of 100 to one with 40: 110. With 5 back it would still have 105: passed over. 20 and 24 do it."""
    owned = {
        name: [Hot(out_bytes_s=size * 1e6) for size in sizes] for name, sizes in (("a", (70, 71)), ("b", (5, 20, 24)))
    }
    hosts = {"a": Host(1.0, throughput_bytes_s=100e6), "b": Host(0.3, throughput_bytes_s=40e6)}
    assert moved(decide(model(hosts, owned))) == [(0, "a", "b"), (3, "b", "a"), (4, "b", "a")]


def test_without_transfer_nothing_comes_back_and_nobody_is_named() -> None:
    tuning = Tuning(transfer=False)
    assert not decide(cluster(APART, SWAPPED), tuning=tuning).moves
    assert moved(decide(cluster(SKEWED, TWENTY), tuning=tuning)) == [(0, "a", ""), (1, "a", "")]


def test_what_was_unloaded_without_a_destination_rests_too() -> None:
    settings, tuning = AT_ONCE.model_copy(update={"shedder_delay_s": 0.0}), Tuning(transfer=False)
    first = decide(cluster(SKEWED, TWENTY), settings, tuning=tuning)
    again = decide(cluster(SKEWED, TWENTY, at_ms=29 * MINUTE_MS), settings, first.memory, tuning)
    assert moved(again) == [(2, "a", "")]
    assert again.counts["recently unloaded"] == 2
    later = decide(cluster(SKEWED, TWENTY, at_ms=30 * MINUTE_MS), settings, first.memory, tuning)
    assert moved(later) == [(0, "a", ""), (1, "a", "")]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"moved_s": 1799.0}, "recently unloaded"),
        ({"in_flight": True}, "in flight"),
        ({"fixed": "pinned to a"}, "pinned to a"),
        ({"forbidden": {"b": "excluded"}}, "excluded"),
        ({"isolated": True}, "under an isolation policy or in an anti-affinity group"),
        ({"group": "g"}, "under an isolation policy or in an anti-affinity group"),
    ],
)
def test_what_must_stay_is_passed_over_and_counted(changes: dict[str, Any], rule: str) -> None:
    decision = decide(cluster(SKEWED, {"a": [Hot(out_bytes_s=5e6, **changes), 10, 35], "b": [1]}))
    assert moved(decision) == [(1, "a", "b")]
    assert decision.counts[rule] == 1


def test_bundles_without_traffic_do_not_go() -> None:
    decision = decide(cluster(SKEWED, {"a": [0, 0, 10, 40], "b": [1]}))
    assert moved(decision) == [(2, "a", "b")]
    assert decision.counts["no traffic"] == 2
    assert cause(decide(cluster(SKEWED, {"a": [0, 0], "b": [0]}))) == "NoBundles"


def test_three_brokers_shed_in_one_round_at_most() -> None:
    loads = dict.fromkeys("fghij", 0.9) | dict.fromkeys("abcde", 0.05)
    owned = {letter: [10, 10, 30] for letter in "fghij"} | {letter: [1] for letter in "abcde"}
    decision = decide(cluster(loads, owned))
    assert {source for _, source, _ in moved(decision)} == {"h", "i", "j"}
    assert {to for _, _, to in moved(decision)} == {"a", "b", "c"}, "each gets from one only"
    one = decide(cluster(loads, owned), tuning=Tuning(max_brokers=1))
    assert len({source for _, source, _ in moved(one)}) == 1


def test_broker_with_nothing_to_give_is_skipped_and_the_emptiest_waits() -> None:
    decision = decide(cluster({"a": 0.9, "b": 0.85, "c": 0.05}, {"a": [50], "b": [10, 40], "c": [1]}))
    assert moved(decision) == [(1, "b", "c")]
    assert decision.refused[0].rule == "NoBundles"


def test_an_underloaded_broker_gets_something_though_the_deviation_is_fine() -> None:
    """Mean 28 %: an eighth of that is 3.5 %."""
    loads = {"a": 0.40, "b": 0.41, "c": 0.03}
    decision = decide(cluster(loads, {"a": [10, 30], "b": [10, 30], "c": [1]}))
    assert cause(decision) == "Underloaded"
    assert decision.moves[0].reason.startswith("Underloaded: ")
    assert moved(decision)[0] == (2, "b", "c")
    fine = decide(cluster(loads | {"c": 0.04}, {"a": [10, 30], "b": [10, 30], "c": [10]}))
    assert cause(fine) == "HitCount"


def test_an_overloaded_outlier_gives_though_the_deviation_is_fine() -> None:
    loads = dict.fromkeys("abcdefgh", 0.6) | {"i": 0.9}
    owned = {name: [20] for name in "abcdefgh"} | {"i": [2, 30]}
    assert cause(decide(cluster(loads, owned))) == "Overloaded"
    assert cause(decide(cluster(loads | {"i": 0.84}, owned))) == "HitCount"
    assert cause(decide(cluster(dict.fromkeys("abcdefgh", 0.7) | {"i": 0.9}, owned))) == "HitCount", "too close to all"


def test_one_who_has_not_reported_stops_everybody() -> None:
    loads = {"a": 0.9, "b": 0.1, "c": 0.1}
    assert cause(decide(cluster(loads, TWENTY, known=[True, True, False]))) == "NoLoadData"
    assert cause(decide(cluster(loads, TWENTY, known=[False] * 3))) == "NoBrokers"
    assert decide(cluster(loads, TWENTY, known=[True, True, False], paused=[False, False, True])).moves
    assert decide(cluster(loads, TWENTY, known=[True, True, False], draining=[False, False, True])).moves


def test_data_out_of_date_are_left_out_and_take_nothing() -> None:
    ages = np.array([0.0, 1801.0, 0.0])
    decision = decide(cluster({"a": 0.9, "b": 0.01, "c": 0.1}, TWENTY | {"c": [1]}, report_age_s=ages))
    assert {to for _, _, to in moved(decision)} == {"c"}
    assert outcome(decision).load_avg == pytest.approx(0.5)
    assert cause(decide(cluster(SKEWED, TWENTY, report_age_s=np.array([1801.0, np.inf])))) == "OutDatedData"


def test_who_shed_must_have_reported_three_minutes_after_it() -> None:
    first = decide(cluster(SKEWED, TWENTY, at_ms=0))

    def later(minutes: float, age_s: float) -> Decision:
        ages = np.array([age_s, 0.0])
        now = cluster(SKEWED, TWENTY, at_ms=int(minutes * MINUTE_MS), report_age_s=ages)
        return decide(now, AT_ONCE, first.memory)

    assert cause(later(2.9, 0)) == "CoolDown"
    assert cause(later(4, 61)) == "CoolDown", "the report is from before"
    assert later(4, 60).moves
    assert later(3, 0).moves


def test_the_destination_gets_no_time_to_settle() -> None:
    memory = decide(cluster(SKEWED, TWENTY)).memory
    assert isinstance(memory, TransferMemory)
    assert set(memory.brokers_ms) == {str(broker("a"))}


def test_usage_is_averaged_over_rounds_and_starts_anew_where_something_moved() -> None:
    three = {"a": 0.9, "b": 0.1, "c": 0.5}
    before = decide(cluster(three, TWENTY | {"c": [5]}), Settings()).memory
    halved = {name: load / 2 for name, load in three.items()}
    after = decide(cluster(halved, TWENTY | {"c": [5]}), Settings(), before).memory
    assert isinstance(after, TransferMemory)
    assert after.averages[str(broker("a"))].usage == pytest.approx(0.9 * 0.9 + 0.1 * 0.45)
    moving = decide(cluster(halved, TWENTY | {"c": [5]}), AT_ONCE, before)
    assert {to for _, _, to in moved(moving)} == {"b"}
    assert isinstance(moving.memory, TransferMemory)
    assert set(moving.memory.averages) == {str(broker("c"))}


def test_throughput_averages_tell_who_is_underloaded() -> None:
    loads = {"a": 0.5, "b": 0.5}
    owned = {"a": [10, 30], "b": [40]}
    assert not decide(cluster(loads, owned)).moves
    history = {str(broker(name)): Average(0.5, bytes_s) for name, bytes_s in (("a", 40e6), ("b", 40e6))}
    assert not decide(cluster(loads, owned), AT_ONCE, TransferMemory(averages=history)).moves
    low = history | {str(broker("a")): Average(0.5, 0.0)}
    decision = decide(cluster(loads, owned), AT_ONCE, TransferMemory(averages=low))
    assert cause(decision) in {"Underloaded", "NoBundles"}
    assert not decision.moves, "there is half of nothing to give: both are as full"


def test_a_cluster_without_any_load_is_left_alone() -> None:
    decision = decide(cluster({"a": 0.0, "b": 0.0}, {"a": [], "b": [1, 2, 3]}))
    assert not decision.moves
    assert cause(decision) == "NoBundles"


def test_under_policies_a_bundle_goes_where_its_group_is_thin() -> None:
    tuning = Tuning(policy_bundles=True)
    crowded = {
        "a": [Hot(out_bytes_s=5e6, group="g", namespace="t/x"), 45],
        "b": [Hot(out_bytes_s=1e6, group="g", namespace="t/y")],
    }
    three = cluster(SKEWED | {"c": 0.4}, crowded | {"c": [1]})
    decision = decide(three, tuning=tuning)
    assert not decision.moves
    assert decision.counts["anti-affinity group"] == 2, "neither there nor back"


def test_the_numbers_of_a_move_are_those_before_and_after_it() -> None:
    loads = {"a": [Hot(0.2, out_bytes_s=10e6), Hot(0.6, out_bytes_s=40e6)], "b": [Hot(0.1, out_bytes_s=1e6)]}
    (move,) = decide(model({"a": 0.9, "b": Host(0.2, cores=2)}, loads)).moves
    assert (move.source_before, move.source_after) == pytest.approx((0.9, 0.7))
    assert (move.destination_before, move.destination_after) == pytest.approx((0.2, 0.3))
    assert move.load == pytest.approx(0.1)
    assert "a:6650 90.0% to 70.0%" in move.reason
