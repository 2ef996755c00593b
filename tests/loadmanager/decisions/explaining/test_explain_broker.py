"""Why a broker has what it has: what it uses, and why nothing more was taken from it or given to it."""

from __future__ import annotations

import pytest

from loadmanager.decisions.explaining.broker import explain_broker
from loadmanager.decisions.explaining.edits import with_brokers
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Decision, Move, Refused
from tests.loadmanager.decisions.explaining.situations import (
    A,
    B,
    barred,
    draining,
    even,
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


def asked(of, name: str = A, decision: Decision | None = None, **more):
    answer = explain_broker(situation(of, decision, **more), name)
    assert answer is not None
    return answer


def test_it_says_how_full_it_is_and_of_what():
    answer = asked(model({"a": [3, 1], "b": [2]}, foreign={"a": 2.0}), A, IDLE)
    assert answer.usage == pytest.approx(0.6)
    [cpu] = [load for load in answer.loads if load.resource == "cpu"]
    assert (cpu.load, cpu.capacity, cpu.foreign) == (6.0, 10.0, 2.0)
    assert answer.bundles == 2
    assert answer.mean == pytest.approx(0.4)


def test_what_was_taken_and_given_is_told():
    decision = Decision((Move(bundle(0), broker("a"), broker("b"), "a is fuller"),), "one move")
    assert asked(uneven(), A, decision).taken == (f"{bundle(0)} to {B}: a is fuller",)
    assert asked(uneven(), B, decision).given == (f"{bundle(0)} from {A}: a is fuller",)
    assert "1 bundles were taken" in asked(uneven(), A, decision).answer


def test_within_tolerance_nothing_is_taken():
    answer = asked(even())
    assert answer.not_taken[0].rule == "within tolerance"
    assert "up to 44.0 % is fine" in answer.not_taken[0].sentence


def test_a_broker_as_full_as_the_others_is_given_nothing():
    assert asked(even()).not_given[0].rule == "no room"


def test_a_paused_one_is_left_alone():
    answer = asked(paused(uneven(), 0))
    assert answer.not_taken[0].rule == answer.not_given[0].rule == "paused"
    assert "it is paused" in answer.policies


def test_a_draining_one_takes_nothing():
    answer = asked(draining(uneven(), 1), B, IDLE)
    assert answer.not_given[0].rule == "draining"
    assert "it drains" in answer.policies


def test_a_silent_one_neither_gives_nor_takes():
    answer = asked(silent(uneven(), 0))
    assert answer.usage is None
    assert answer.answer == f"{A} has reported no fresh load: it neither gives nor takes"


def test_a_full_one_says_its_limit():
    of = uneven()
    limits = of.brokers.max_bundles.copy()
    limits[1] = 1
    answer = asked(with_brokers(of, max_bundles=limits), B, IDLE)
    assert answer.not_given[0].sentence == "it has 1 bundles, as many as it may have"
    assert answer.max_bundles == 1


def test_isolation_that_bars_it_is_named_with_how_many():
    answer = asked(barred(uneven(), "isolation policy 'pay'", 1), B, IDLE)
    assert answer.not_given[0].sentence == "isolation policy 'pay' bars it for 6 of 6 reported bundles"
    assert "isolation policy 'pay': bars it for 6 reported bundles" in answer.policies


def test_policies_that_keep_its_bundles_are_named():
    assert f"pinned to {A}: keeps 1 of its bundles" in asked(kept(uneven(), 0, f"pinned to {A}")).policies


def test_refused_candidates_are_quoted_on_both_sides():
    over = Candidate(bundle(0), broker("a"), broker("b"), 0.25, "budget", "20% moved")
    decision = Decision((), "the budget is spent", candidates=(over,), refused=(Refused(B, "odd", "very"),))
    assert asked(uneven(), A, decision).not_taken[0].sentence.startswith(f"{bundle(0)} not to {B}")
    given = asked(uneven(), B, decision).not_given
    assert [each.rule for each in given[:2]] == ["odd", "budget"]


def test_its_hottest_bundles_say_why_each_stays():
    answer = asked(in_flight(resting(uneven(), 0), 1), A, IDLE)
    assert [held.bundle for held in answer.held] == [str(bundle(number)) for number in (0, 1, 2, 3)]
    assert [held.rule for held in answer.held[:2]] == ["resting", "in flight"]
    assert answer.held[0].usage == pytest.approx(0.3)
    assert answer.in_flight == (str(bundle(1)),)


def test_nobody_knows_a_broker_that_took_no_part():
    assert explain_broker(situation(uneven(), IDLE), "z:1") is None


def test_without_a_model_there_is_the_decision_still():
    decision = Decision((Move(bundle(0), broker("a"), broker("b"), "a is fuller"),), "one move")
    of = Situation(1, Settings(), "plan", None, "it was too large", situation(uneven(), decision).round)
    answer = explain_broker(of, A)
    assert answer is not None
    assert "it was too large" in answer.answer
    assert answer.taken
