"""Pulsar's shedders of the modular load manager, and AvgShedder, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from loadmanager.decisions.codec import given_memory
from loadmanager.decisions.record import Memory
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Stage
from loadmanager.strategies.rebalancing.pulsar.avg import Avg, AvgMemory
from loadmanager.strategies.rebalancing.pulsar.shedder import Tuning
from loadmanager.strategies.rebalancing.pulsar.shedding import Overload, SheddingMemory, Threshold, Uniform
from statechannel.law.record import BrokerId
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, broker, bundle, model

MB = 2**20
DEFAULT = Settings()
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def cluster(loads: Mapping[str, float], mbytes: Mapping[str, Sequence[float | Hot]], at_ms: int = 0) -> ClusterModel:
    """Brokers with a usage, and bundles with MiB/s."""
    owned = {n: [s if isinstance(s, Hot) else Hot(out_bytes_s=s * MB) for s in sizes] for n, sizes in mbytes.items()}
    return model({name: Host(load) for name, load in loads.items()}, owned, at_ms=at_ms)


def rates(messages: Mapping[str, Sequence[float | Hot]]) -> ClusterModel:
    """Brokers whose bundles have so many messages/s, and no bytes."""
    owned = {n: [r if isinstance(r, Hot) else Hot(rate_msg_s=r) for r in each] for n, each in messages.items()}
    return model(dict.fromkeys(messages, 0.5), owned)


def gone(decision: Decision) -> list[int]:
    names = {bundle(number): number for number in range(100)}
    return [names[move.bundle] for move in decision.moves]


# --- threshold


def test_threshold_unloads_the_largest_until_the_excess_is_gone() -> None:
    """Mean 50 %: limit 60 %, a has 90 %: 35 % of 200 MiB/s go, 70: 60 is not enough, 80 and then no more."""
    decision = Threshold().decide(cluster({"a": 0.9, "b": 0.1}, {"a": [20, 60, 20, 100 - 60, 60], "b": [5]}), DEFAULT)
    assert gone(decision) == [1, 4]
    assert all(move.destination is None and move.stage is Stage.OVERLOAD for move in decision.moves)
    assert decision.reason == "Success/Overloaded: 2 bundles are unloaded"


def test_threshold_unloads_one_bundle_at_least() -> None:
    assert gone(Threshold().decide(cluster({"a": 0.9, "b": 0.1}, {"a": [190, 10], "b": [5]}), DEFAULT)) == [0]


def test_threshold_is_ten_points_above_the_mean() -> None:
    loads = {"a": [100, 200], "b": [5]}
    assert Threshold().decide(cluster({"a": 0.625, "b": 0.375}, loads), DEFAULT).moves
    assert not Threshold().decide(cluster({"a": 0.59, "b": 0.41}, loads), DEFAULT).moves


def test_threshold_leaves_less_than_ten_megabytes() -> None:
    """35 % of the broker's bytes would go."""
    assert not Threshold().decide(cluster({"a": 0.9, "b": 0.1}, {"a": [14, 14], "b": [5]}), DEFAULT).moves
    assert Threshold().decide(cluster({"a": 0.9, "b": 0.1}, {"a": [14, 15], "b": [5]}), DEFAULT).moves


def test_threshold_warns_of_an_only_bundle_and_leaves_it() -> None:
    decision = Threshold().decide(cluster({"a": 0.9, "b": 0.1}, {"a": [200], "b": [5]}), DEFAULT)
    assert not decision.moves
    assert [(each.subject, each.rule) for each in decision.refused] == [("a:6650", "NoBundles")]


def test_threshold_averages_and_so_still_sheds_when_the_load_is_gone() -> None:
    settings = Settings(bundle_rest_s=0)
    loads = {"a": [100, 100], "b": [100, 100]}
    first = Threshold().decide(cluster({"a": 0.9, "b": 0.1}, loads), settings)
    after = Threshold().decide(cluster({"a": 0.5, "b": 0.5}, loads, MINUTE_MS), settings, first.memory)
    assert after.moves, "86 % on average"
    assert isinstance(after.memory, SheddingMemory)
    assert after.memory.averages[str(broker("a"))].usage == pytest.approx(0.86)


def test_threshold_remembers_what_it_unloaded() -> None:
    loads = {"a": [100, 90, 10], "b": [5]}
    memory: object = None
    order: list[int] = []
    for minute in (0, 1, 29, 31):
        decision = Threshold().decide(cluster({"a": 0.9, "b": 0.1}, loads, minute * MINUTE_MS), DEFAULT, memory)
        memory = decision.memory
        order += gone(decision)
    assert order == [0, 1, 2, 0], "rested for 30 minutes, so the second one still does"


def test_lower_boundary_fills_brokers_far_below_the_mean_as_last_resort() -> None:
    """Mean 46 %: nobody is above 56 %, c is below 36 %. 5 % of 200 MiB/s of the fullest with two bundles."""
    loads, sizes = {"a": 0.555, "b": 0.55, "c": 0.275}, {"a": [400], "b": [6, 194], "c": [1]}
    low = Threshold(Tuning(lower_boundary=True))
    assert not Threshold().decide(cluster(loads, sizes), DEFAULT).moves
    assert gone(low.decide(cluster(loads, sizes), DEFAULT)) == [2]
    assert not low.decide(cluster(loads, sizes | {"b": [6, 193]}), DEFAULT).moves, "below 10 MiB/s"
    assert not low.decide(cluster(loads | {"c": 0.41}, sizes), DEFAULT).moves


# --- overload


def test_overload_looks_at_nobody_else_and_goes_below_the_limit() -> None:
    """95 %: 15 % of 100 MiB/s."""
    decision = Overload().decide(cluster({"a": 0.95, "b": 0.9}, {"a": [10, 6, 40, 44], "b": [1, 9]}), DEFAULT)
    assert gone(decision) == [3, 5]
    assert gone(Overload().decide(cluster({"a": 0.95, "b": 0.2}, {"a": [10, 6, 4] + [5] * 16}), DEFAULT)) == [0, 1]
    assert not Overload().decide(cluster({"a": 0.849, "b": 0.1}, {"a": [10, 90]}), DEFAULT).moves
    assert Overload().decide(cluster({"a": 0.85, "b": 0.1}, {"a": [10, 90]}), DEFAULT).moves


def test_a_bundle_that_nobody_else_may_take_is_not_unloaded() -> None:
    only_here = Hot(out_bytes_s=90 * MB, forbidden={"b": "isolation policy 'x'"})
    decision = Overload().decide(cluster({"a": 0.95, "b": 0.1}, {"a": [only_here, 10]}), DEFAULT)
    assert gone(decision) == [1]
    assert decision.counts["no other broker may take it"] == 1


# --- uniform


def test_uniform_gives_a_fifth_of_the_difference_in_messages() -> None:
    """20,000 to 10,000: 2,000 may go, and 1,000 more. 2,900 fits, leaves -900: 100 fits; 101 does not."""
    bundles = [13_000, 3_899, 2_900, 101, 100]
    decision = Uniform().decide(rates({"a": [*bundles], "b": [10_000]}), DEFAULT)
    assert gone(decision) == [2, 4]
    assert decision.counts["more than is to go"] == 3


def test_uniform_needs_more_than_half_more_messages_and_a_thousand_to_move() -> None:
    assert not Uniform().decide(rates({"a": [14_000, 1_000], "b": [10_000]}), DEFAULT).moves
    assert Uniform().decide(rates({"a": [14_100, 1_000], "b": [10_000]}), DEFAULT).moves
    assert not Uniform().decide(rates({"a": [4_000, 990], "b": [0]}), DEFAULT).moves, "998 of 4,990"
    assert Uniform().decide(rates({"a": [4_011, 990], "b": [0]}), DEFAULT).moves, "none counts as one: 1,000 of 5,001"


def test_uniform_looks_at_bytes_only_where_messages_are_even() -> None:
    def both(rate: float) -> ClusterModel:
        owned = {"a": [Hot(out_bytes_s=8 * MB, rate_msg_s=rate), Hot(out_bytes_s=1 * MB)], "b": [Hot(0, MB, 0, 10.0)]}
        return model({"a": 0.5, "b": 0.5}, owned)

    assert gone(Uniform().decide(both(10), DEFAULT)) == [1], "9 to 1: more than 4"
    assert not Uniform().decide(both(16), DEFAULT).moves, "messages differ, but too few to move"


def test_uniform_stops_at_the_limit_of_bundles() -> None:
    spread = rates({"a": [500.0] * 40, "b": [0.0]})
    assert len(Uniform().decide(spread, DEFAULT).moves) == 9, "3,999, and up to 1,000 more"
    limited = Uniform(Tuning(max_bundles=3)).decide(spread, DEFAULT)
    assert len(limited.moves) == 3
    assert limited.counts["the most bundles of one round"] == 37


# --- avg


FOUR = {"a": 0.9, "b": 0.6, "c": 0.4, "d": 0.1}
MESSAGES = {"a": [900.0] * 20, "b": [900.0] * 12, "c": [900.0] * 8, "d": [900.0] * 2}


def pairs(loads: Mapping[str, float] = FOUR) -> ClusterModel:
    owned = {name: [Hot(rate_msg_s=rate) for rate in each] for name, each in MESSAGES.items()}
    return model({name: Host(load) for name, load in loads.items()}, owned)


def after(rounds: int, cluster: ClusterModel, memory: object = None, settings: Settings = DEFAULT) -> Decision:
    decision = Avg().decide(cluster, settings, memory)
    for _ in range(rounds - 1):
        decision = Avg().decide(cluster, settings, decision.memory)
    return decision


def test_avg_pairs_fullest_with_emptiest_and_acts_on_the_far_pair_first() -> None:
    """a and d are 80 points apart: two rounds. b and c 20: eight. A fifth of 16,200 is 3,240: three bundles."""
    assert after(1, pairs()).reason.startswith("Skip/HitCount: ")
    second = after(2, pairs())
    assert [(m.source.name[0], m.destination and m.destination.name[0]) for m in second.moves] == [("a", "d")] * 3
    assert after(7, pairs(FOUR | {"a": 0.5, "d": 0.5})).reason.startswith("Skip/HitCount: ")
    eighth = after(8, pairs(FOUR | {"a": 0.5, "d": 0.5}))
    assert eighth.reason.startswith("Skip/NoBundles: "), "a fifth of 3,600 is below a thousand"


def test_avg_counts_both_hits_while_far_and_drops_the_high_ones_when_near() -> None:
    low, high = FOUR | {"a": 0.3}, FOUR
    memory = after(1, pairs(high)).memory
    assert isinstance(memory, AvgMemory)
    assert (memory.high[str(broker("a"))], memory.low[str(broker("a"))]) == (1, 1)
    memory = after(1, pairs(low | {"b": 0.2, "c": 0.2}), memory).memory
    assert isinstance(memory, AvgMemory)
    assert (memory.high[str(broker("a"))], memory.low[str(broker("a"))]) == (0, 2)
    memory = after(1, pairs(dict.fromkeys("abcd", 0.5)), memory).memory
    assert isinstance(memory, AvgMemory)
    assert not memory.low


def test_avg_starts_counting_anew_after_it_acted() -> None:
    memory = after(2, pairs()).memory
    assert isinstance(memory, AvgMemory)
    assert str(broker("a")) not in memory.high
    assert memory.low == {str(broker("b")): 2, str(broker("c")): 2}


def test_avg_is_fifteen_and_forty_points() -> None:
    assert after(1, pairs({"a": 0.64, "b": 0.5, "c": 0.5, "d": 0.5})).reason.startswith("Skip/Balanced: ")
    assert after(1, pairs({"a": 0.66, "b": 0.5, "c": 0.5, "d": 0.5})).reason.startswith("Skip/HitCount: ")
    assert not after(2, pairs({"a": 0.89, "b": 0.5, "c": 0.5, "d": 0.5})).moves
    assert after(2, pairs({"a": 0.91, "b": 0.5, "c": 0.5, "d": 0.5})).moves


def test_avg_moves_bytes_where_there_are_too_few_messages() -> None:
    decision = after(2, cluster({"a": 0.9, "b": 0.1}, {"a": [6, 6, 2, 2, 1], "b": [0]}))
    assert gone(decision) == [2, 4], "a fifth of 17 MiB/s: 2, then 1"
    assert not after(2, cluster({"a": 0.9, "b": 0.1}, {"a": [3, 1, 1], "b": [0]})).moves, "exactly one is not more"


def test_a_memory_of_avg_from_an_earlier_release_is_read_without_its_targets() -> None:
    memory = after(1, pairs()).memory
    assert isinstance(memory, AvgMemory)
    older = msgspec.msgpack.encode({**msgspec.structs.asdict(memory), "targets": {"t/n/0x0_0x8": "d:6650#1"}})
    kept = Memory(older, f"{AvgMemory.__module__}:AvgMemory")
    assert given_memory(kept, Avg()) == memory


def test_a_broker_that_restarted_counts_from_anew() -> None:
    memory = after(1, pairs()).memory
    again = pairs()
    ids = tuple(BrokerId(each.name, 2) for each in again.brokers.ids)
    restarted = msgspec.structs.replace(again, brokers=msgspec.structs.replace(again.brokers, ids=ids))
    assert not Avg().decide(restarted, DEFAULT, memory).moves
