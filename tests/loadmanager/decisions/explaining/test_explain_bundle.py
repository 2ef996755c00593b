"""Why a bundle is where it is and did not move, for each rule; what would move it, as the strategy itself says."""

from __future__ import annotations

import math

import msgspec
import pytest

from loadmanager.decisions.explaining.bundle import Change, Whereabouts, explain_bundle
from loadmanager.decisions.explaining.edits import with_bundles, with_constraints
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.record import Memory, Outcome
from loadmanager.model.cluster import ALLOWED
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Decision, Move, Refused
from tests.loadmanager.decisions.explaining.situations import (
    HERE,
    A,
    B,
    C,
    barred,
    draining,
    even,
    explained,
    flagged,
    in_flight,
    kept,
    paused,
    resting,
    silent,
    situation,
    uneven,
)
from tests.loadmanager.decisions.models import broker, bundle, model

IDLE = Decision((), "somebody said so")


def rules(answer) -> list[str]:
    return [each.rule for each in answer.obstacles]


def test_a_bundle_that_the_round_moved_says_whence_and_why():
    decision = Decision((Move(bundle(0), broker("a"), broker("c"), "a is fuller"),), "one move")
    answer = explained(uneven(), 0, decision)
    assert answer.moved == f"moved from {A} to {C}: a is fuller"
    assert answer.answer == f"it is at {A}; the round moved from {A} to {C}: a is fuller"
    assert answer.obstacles == ()


def test_a_move_that_was_not_begun_says_so():
    decision = Decision((Move(bundle(0), broker("a"), None, "too hot"),), "one move")
    answer = explained(uneven(), 0, decision, outcomes=(Outcome("held back", "10 moves from a"),))
    assert answer.moved == f"moved from {A} to wherever its next lookup puts it (held back: 10 moves from a): too hot"


def test_a_resting_bundle_says_how_long_and_what_ends_that():
    answer = explained(resting(uneven(), 0), 0)
    assert answer.obstacles[0].rule == "resting"
    sentence = "it rests for another 20 min: it was moved 10 min ago, and a moved bundle rests 30 min"
    assert answer.answer == f"it is at {A}, and stays: {sentence}"
    assert answer.rest_left_s == 1200
    assert "20 min pass" in answer.obstacles[0].lifted_by
    assert "its load changes by 50% or more" in answer.obstacles[0].lifted_by


def test_a_bundle_whose_load_really_changed_does_not_rest():
    once = resting(uneven(), 0)
    answer = explained(with_bundles(once, changed=flagged(once.bundles.changed, 0)), 0)
    assert "resting" not in rules(answer)
    assert answer.rest_left_s == 0


def test_what_must_go_is_not_kept_by_its_rest():
    answer = explained(draining(resting(uneven(), 0), 0), 0, IDLE)
    assert "resting" not in rules(answer)


def test_a_pinned_bundle_names_its_policy():
    answer = explained(kept(uneven(), 0, f"pinned to {A}"), 0)
    assert answer.obstacles[0].rule == "kept by policy"
    assert answer.answer.endswith(f"a policy keeps it: pinned to {A}")
    assert answer.policies == (f"pinned to {A}",)


def test_isolation_bars_the_others_and_is_named():
    answer = explained(barred(uneven(), "isolation policy 'pay'", 1, 2), 0)
    assert answer.obstacles[0].rule == "no broker may take it"
    assert "isolation policy 'pay' forbids b:6650" in answer.obstacles[0].sentence
    assert answer.next_best is None
    assert answer.policies == (f"isolation policy 'pay': bars {B}, {C}",)


def test_isolation_of_one_broker_leaves_the_next_best():
    answer = explained(barred(uneven(), "isolation policy 'pay'", 1), 0, IDLE)
    assert answer.next_best.broker == C
    assert [(target.broker, bool(target.rule)) for target in answer.targets] == [(C, False), (B, True)]
    assert answer.next_best.usage == pytest.approx(0.2)
    assert answer.next_best.after == pytest.approx(0.5)


def test_a_bundle_in_flight_is_left_alone():
    whereabouts = Whereabouts(exists=True, state="transferring", owner=A, target=B)
    answer = explained(in_flight(uneven(), 0), 0, whereabouts=whereabouts)
    assert answer.obstacles[0].rule == "in flight"
    assert answer.answer.startswith(f"it is at {A}, on its way to {B}, and stays: it is being moved")


def test_a_paused_broker_keeps_its_bundles():
    answer = explained(paused(uneven(), 0), 0)
    assert answer.obstacles[0].rule == "broker paused"
    assert answer.obstacles[0].lifted_by == (f"{A} is resumed",)


def test_a_broker_without_fresh_load_keeps_its_bundles():
    answer = explained(silent(uneven(), 0), 0)
    assert answer.obstacles[0].rule == "no fresh load data"


def test_draining_and_silent_brokers_are_no_targets():
    answer = explained(silent(draining(uneven(), 1), 2), 0, IDLE)
    assert answer.next_best is None
    assert {target.broker: target.rule for target in answer.targets} == {
        B: "b:6650 is draining",
        C: "c:6650 has not reported its load",
    }
    assert {target.broker: target.usage for target in answer.targets}[C] is None


def test_a_bundle_that_is_too_large_says_so_and_to_split_it():
    answer = explained(model({"a": [9, 1], "b": [5], "c": [5]}), 0)
    assert answer.obstacles[0].rule == "too large"
    assert "b:6650, the emptiest that may take it, would be 140 % full with it" in answer.obstacles[0].sentence
    assert "it is split" in answer.obstacles[0].lifted_by


def test_a_balanced_cluster_says_within_which_tolerance():
    answer = explained(even(), 0)
    assert answer.obstacles[0].rule == "owner within tolerance"
    assert "a:6650 uses 40.0 %, its limit is 44.0 %" in answer.obstacles[0].sentence
    assert "too large" not in rules(answer)


def test_what_costs_more_than_it_helps_is_told_with_what_would_help():
    of = model({"a": [1, 7], "b": [6], "c": [6]})
    weight = of.constraints.weight.copy()
    weight[0] = 100.0
    answer = explained(with_constraints(of, weight=weight), 0, IDLE)
    assert answer.obstacles[0].rule == "nothing gained"
    assert any("it would go to b:6650 if a:6650 used more than" in text for text in answer.obstacles[0].lifted_by)


def test_the_decisions_own_candidate_is_quoted():
    over = Candidate(bundle(0), broker("a"), broker("b"), 0.25, "budget of the round", "20% of the load move")
    answer = explained(uneven(), 0, Decision((), "the budget is spent", candidates=(over,)))
    assert answer.obstacles[0].rule == "budget of the round"
    assert answer.obstacles[0].sentence == (
        f"not to {B}, which would have gained 0.25: budget of the round (20% of the load move)"
    )


@pytest.mark.parametrize("subject", [str(bundle(0)), A, str(broker("a"))])
def test_what_the_decision_left_out_is_quoted(subject: str):
    decision = Decision((), "nothing", refused=(Refused(subject, "too few hits", "1 of 3"),))
    answer = explained(uneven(), 0, decision, strategy="transfer")
    assert answer.obstacles[0].rule == "too few hits"
    assert "too few hits (1 of 3)" in answer.obstacles[0].sentence


def test_what_another_broker_was_left_out_for_is_not_quoted():
    answer = explained(uneven(), 0, Decision((), "nothing", refused=(Refused(B, "too few hits", ""),)))
    assert "too few hits" not in rules(answer)


def test_each_rule_is_told_once_and_the_firmest_first():
    once = kept(in_flight(resting(uneven(), 0), 0), 0, "quarantined: it kills")
    told = rules(explained(once, 0, Decision((), "x", candidates=(_candidate("resting"), _candidate("resting")))))
    assert told[:3] == ["in flight", "kept by policy", "resting"]
    assert len(told) == len(set(told))


def _candidate(rule: str) -> Candidate:
    return Candidate(bundle(0), broker("a"), broker("b"), 0.1, rule, "")


# --- what would have to change


def test_once_rested_it_would_go_and_the_strategy_says_where():
    hot = resting(model({"a": [2, 2, 2, 2], "b": [2], "c": [2]}), 0)
    for row in (1, 2, 3):
        hot = kept(hot, row, "pinned")
    answer = explained(hot, 0, settings=Settings(balancing_budget=1.0))
    assert answer.obstacles[0].rule == "resting"
    assert answer.changes[0].change == "its rest were over"
    assert answer.changes[0].goes_to in (B, C)


def test_a_change_that_alone_does_not_help_is_told_and_others_are_added():
    answer = explained(kept(even(), 0, "pinned"), 0)
    first, *more = answer.changes
    assert (first.change, first.goes_to) == ("no policy kept it there", "")
    assert more
    assert all(change.change.startswith("in addition ") and change.goes_to for change in more)


def test_a_balanced_bundle_moves_once_its_broker_is_fuller():
    [change] = [each for each in explained(even(), 0).changes if "full instead of" in each.change]
    assert change.goes_to in (B, C)
    assert change.change.startswith(f"{A} were ")


def test_nothing_is_tried_where_that_takes_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadmanager.decisions.explaining.bundle.TRIED_BUNDLES", 3)
    answer = explained(resting(uneven(), 0), 0)
    assert answer.changes
    assert not any(change.tried for change in answer.changes)


def test_a_strategy_that_takes_too_long_is_not_asked_for_ever():
    asked = iter([True, True])
    answer = explain_bundle(situation(even()), bundle(0), HERE, lambda: next(asked, False))
    assert answer.changes == (Change("something else changed", tried=False),)


def test_nothing_is_tried_if_not_asked_for():
    assert explain_bundle(situation(resting(uneven(), 0)), bundle(0), HERE, None).changes == ()


def test_a_strategy_that_is_not_installed_is_told():
    answer = explained(resting(uneven(), 0), 0, IDLE, strategy="of-somebody-else")
    assert answer.changes == ()
    assert any("of-somebody-else" in note for note in answer.notes)


def test_a_memory_that_is_lost_is_told_and_changes_are_tried_without():
    answer = explained(resting(uneven(), 0), 0, IDLE, memory=Memory(lost="it was too large"))
    assert answer.changes
    assert any("it was too large" in note for note in answer.notes)


# --- what is not known


def test_without_a_model_there_is_the_decision_still():
    of = Situation(1, Settings(), "plan", None, "it was too large", situation(uneven(), IDLE).round)
    answer = explain_bundle(of, bundle(0), HERE, lambda: True)
    assert answer.answer == f"it is at {A}, and stays: the round moved nothing: somebody said so"
    assert answer.targets == ()
    assert any("it was too large" in note for note in answer.notes)


def test_a_bundle_that_nobody_reported_says_so():
    answer = explained(uneven(), 99)
    assert any("25 hottest bundles" in note for note in answer.notes)
    assert answer.loads == ()


def test_a_bundle_that_is_gone():
    answer = explained(uneven(), 0, whereabouts=Whereabouts(exists=False))
    assert answer.answer == "there is no such bundle"
    assert answer.obstacles == ()


def test_a_bundle_without_an_owner():
    orphan = with_bundles(uneven(), owner=uneven().bundles.owner.copy())
    orphan.bundles.owner[0] = -1
    answer = explained(orphan, 0, IDLE, whereabouts=Whereabouts(exists=True, state="unassigned"))
    assert answer.answer.startswith("it is unassigned and has no owner, and stays: it has no owner")


def test_load_and_policies_are_told():
    of = uneven()
    weight, rest_s = of.constraints.weight.copy(), of.constraints.rest_s.copy()
    weight[0], rest_s[0] = 3.0, 60.0
    of = with_constraints(of, weight=weight, rest_s=rest_s)
    answer = explained(of, 0, IDLE)
    [cpu] = answer.loads
    assert (cpu.resource, cpu.load, cpu.unit) == ("cpu", 3.0, "cores")
    assert cpu.usage == pytest.approx(0.3)
    assert "rests 60 s after a move, by a policy" in answer.policies
    assert "a move of it counts 3 times" in answer.policies


def test_an_answer_is_json_whatever_is_infinite():
    assert math.isinf(uneven().brokers.capacity[0, 1])
    assert msgspec.json.decode(msgspec.json.encode(explained(uneven(), 0)))["bundle"] == str(bundle(0))


def test_anti_affinity_is_a_hard_rule_of_targets():
    import numpy as np

    of = uneven()
    n = len(of.brokers)
    presence = np.zeros((1, n), np.int64)
    presence[0] = [1, 2, 2]
    here = np.zeros((1, n), np.int64)
    here[0, 0] = 4
    group = np.zeros(len(of.bundles), np.int64)
    of = with_constraints(of, group=group, groups=("apart",), presence=presence, namespace_here=here)
    answer = explained(of, 0, IDLE)
    assert (of.constraints.forbidden == ALLOWED).all()
    assert all("group 'apart'" in target.rule for target in answer.targets)
    assert "its namespace is in the anti-affinity group 'apart'" in answer.policies


def test_numbers_of_an_earlier_round_are_told_to_be_that():
    of = msgspec.structs.replace(situation(uneven(), IDLE), model_of="3.11", without_model="nothing was moved")
    answer = explain_bundle(of, bundle(0), HERE, None)
    assert answer.notes == ("round 3.17 kept no model (nothing was moved): the numbers are those of round 3.11",)
