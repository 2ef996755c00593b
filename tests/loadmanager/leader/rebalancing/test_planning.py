"""What plans say: predictions, waves, what is left out, and numbers that JSON can hold."""

from __future__ import annotations

from math import inf, nan

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import (
    EXPLAINED_MOVES_A_PLAN,
    MOVES_A_PLAN,
    MoveStatus,
    PieceOutcome,
    Plan,
    PlanKind,
    PlannedMove,
    PlanState,
)
from loadmanager.leader.plans.proposals import Occasion, figures, of_bundles, of_decision, undoing, wave_of
from loadmanager.model.cluster import Brokers, Bundles, ClusterModel, unconstrained
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

A, B, C = (BrokerId(f"{name}:1", 1) for name in "abc")
OCCASION = Occasion("p1", "ann", 1_000)
SETTINGS = Settings.model_construct()


class Table(OwnershipTable):
    """A table with these entries."""

    def __init__(self, *entries: Ownership) -> None:
        super().__init__(1)
        self._entries = {entry.bundle: entry for entry in entries}

    def get(self, bundle: Bundle) -> Ownership | None:
        return self._entries.get(bundle)


def entry(number: int, holder: BrokerId | None = A, state: State = State.ASSIGNED) -> Ownership:
    return Ownership(Bundle("t/n", number, number + 1), state, holder, None, 7, 5, Action.RETURN, A)


def model(
    *used: float, known: tuple[bool, ...] | None = None, draining: tuple[bool, ...] | None = None
) -> ClusterModel:
    n = len(used)
    rows = np.zeros((n, 5))
    rows[:, 0] = used
    brokers = Brokers(
        ids=(A, B, C)[:n],
        capacity=np.ones((n, 5)),
        used=rows,
        known=np.array(known or (True,) * n),
        draining=np.array(draining or (False,) * n),
        paused=np.zeros(n, bool),
        bundles=np.zeros(n, np.int64),
        max_bundles=np.full(n, 10**6),
        rate_msg_s=np.zeros(n),
        throughput_bytes_s=np.zeros(n),
        domains=("",) * n,
        versions=("",) * n,
    )
    none = np.zeros(0)
    bundles = Bundles(
        (), (), none.astype(np.int64), none.astype(np.int64), np.zeros((0, 5)), none, none, none.astype(bool), none,
        none.astype(bool), {},
    )  # fmt: skip
    return ClusterModel(brokers, bundles, unconstrained(n, 0, 60.0))


def move(number: int, **numbers: float) -> Move:
    return Move(Bundle("t/n", number, number + 1), A, B, "because", **numbers)  # type: ignore[arg-type]


def test_plan_predicts_usages_after_the_last_move_of_each_broker():
    moves = (
        move(1, source_after=0.8, destination_after=0.2),
        msgspec.structs.replace(move(2, source_after=0.6, destination_after=0.3), destination=C),
    )
    plan = of_decision(
        OCCASION, Decision(moves, "why", spread_after=0.1), model(1.0, 0.1, 0.1), SETTINGS, Table(entry(1), entry(2))
    )
    assert plan.predicted.usages == {"a:1": 0.6, "b:1": 0.2, "c:1": 0.3}
    assert plan.predicted.spread == 0.1
    assert plan.before.usages == {"a:1": 1.0, "b:1": 0.1, "c:1": 0.1}
    assert plan.before.spread == pytest.approx(1.5)
    assert {each.seen for each in plan.moves} == {7}


def test_what_moved_on_while_it_was_decided_is_left_out_and_named():
    plan = of_decision(
        OCCASION, Decision((move(1), move(2)), "why"), model(1.0, 0.1), SETTINGS, Table(entry(1), entry(2, C))
    )
    assert [each.bundle.lo for each in plan.moves] == [1]
    assert list(plan.left_out) == ["t/n/0x00000002_0x00000003"]


def test_a_decision_to_do_nothing_makes_no_plan_and_says_why():
    with pytest.raises(Conflict, match="there is nothing to move: it is balanced"):
        of_decision(OCCASION, Decision((), "it is balanced"), model(1.0), SETTINGS, Table())


@pytest.mark.parametrize("number", [inf, -inf, nan])
def test_a_plan_with_numbers_that_are_none_is_read_back(number: float):
    decision = Decision((move(1, gain=number, source_after=number),), "why", spread_after=number)
    plan = of_decision(OCCASION, decision, model(1.0, 0.1), SETTINGS, Table(entry(1)))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_brokers_whose_load_is_not_known_or_that_drain_are_not_in_the_spread():
    found = figures(model(0.9, 0.3, 0.3, known=(True, True, False)), SETTINGS, ["a:1", "b:1", "c:1"])
    assert found.usages == {"a:1": 0.9, "b:1": 0.3}
    assert found.spread == pytest.approx(0.5)
    assert figures(model(0.9, 0.3, draining=(True, False)), SETTINGS, []).spread == 0


def test_memory_counts_as_its_weight_says():
    full = model(0.2, 0.2)
    full.brokers.used[0, 1] = 0.9
    assert figures(full, SETTINGS, ["a:1"]).usages == {"a:1": 0.2}
    assert figures(full, SETTINGS.model_copy(update={"weight_memory": 1.0}), ["a:1"]).usages == {"a:1": 0.9}


def test_a_bulk_unload_leaves_out_what_cannot_go_and_says_why():
    entries = [entry(1), entry(2, B), entry(3, state=State.SPLITTING), entry(4)]
    plan = of_bundles(OCCASION, entries, B, 10, lambda bundle, to: "a rule" if bundle.lo == 4 else "")
    assert [each.bundle.lo for each in plan.moves] == [1]
    assert [why.split(" at")[0] for why in plan.left_out.values()] == [
        "it is",
        "splitting",
        "it may not go to b:1: a rule",
    ]


def test_a_plan_fits_into_one_record_whatever_is_to_be_unloaded():
    entries = [entry(number) for number in range(MOVES_A_PLAN + 500)]
    plan = of_bundles(Occasion("p1", "ann", 1_000, "r" * 100), entries, B, 10, lambda _b, _to: "")
    assert len(plan.moves) == MOVES_A_PLAN
    assert "…" in plan.left_out
    assert len(msgspec.json.encode(plan)) < 900_000


def test_long_decision_becomes_a_plan_of_first_moves_and_splits_no_group():
    count = EXPLAINED_MOVES_A_PLAN + 20
    moves = [msgspec.structs.replace(move(n), reason="r" * 200) for n in range(count)]
    for last in range(EXPLAINED_MOVES_A_PLAN - 1, EXPLAINED_MOVES_A_PLAN + 2):
        moves[last] = msgspec.structs.replace(moves[last], group=9)
    table = Table(*(entry(n) for n in range(count)))
    plan = of_decision(OCCASION, Decision(tuple(moves), "why"), model(1.0, 0.1), SETTINGS, table)
    assert len(plan.moves) == EXPLAINED_MOVES_A_PLAN + 2
    assert sum(each.group == 9 for each in plan.moves) == 3
    assert len(plan.left_out) == 18
    assert len(msgspec.json.encode(plan)) < 900_000


def ran(*became: MoveStatus, sources: tuple[BrokerId, ...] = ()) -> Plan:
    moves = tuple(
        PlannedMove(Bundle("t/n", n, n + 1), (sources or (A,) * len(became))[n], B, 1) for n in range(len(became))
    )
    outcomes = tuple(map(PieceOutcome, became))
    return Plan("p", PlanKind.BALANCE, PlanState.DONE, 0, "ann", moves, outcomes=outcomes)


def test_undo_takes_back_what_the_plan_moved_and_not_what_others_did():
    plan = ran(MoveStatus.DONE, MoveStatus.SKIPPED, MoveStatus.FAILED, MoveStatus.DONE)
    table = Table(*(entry(number, B) for number in range(3)), entry(3, C))
    back = undoing(OCCASION, plan, table, {"a:1": A}.get)
    assert [(m.bundle.lo, m.source, m.destination, m.seen, m.stage) for m in back.moves] == [(0, B, A, 7, Stage.UNDO)]
    assert list(back.left_out) == ["t/n/0x00000003_0x00000004"]
    assert (back.undoes, back.before, back.predicted) == ("p", plan.predicted, plan.before)


def test_undo_goes_to_the_present_incarnation_of_the_source_if_there_is_one():
    again = BrokerId("a:1", 2)
    plan = ran(MoveStatus.DONE, MoveStatus.DONE, sources=(A, C))
    back = undoing(OCCASION, plan, Table(entry(0, B), entry(1, B)), {"a:1": again}.get)
    assert [move.destination for move in back.moves] == [again]
    assert back.left_out == {"t/n/0x00000001_0x00000002": "c:1 takes no bundles now"}
    with pytest.raises(Conflict, match=r"nothing of plan p can be taken back; .* a:1 takes no bundles now …"):
        undoing(OCCASION, plan, Table(entry(0, B), entry(1, B)), {}.get)


def plan_of(size: int, wave: int) -> Plan:
    moves = tuple(PlannedMove(Bundle("t/n", n, n + 1), A, B, 1) for n in range(size))
    return Plan("p", PlanKind.UNLOAD, PlanState.RUNNING, 0, "ann", moves, wave=wave)


@given(st.lists(st.sampled_from(["waiting", "on its way", "settled"]), min_size=1, max_size=30), st.integers(0, 7))
def test_a_wave_never_begins_before_the_one_ahead_of_it_is_over(states: list[str], wave: int):
    waiting = [place for place, state in enumerate(states) if state == "waiting"]
    chosen = wave_of(plan_of(len(states), wave), waiting, [state == "settled" for state in states])
    if not wave:
        assert chosen == waiting
        return
    for place in chosen:
        ahead = states[: place // wave * wave]
        assert all(state == "settled" for state in ahead)
    unfinished = [place for place, state in enumerate(states) if state != "settled"]
    if unfinished:
        present = unfinished[0] // wave
        assert chosen == [place for place in waiting if place // wave == present]


@pytest.mark.parametrize("reason", ["", "r" * 500, "ä" * 500])
def test_a_plan_with_long_names_fits_into_one_record_of_the_log(reason: str):
    far = [BrokerId(f"broker-with-a-long-name-{n}.region.some-company.example:6650", 12_345) for n in range(2)]
    entries = [
        Ownership(
            Bundle("some-tenant/some-namespace-with-a-long-name", n << 16, (n + 1) << 16),
            *(State.ASSIGNED, far[0], None, 123_456_789, 5, Action.RETURN, A),
        )
        for n in range(MOVES_A_PLAN)
    ]
    occasion = msgspec.structs.replace(OCCASION, reason=reason)
    plan = of_bundles(occasion, entries, far[1], 10, lambda _bundle, _to: "")
    assert len(msgspec.json.encode(plan)) < 1024 * 1024
    assert len(plan.moves) > 1_500
    assert len(plan.left_out) == 101
    moves = [
        Move(each.bundle, far[0], far[1], reason, Stage.EXACT, *[0.123456789012345] * 6, group=n // 3)
        for n, each in enumerate(entries[:EXPLAINED_MOVES_A_PLAN])
    ]
    plan = of_decision(occasion, Decision(tuple(moves), reason), model(0.5), SETTINGS, Table(*entries))
    assert len(msgspec.json.encode(plan)) < 1024 * 1024


def test_of_a_group_with_a_bundle_that_is_not_there_nothing_is_planned():
    moves = tuple(Move(Bundle("t/n", n, n + 1), A, B, "", Stage.SWAP, group=4 if n else 0) for n in range(3))
    plan = of_decision(OCCASION, Decision(moves, ""), model(0.5), SETTINGS, Table(entry(0), entry(1), entry(2, C)))
    assert [each.bundle.lo for each in plan.moves] == [0]
    assert set(plan.left_out) == {"t/n/0x00000001_0x00000002", "t/n/0x00000002_0x00000003"}
