"""Where the children of a split go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.splitting.spreading import Spreading, spread
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, broker, bundle, model

SETTINGS = Settings()


def places(found: Spreading) -> dict[str, int]:
    return dict(Counter(move.destination.name.split(":")[0] for move in found.moves if move.destination))


def spread_all(of: ClusterModel, count: int) -> Spreading:
    return spread(of, [bundle(i) for i in range(count)], SETTINGS)


def test_children_go_to_the_least_full_and_their_owner_keeps_its_share():
    found = spread_all(model({"a": 0.8, "b": 0.1, "c": 0.1}, {"a": [0.2, 0.2, 0.2, 0.2]}), 4)
    assert places(found) == {"b": 1, "c": 1}
    assert len(found.stays) == 2, "the owner has nothing besides: it keeps two of four"
    assert "a:6650 was 80.0% full with all parts; b:6650 goes from 10.0% to 30.0%" in found.moves[0].reason


def test_an_owner_that_is_full_without_them_gives_them_all_away():
    found = spread_all(model({"a": 0.9, "b": 0.1, "c": 0.0}, {"a": [0.1, 0.1]}), 2)
    assert places(found) == {"b": 1, "c": 1}


def test_nobody_is_made_fuller_than_the_owner_was():
    found = spread_all(model({"a": 0.5, "b": 0.45, "c": 0.4}, {"a": [0.2, 0.2]}), 2)
    assert not found.moves
    assert set(found.stays.values()) == {"no other broker has room for it"}


def test_a_share_of_what_the_destination_has_counts_not_the_load_itself():
    big = model({"a": 0.8, "b": Host(0.5, cores=8.0)}, {"a": [0.4, 0.4]})
    assert places(spread_all(big, 2)) == {"b": 1}


@pytest.mark.parametrize(
    "shut",
    [
        {"known": [True, False]},
        {"draining": [False, True]},
        {"paused": [False, True]},
        {"max_bundles": [99, 0]},
        {"fixed": [0, 0], "rules": ("pinned",)},
        {"in_flight": [True, True]},
        {"paused": [True, False]},
    ],
)
def test_hard_rules_hold(shut: dict[str, object]):
    assert not spread_all(model({"a": 0.8, "b": 0.0}, {"a": [0.4, 0.4]}, **shut), 2).moves


def test_forbidden_broker_gets_nothing_and_a_fixing_rule_is_named():
    hot = Hot(0.4, forbidden={"b": "isolation policy 'pay'"})
    found = spread_all(model({"a": 0.8, "b": 0.0, "c": 0.1}, {"a": [hot, Hot(0.4, fixed="pinned to a")]}), 2)
    assert places(found) == {"c": 1}
    assert found.stays[bundle(1)] == "pinned to a"


def test_children_that_nobody_reported_yet_wait():
    found = spread(model({"a": 0.8, "b": 0.0}, {"a": [0.4]}), [bundle(7)], SETTINGS)
    assert found.stays == {bundle(7): "its owner has not reported it"}


def test_other_bundles_are_left_where_they_are():
    found = spread(model({"a": 0.8, "b": 0.0}, {"a": [0.4, 0.4]}), [bundle(0)], SETTINGS)
    assert {move.bundle for move in found.moves} <= {bundle(0)}


def test_weights_of_the_settings_count():
    found = spread(model({"a": 0.8, "b": 0.9}, {"a": [0.4, 0.4]}), [bundle(0), bundle(1)], Settings(weight_cpu=0))
    assert places(found) == {"b": 1}, "without a resource that counts, siblings are parted all the same"


@given(
    st.lists(st.floats(0.01, 0.3), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.floats(0, 0.5),
)
def test_fullest_broker_gets_no_fuller_and_each_child_has_a_verdict(
    loads: list[float], others: list[float], foreign: float
):
    hosts = {"a": sum(loads) + foreign, **{f"b{i}": usage for i, usage in enumerate(others)}}
    found = spread_all(model(hosts, {"a": list(loads)}), len(loads))
    assert len(found.moves) + len(found.stays) == len(loads)
    after = dict(hosts)
    cost = {bundle(i): load for i, load in enumerate(loads)}
    for move in found.moves:
        assert move.source == broker("a")
        assert move.destination is not None
        after["a"] -= cost[move.bundle]
        after[move.destination.name.split(":")[0]] += cost[move.bundle]
    assert max(after.values()) <= max(hosts.values()) + 1e-6
