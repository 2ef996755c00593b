"""Why a bundle moves or not: the rule with its numbers for every destination, and what would have to change."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np
import pytest

from loadmanager.model.cluster import NOWHERE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.refusals import Judgement, judge
from tests.loadmanager.strategies.rebalancing.cluster_models import Host, Hot, broker, model
from tests.loadmanager.strategies.rebalancing.plan.random_models import ruled_model

PLAIN = Settings(balancing_budget=1.0)


def judged(given: ClusterModel, row: int = 0) -> Judgement:
    return judge(Draft(given, PLAIN), row)


def rules(judgement: Judgement) -> dict[str, str]:
    return {verdict.destination.name[0]: verdict.rule for verdict in judgement.destinations}


def test_movable_bundle_has_a_best_destination_and_needs_no_change() -> None:
    found = judged(model({"a": 0.8, "b": 0.3, "c": 0.1}, {"a": [0.2, 0.6], "b": [0.3], "c": [0.1]}))
    assert found.best is not None
    assert found.best.destination == broker("c")
    assert found.best.usage_after == pytest.approx(0.3)
    assert found.changes == ()


def test_within_tolerance_it_names_the_owner_usage_that_would_allow_a_move() -> None:
    usages = {"a": 0.5, "b": 0.5, "c": 0.5}
    given = model(usages, {"a": [0.1], "b": [0.1], "c": [0.1]})
    found = judged(given)
    assert found.rule == ""
    assert found.best is None
    assert set(rules(found).values()) == {"owner within tolerance"}
    [change] = found.changes
    told = re.search(r"go to (\w):6650 if a:6650 used more than ([\d.]+) % \(uses 50.0 %\)", change)
    assert told is not None
    # The target moves with the owner's load; with that of the model held still the numbers are exact.
    assert float(told[2]) > float(Draft(given, PLAIN).scale.limit[0]) * 100


def test_rest_is_told_in_seconds() -> None:
    found = judged(model({"a": 0.8, "b": 0.1}, {"a": [Hot(0.2, moved_s=1488), 0.6]}))
    assert found.rule == "resting"
    assert "rests for another 312 s" in found.changes[0]
    assert found.best is None


def test_the_policy_that_is_in_the_way_is_named() -> None:
    hot = Hot(0.2, forbidden={"c": "isolation policy 'pay'"})
    found = judged(model({"a": 0.8, "b": 0.75, "c": 0.1}, {"a": [hot, 0.6], "b": [0.75], "c": [0.1]}))
    assert rules(found) == {"b": "no room", "c": "forbidden by policy"}
    assert any("isolation policy 'pay' forbids c:6650; without that it would go to c:6650" in c for c in found.changes)


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        (Host(0.1, paused=True), "broker paused"),
        (Host(0.1, draining=True), "broker draining"),
        (Host(0.1, known=False), "no fresh load data"),
        (Host(0.1, max_bundles=0), "bundle limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_destination_that_is_out_of_the_question_says_why(host: Host, rule: str) -> None:
    assert rules(judged(model({"a": 0.8, "b": host, "c": 0.4}, {"a": [0.2]})))["b"] == rule


def test_where_it_came_from_and_where_its_group_is_are_rules_too() -> None:
    mine, theirs = Hot(0.1, namespace="t/x", group="g", left=("c",)), Hot(0.1, namespace="t/y", group="g")
    found = judged(model({"a": 0.8, "b": 0.1, "c": 0.1}, {"a": [mine, 0.7], "b": [theirs], "c": [0.1]}))
    assert rules(found) == {"b": "anti-affinity", "c": "came from there"}


@pytest.mark.parametrize(
    ("hot", "rule"),
    [(Hot(0.2, in_flight=True), "in flight"), (Hot(0.2, fixed="pinned to a:6650"), "kept by policy")],
    ids=["in flight", "pinned"],
)
def test_what_keeps_the_bundle_itself_comes_first(hot: Hot, rule: str) -> None:
    found = judged(model({"a": 0.8, "b": 0.1}, {"a": [hot, 0.6]}))
    assert (found.rule, found.best) == (rule, None)


def test_a_bundle_without_owner_has_to_get_one() -> None:
    found = judged(model({"a": 0.8, "b": 0.1}, {"": [0.1]}))
    assert (found.rule, found.destinations) == ("no owner", ())


def test_what_must_go_has_a_destination_although_its_owner_is_within_tolerance() -> None:
    found = judged(model({"a": Host(0.3, draining=True), "b": 0.3}, {"a": [0.1]}))
    assert found.best is not None


def test_judging_agrees_with_what_the_plan_does_first() -> None:
    agreed = 0
    for seed in range(60):
        given = ruled_model(seed)
        decision = Plan().decide(given, PLAIN)
        for move in decision.moves[:1]:
            draft, row = Draft(given, PLAIN), given.bundles.ids.index(move.bundle)
            found, must = judge(draft, row), draft.eligibility.drained[row] or draft.eligibility.misplaced[row]
            allowed = [verdict.destination for verdict in found.destinations if verdict.allowed]
            if move.stage in ("policy", "drain") and not must:
                continue  # a whole namespace moves away from its group
            agreed += move.destination in allowed or move.group != 0 or move.stage == "drain"
            assert move.destination in allowed or move.group or found.rule in ("resting", "") or must
    assert agreed > 30


@pytest.mark.parametrize("seed", range(15))
def test_every_bundle_of_any_model_is_judged_against_every_other_broker(seed: int) -> None:
    given = ruled_model(seed)
    brokers, draft = given.brokers, Draft(given, PLAIN)
    for row in range(len(given.bundles)):
        found, owner = judge(draft, row), int(given.bundles.owner[row])
        others = [] if owner == NOWHERE else [each for each in brokers.ids if each != brokers.ids[owner]]
        must = draft.eligibility.drained[row] or draft.eligibility.misplaced[row]
        assert sorted(each.destination for each in found.destinations) == sorted(others)
        for each in found.destinations:
            at = brokers.rows[each.destination]
            assert each.allowed == (each.rule == "") == (each.detail == "")
            if each.allowed:
                assert each.gain > 0
                assert each.usage_after <= 1 or must
                assert (brokers.known[at], brokers.paused[at], brokers.draining[at]) == (True, False, False)
                assert brokers.bundles[at] < brokers.max_bundles[at]
        allowed = [each for each in found.destinations if each.allowed]
        assert [each.gain for each in allowed] == sorted((each.gain for each in allowed), reverse=True)
        assert list(found.destinations[: len(allowed)]) == allowed
        if found.rule:
            assert found.best is None
            assert found.changes
        else:
            assert found.best == (allowed[0] if allowed else None)
            assert (found.changes == ()) is (found.best is not None)


@pytest.mark.parametrize("seed", range(15))
def test_where_no_load_is_known_every_destination_says_so_unless_another_rule_comes_first(seed: int) -> None:
    given = ruled_model(seed)
    unknown = msgspec.structs.replace(given.brokers, known=np.zeros(len(given.brokers), np.bool_))
    draft = Draft(ClusterModel(unknown, given.bundles, given.constraints), PLAIN)
    told = Counter[str]()
    for row in range(len(given.bundles)):
        found = judge(draft, row)
        assert found.best is None
        assert not any(each.allowed for each in found.destinations)
        told.update(each.rule for each in found.destinations)
    assert told["no fresh load data"] > 0
