"""What would be decided if something were different, and whether a recorded decision comes out again."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from loadmanager.decisions import codec
from loadmanager.decisions.codec import given_memory, kept_memory
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.explaining.what_if import Edits, decide, decide_again, preview, what_if
from loadmanager.decisions.record import NOTHING_KEPT, record_of
from loadmanager.errors import Conflict, Invalid
from loadmanager.model.policies.model import IsolationPolicy, NamespacePolicy
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.registry import STRATEGIES
from tests.loadmanager.decisions.explaining.situations import A, B, C, barred, even, resting, silent, situation, uneven
from tests.loadmanager.decisions.models import NAMESPACE, broker, model

GENEROUS = Settings(balancing_budget=1.0)


def asked(of, edits: Edits, documents=None, **more):
    return what_if(situation(of, settings=GENEROUS, **more), edits, documents)


def moves(projected) -> list[tuple[str, str]]:
    return [(move.source, move.destination) for move in projected.decision.moves]


def test_nothing_different_decides_the_same():
    found = asked(uneven(), Edits())
    assert found.as_it_is == found.changed
    assert found.changed.decision.moves
    assert found.changed.spread_after < found.changed.spread_before


def test_the_projection_is_what_the_moves_make_of_the_brokers():
    found = asked(uneven(), Edits()).as_it_is
    usages = {each.broker: each for each in found.brokers}
    assert usages[A].before == pytest.approx(0.8)
    taken = sum(move.load for move in found.decision.moves if move.source == A)
    assert usages[A].after == pytest.approx(0.8 - taken)
    assert sum(each.after or 0 for each in found.brokers) == pytest.approx(1.2)
    assert usages[A].taken == len([move for move in found.decision.moves if move.source == A])


def test_new_brokers_like_the_median_get_something_to_do():
    found = asked(even(), Edits(add_brokers=3))
    assert not found.as_it_is.decision.moves
    assert {to for _, to in moves(found.changed)} == {"new-1:0", "new-2:0", "new-3:0"}
    assert found.changed.mean == pytest.approx(0.2)
    assert found.changes == ("3 brokers more (like the median one)",)
    assert any("policies of that time are not known" in note for note in found.notes)


def test_new_brokers_have_the_capacity_that_is_said():
    found = asked(even(), Edits(add_brokers=1, capacity={"cpu": 20.0}))
    assert found.changed.mean < asked(even(), Edits(add_brokers=1)).changed.mean
    assert {to for _, to in moves(found.changed)} == {"new-1:0"}


def test_a_broker_less_gives_everything_away():
    found = asked(even(), Edits(remove_brokers=(C,)))
    assert len(found.changed.decision.moves) == 2
    assert {source for source, _ in moves(found.changed)} == {C}
    assert {each.broker: each.after for each in found.changed.brokers}[C] == pytest.approx(0.0)


def test_a_setting_that_differs():
    of = model({"a": [2, 2, 0.3], "b": [2, 2], "c": [2, 1.7]})
    found = asked(of, Edits(settings={"balancing_tolerance": "tight"}))
    assert not found.as_it_is.decision.moves
    assert moves(found.changed) == [(A, C)]


def test_a_namespace_with_twice_its_load():
    found = asked(even(), Edits(loads={NAMESPACE: 2.0}))
    assert found.changed.mean == pytest.approx(2 * found.as_it_is.mean)
    assert found.changes == (f"2 times the load of {NAMESPACE}",)


def test_as_if_nothing_rested():
    of = uneven()
    for row in range(4):
        of = resting(of, row)
    found = asked(of, Edits(rested=True))
    assert not found.as_it_is.decision.moves
    assert found.changed.decision.moves


def test_a_policy_moves_what_is_misplaced_and_binds_new_brokers():
    policy = {"namespaces": ["shop/.*"], "primary": [B]}
    found = asked(even(), Edits(policies={"isolation/shop": policy}), {})
    assert {to for _, to in moves(found.changed)} == {B}
    assert len(found.changed.decision.moves) == 4
    both = asked(even(), Edits(add_brokers=1), {"isolation/shop": IsolationPolicy(("shop/.*",), (A, B, C))})
    assert not both.changed.decision.moves


def test_a_policy_that_is_deleted_binds_nobody():
    documents = {"isolation/shop": IsolationPolicy(("shop/.*",), (A,))}
    of = barred(uneven(), "isolation policy 'shop'", 1, 2)
    found = asked(of, Edits(policies={"isolation/shop": None}), documents)
    assert not [move for move in moves(found.as_it_is) if move[0] == A]
    assert [move for move in moves(found.changed) if move[0] == A]


def test_an_anti_affinity_group_is_counted_by_what_was_reported():
    documents = {f"namespace/{NAMESPACE}": NamespacePolicy(anti_affinity_group="g")}
    found = asked(uneven(), Edits(settings={"balancing_tolerance": "tight"}), documents)
    assert found.changed.decision.moves


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (Edits(remove_brokers=("z:1",)), "there is no broker z:1"),
        (Edits(add_brokers=5_000), "give 0 to 1000"),
        (Edits(add_brokers=1, capacity={"beer": 1}), "'beer' is not a capacity"),
        (Edits(add_brokers=1, capacity={"cpu": 0}), "above 0"),
        (Edits(settings={"nonsense": 1}), "there is no setting nonsense"),
        (Edits(settings={"balancing_tolerance": 7}), "balancing_tolerance"),
        (Edits(loads={"a/b": 2}), "no bundle of a/b was reported"),
        (Edits(loads={NAMESPACE: -1}), "is not possible"),
        (Edits(policies={"isolation/x": {"namespaces": ["a("], "primary": ["b"]}}), "not a regular expression"),
        (Edits(policies={"isolation/x": {"spaces": []}}), "policy isolation/x"),
        (Edits(policies={"beer/x": {}}), "policy beer/x"),
        (Edits(policies={"bundle/x": {"pin": "*"}}), "not a bundle"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(edits: Edits, message: str):
    with pytest.raises(Invalid, match=message.replace("(", r"\(")):
        asked(uneven(), edits, {})


def test_policies_that_nobody_knows_cannot_be_changed():
    with pytest.raises(Conflict, match="not known here"):
        asked(uneven(), Edits(policies={"isolation/x": None}), None)


def test_without_a_model_there_is_nothing_to_work_with():
    with pytest.raises(Conflict, match="no model to work with: it was too large"):
        what_if(Situation(1, Settings(), "plan", None, "it was too large"), Edits(), None)


def test_an_unknown_strategy_is_told():
    with pytest.raises(Conflict, match="somebody's cannot be run"):
        preview(situation(uneven(), Decision((), ""), strategy="somebody's"))


def test_the_preview_is_what_the_strategy_decides():
    found = preview(situation(uneven(), Decision((), ""), settings=GENEROUS))
    assert len(found.projection.decision.moves) == len(decide(situation(uneven(), settings=GENEROUS)).moves)
    assert found.digest == uneven().digest


def test_silent_brokers_stay_unknown():
    shown = {each.broker: each for each in preview(situation(silent(uneven(), 2))).projection.brokers}
    assert shown[C].before is None
    assert not shown[C].takes_part


# --- deciding again


def recorded(of, decision: Decision | None = None, **more):
    settings = more.pop("settings", GENEROUS)
    decision = decision or decide(situation(of, settings=settings))
    written = record_of("3.1", broker("a"), 1, decision, strategy="plan", settings=settings, model=of, **more)
    return codec.decode(codec.encode(written))


@pytest.mark.parametrize("of", [uneven(), even(), resting(uneven(), 0), barred(uneven(), "isolation", 1)])
def test_a_recorded_decision_comes_out_again(of):
    assert decide_again(recorded(of)).same is True


def test_a_decision_that_was_forged_does_not():
    true = decide(situation(uneven(), settings=GENEROUS))
    forged = msgspec.structs.replace(true, moves=true.moves[:-1])
    again = decide_again(recorded(uneven(), forged))
    assert again.same is False
    assert any("none then" in text for text in again.differences)


def test_other_settings_decide_otherwise():
    small = Settings(balancing_moves_per_round=1)
    record = recorded(uneven(), decide(situation(uneven(), settings=GENEROUS)), settings=small)
    assert decide_again(record).same is False


def test_a_model_that_is_not_the_one_decided_from_is_noticed():
    record = msgspec.structs.replace(recorded(uneven()), model=even())
    again = decide_again(record)
    assert again.same is None
    assert "not the model of the decision" in again.why


def test_what_is_missing_is_told():
    record = msgspec.structs.replace(recorded(uneven()), model=None, without_model="it was too large")
    assert decide_again(record).why == "it was too large"
    record = msgspec.structs.replace(recorded(uneven()), strategy="somebody's")
    assert "somebody's" in decide_again(record).why


def test_the_last_digits_may_differ_on_another_machine():
    true = decide(situation(uneven(), settings=GENEROUS))
    move = true.moves[0]
    close = msgspec.structs.replace(move, gain=float(np.nextafter(move.gain, 9)))
    record = recorded(uneven(), msgspec.structs.replace(true, moves=(close, *true.moves[1:])))
    assert decide_again(record).same is True
    far = msgspec.structs.replace(move, gain=move.gain + 1e-3)
    record = recorded(uneven(), msgspec.structs.replace(true, moves=(far, *true.moves[1:])))
    assert decide_again(record).same is False


@pytest.mark.parametrize("strategy", ["transfer", "threshold", "uniform", "overload", "avg"])
def test_a_strategy_that_remembers_decides_the_same_with_what_it_remembered(strategy: str):
    """Round after round, each from what the one before left in its memory, as read back from its record."""
    of = uneven()
    settings = Settings(balancing_strategy=strategy, shedder_hit_count=2)
    memory: object = None
    for number in range(1, 6):
        decision = STRATEGIES.make(strategy).decide(of, settings, memory)
        written = record_of(
            f"3.{number}",
            broker("a"),
            1,
            decision,
            strategy=strategy,
            settings=settings,
            model=of,
            memory=kept_memory(memory),
        )
        read = codec.decode(codec.encode(written))
        assert not read.memory.lost
        assert given_memory(read.memory, STRATEGIES.make(strategy)) == memory
        assert decide_again(read).same is True, decide_again(read)
        memory = decision.memory
    assert memory is not None


def test_without_its_memory_a_round_can_come_out_otherwise():
    settings, strategy = Settings(balancing_strategy="transfer", shedder_hit_count=2), STRATEGIES.make("transfer")
    before = strategy.decide(uneven(), settings, None).memory
    decision = strategy.decide(uneven(), settings, before)
    written = record_of(
        "3.1",
        broker("a"),
        1,
        decision,
        strategy="transfer",
        settings=settings,
        model=uneven(),
        memory=kept_memory(before),
    )
    assert decide_again(written).same is True
    assert decide_again(msgspec.structs.replace(written, memory=NOTHING_KEPT)).same is False
