"""What the plan does in situations that can be written in a line: PIP-220's cases, rules, emergencies, explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.stages import exchange
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, broker, bundle, model

AT_ONCE = Settings(balancing_budget=1.0)


def decide(given: ClusterModel, settings: Settings = AT_ONCE) -> Decision:
    return Plan().decide(given, settings)


def even(usages: Mapping[str, float], parts: int = 10) -> ClusterModel:
    """Brokers with so much usage each, in equal bundles; an empty one has none."""
    return model(usages, {name: [usage / parts] * parts for name, usage in usages.items() if usage})


def paths(decision: Decision) -> list[tuple[str, str]]:
    return [(move.source.name[0], destination_of(move)[0]) for move in decision.moves]


def destination_of(move: Move) -> str:
    assert move.destination is not None
    return move.destination.name


def usages_after(given: ClusterModel, decision: Decision) -> list[float]:
    after = {each: float(used) for each, used in zip(given.brokers.ids, given.brokers.used[:, 0], strict=True)}
    for move in decision.moves:
        assert move.destination is not None
        after[move.source] -= move.load
        after[move.destination] += move.load
    return [round(usage, 4) for usage in after.values()]


def test_where_no_resource_counts_there_is_nothing_to_balance() -> None:
    given = even({"a": 0.9, "b": 0.1})
    decision = decide(given, Settings(balancing_budget=1.0, weight_cpu=0.0))
    assert (decision.moves, decision.spread_before) == ((), 0.0)


@pytest.mark.parametrize(
    "usages",
    [
        [0.12, 0.02, 0.01, 0.01],
        [0.5, 0.5, 0.5, 0.5, 0.5, 0.0],
        [0.8, 0.8, 0.8, 0.8, 0.2],
        [0.9, 0.5, 0.1],
        [0.3, 0.3, 0.3, 0.9],
    ],
    ids=str,
)
def test_a_lopsided_cluster_is_within_tolerance_after_one_round(usages: Sequence[float]) -> None:
    given = even(dict(zip("abcdef", usages, strict=False)), parts=40)
    decision = decide(given)
    mean = sum(usages) / len(usages)
    assert max(usages_after(given, decision)) <= max(mean * 1.1, mean + 0.01) + 1e-6
    assert decision.certificate is not None
    assert decision.certificate.ratio < 1.1


@pytest.mark.parametrize(
    "usages",
    [[0.005, 0.0, 0.001], [0.5, 0.5, 0.46], [0.6, 0.6], [0.0, 0.0], [0.9]],
    ids=["idle", "even", "2", "0", "1"],
)
def test_a_cluster_that_is_balanced_or_idle_is_left_alone(usages: Sequence[float]) -> None:
    decision = decide(even(dict(zip("abc", usages, strict=False))))
    assert decision.moves == ()
    assert "within tolerance" in decision.reason


def test_it_moves_just_as_much_as_it_must() -> None:
    given = model({"a": 0.6, "b": 0.2, "c": 0.2}, {"a": [0.3, 0.13, 0.08, 0.05, 0.04], "b": [0.2], "c": [0.2]})
    decision = decide(given)
    # The limit is 36.67 %, so 23.33 points must go: 0.13 + 0.08 + 0.04 is the least sum that is enough.
    assert {move.load for move in decision.moves} == {0.13, 0.08, 0.04}
    assert decision.certificate is not None
    assert decision.certificate.ratio == pytest.approx(1.0)


def test_a_swap_is_made_where_no_single_move_helps() -> None:
    given = model({"a": 0.9, "b": 0.7}, {"a": [0.5, 0.4], "b": [0.4, 0.3]})
    decision = decide(given, Settings(balancing_budget=1.0, balancing_tolerance=0.05, overloaded_percent=100))
    assert sorted(usages_after(given, decision)) == [0.8, 0.8]
    assert {move.stage for move in decision.moves} <= {Stage.SWAP, Stage.EXACT}
    assert {move.group for move in decision.moves} == {1}


def test_swaps_do_without_the_exact_search() -> None:
    draft = Draft(model({"a": 0.9, "b": 0.7}, {"a": [0.5, 0.4], "b": [0.4, 0.3]}), Settings(balancing_tolerance=0.05))
    assert exchange(draft, draft.free_holdings)
    assert [round(float(usage), 4) for usage in draft.peak] == [0.8, 0.8]


def test_a_chain_makes_room_on_a_third_broker() -> None:
    hot = Hot(0.45, forbidden={"c": "excluded"})
    given = model(
        {"a": 0.75, "b": 0.35, "c": 0.1}, {"a": [hot, Hot(0.3, fixed="pinned")], "b": [0.2, 0.15], "c": [0.1]}
    )
    draft = Draft(given, AT_ONCE)
    assert exchange(draft, draft.free_holdings)
    assert {(step.source, step.destination) for step in draft.steps} in ({(0, 1), (1, 2)}, {(0, 1), (1, 0)})
    assert max(draft.peak) < 0.75


def test_a_bundle_that_rests_stays_and_says_for_how_long() -> None:
    given = model({"a": 0.6, "b": 0.1}, {"a": [Hot(0.3, moved_s=600), Hot(0.3, moved_s=600)], "b": [0.1]})
    decision = decide(given)
    assert decision.moves == ()
    assert decision.candidates[0].rule == "resting"
    assert "rests for another 1200 s" in decision.candidates[0].detail
    assert "rests for another" in decision.reason


def test_a_bundle_whose_load_changed_rests_no_longer_and_may_go_back() -> None:
    hot = Hot(0.3, moved_s=600, changed=True, left=("b",))
    assert paths(decide(model({"a": 0.6, "b": 0.1}, {"a": [hot, 0.3], "b": [0.1]}))) == [("a", "b")]


def test_bundle_never_returns_where_a_plan_took_it_even_under_overload() -> None:
    hot = [Hot(0.48, moved_s=600, left=("b",)), Hot(0.48, moved_s=600, left=("b",))]
    given = model({"a": 0.96, "b": 0.0}, {"a": hot})
    assert decide(given).moves == ()
    elsewhere = model({"a": 0.96, "b": 0.0, "c": 0.2}, {"a": hot, "c": [0.2]})
    assert ("a", "c") in paths(decide(elsewhere))
    assert ("a", "b") not in paths(decide(elsewhere))


def test_an_overloaded_broker_does_not_wait_for_the_end_of_rest_times() -> None:
    rested, just_moved = Hot(0.3, moved_s=400), Hot(0.3, moved_s=10)
    assert paths(decide(model({"a": 0.9, "b": 0.1}, {"a": [0.6, rested]}))) == [("a", "b")]
    kept = decide(model({"a": 0.9, "b": 0.1}, {"a": [Hot(0.6, fixed="pinned"), just_moved]}))
    assert kept.moves == ()


def test_a_draining_broker_gives_everything_away_though_all_is_balanced() -> None:
    given = model({"a": Host(0.3, draining=True), "b": 0.3, "c": 0.2}, {"a": [0.2, Hot(0.1, moved_s=1)], "b": [0.3]})
    decision = decide(given)
    assert [move.stage for move in decision.moves] == [Stage.DRAIN] * 2
    assert "a:6650 is draining" in decision.moves[0].reason
    assert decision.certificate is not None
    assert decision.certificate.ratio == pytest.approx(1.0)


def test_a_drain_leads_back_only_if_there_is_no_other_place() -> None:
    given = model({"a": Host(0.3, draining=True), "b": 0.3}, {"a": [Hot(0.3, left=("b",), moved_s=5)]})
    assert paths(decide(given)) == [("a", "b")]
    given = model({"a": Host(0.3, draining=True), "b": 0.1, "c": 0.5}, {"a": [Hot(0.3, left=("b",), moved_s=5)]})
    assert paths(decide(given)) == [("a", "c")]


def test_what_a_policy_forbids_goes_where_it_may_be() -> None:
    misplaced = Hot(0.1, forbidden={"a": "isolation policy 'pay'", "b": "isolation policy 'pay'"})
    decision = decide(model({"a": 0.3, "b": 0.3, "c": 0.2}, {"a": [0.2, misplaced], "b": [0.3], "c": [0.2]}))
    assert paths(decision) == [("a", "c")]
    assert decision.moves[0].stage is Stage.POLICY
    assert decision.moves[0].reason.startswith("isolation policy 'pay' forbids a:6650: a:6650 30.0 % → 20.0 %")


def test_namespaces_of_a_group_do_not_share_a_broker_if_they_need_not() -> None:
    mine, theirs = Hot(0.1, namespace="t/x", group="g"), Hot(0.1, namespace="t/y", group="g")
    decision = decide(model({"a": 0.2, "b": 0.2}, {"a": [mine, theirs], "b": [0.2]}))
    assert paths(decision) == [("a", "b")]
    apart = model({"a": 0.5, "b": 0.1, "c": 0.1}, {"a": [0.3, mine, mine], "b": [theirs], "c": [0.1]})
    moved = [move for move in decide(apart).moves if move.bundle.namespace == "t/x"]
    assert all(move.destination == broker("c") for move in moved)


def test_groups_are_spread_over_failure_domains_first() -> None:
    mine, theirs = Hot(0.1, namespace="t/x", group="g"), Hot(0.1, namespace="t/y", group="g")
    hosts = {"a": Host(0.2, domain="1"), "b": Host(0.2, domain="1"), "c": Host(0.15, domain="2")}
    decision = decide(model(hosts, {"a": [0.1, mine], "b": [0.1, theirs], "c": [0.15]}))
    assert destination_of(decision.moves[0]) == "c:6650"
    assert decision.moves[0].stage is Stage.POLICY
    assert [move for move in decision.moves if move.bundle.namespace in ("t/x", "t/y")] == [decision.moves[0]]


@pytest.mark.parametrize(
    "cold",
    [Host(0.1, max_bundles=1), Host(0.1, paused=True), Host(0.1, draining=True), Host(0.1, known=False)],
    ids=["limit", "paused", "draining", "unknown"],
)
def test_a_broker_that_may_take_nothing_gets_nothing(cold: Host) -> None:
    given = model({"a": 0.6, "b": cold, "c": 0.4}, {"a": [0.2, 0.2, 0.2], "b": [Hot(0.1, fixed="pinned")], "c": [0.4]})
    assert ("a", "b") not in paths(decide(given))


def test_a_broker_without_fresh_load_data_stops_nobody_else() -> None:
    given = even({"a": 0.6, "b": 0.1, "c": 0.1}, parts=20)
    blind = model({"a": 0.6, "b": 0.1, "c": Host(0.0, known=False)}, {"a": [0.03] * 20, "b": [0.1]})
    assert decide(given).moves
    decision = decide(blind)
    assert set(paths(decision)) == {("a", "b")}
    assert [(each.subject, each.rule) for each in decision.refused] == [("c:6650#1", "no fresh load data")]


def test_a_pool_of_its_own_is_balanced_by_its_own_mean() -> None:
    pay = Hot(0.05, forbidden={"c": "isolation policy 'pay'", "d": "isolation policy 'pay'"})
    rest = Hot(0.05, forbidden={"a": "isolation policy 'pay'", "b": "isolation policy 'pay'"})
    usages = {"a": 0.8, "b": 0.8, "c": 0.2, "d": 0.2}
    given = model(usages, {"a": [pay] * 16, "b": [pay] * 16, "c": [rest] * 4, "d": [rest] * 4})
    assert decide(given).moves == ()
    lopsided = model({**usages, "a": 0.8, "b": 0.4}, {"a": [pay] * 16, "b": [pay] * 8, "c": [rest] * 4})
    assert set(paths(decide(lopsided))) == {("a", "b")}


def test_foreign_load_that_cannot_go_does_not_hide_the_others() -> None:
    given = model({"a": 0.9, "b": 0.35, "c": 0.2}, {"b": [0.05] * 7, "c": [0.05] * 4})
    assert set(paths(decide(given))) == {("b", "c")}


def test_larger_brokers_get_more() -> None:
    hosts = {"a": Host(0.8, cores=4), "b": Host(0.1, cores=4), "c": Host(0.1, cores=16)}
    given = model(hosts, {"a": [0.1] * 32, "b": [0.4], "c": [1.6]})
    decision = decide(given)
    used = {"a": 3.2, "b": 0.4, "c": 1.6}
    for source, destination in paths(decision):
        used[source] -= 0.1
        used[destination] += 0.1
    assert used["a"] / 4 <= 5.2 / 24 * 1.1 + 1e-9
    assert used["c"] - 1.6 > used["b"] - 0.4


def test_a_round_keeps_its_budget_and_its_number_of_moves() -> None:
    given = even({"a": 0.8, "b": 0.0, "c": 0.0, "d": 0.0}, parts=80)
    tenth = decide(given, Settings(balancing_budget=0.1))
    assert sum(move.load for move in tenth.moves) == pytest.approx(0.08, abs=0.011)
    three = decide(given, Settings(balancing_budget=1.0, balancing_moves_per_round=3))
    assert len(three.moves) == 3
    assert {each.rule for each in three.candidates} == {"budget of the round"}


def test_a_bundle_above_the_budget_goes_all_the_same() -> None:
    assert len(decide(model({"a": 0.8, "b": 0.0}, {"a": [0.4, 0.4]}), Settings(balancing_budget=0.1)).moves) == 1


def test_heavier_weights_make_a_bundle_the_last_to_go() -> None:
    given = model({"a": 0.6, "b": 0.2}, {"a": [Hot(0.2, weight=10), 0.2, 0.2], "b": [0.2]})
    assert [move.bundle for move in decide(given).moves] != [bundle(0)]


def test_an_empty_broker_gets_something_though_nobody_is_too_full() -> None:
    usages = dict.fromkeys("abcdefghijklmn", 0.5) | {"o": 0.0}
    given = even(usages, parts=50)
    decision = decide(given)
    assert {destination for _, destination in paths(decision)} == {"o"}
    assert "o:6650 idles below" in decision.moves[0].reason


def test_nobody_takes_part_is_a_reason_too() -> None:
    decision = decide(model({"a": Host(0.9, known=False), "b": Host(0.0, paused=True)}, {"a": [0.9]}))
    assert decision.moves == ()
    assert "no broker takes part" in decision.reason


def test_no_broker_and_no_bundle_are_no_problem() -> None:
    assert decide(model({})).moves == ()
    assert decide(model({"a": 0.9, "b": 0.1})).moves == ()


def test_a_cluster_that_does_nearly_nothing_is_not_told_of_tolerances() -> None:
    decision = decide(model({"a": 0.016, "b": 0.0, "c": 0.0, "d": 0.0}, {"a": [0.016]}))
    assert not decision.moves
    assert decision.reason.startswith("no moves: all brokers are nearly idle, the fullest, a:6650 uses 1.6 %")
