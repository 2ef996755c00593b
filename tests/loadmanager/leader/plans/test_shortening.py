"""Plans on their topic: what never changes is written once, and every reader has all of it all the same."""

from __future__ import annotations

import msgspec
import pytest

from loadmanager.errors import Invalid
from loadmanager.leader.plans.advice import MoveBundles, PreMove
from loadmanager.leader.plans.plan import (
    MOVES_A_PLAN,
    Figures,
    MoveStatus,
    PieceOutcome,
    Plan,
    PlanKind,
    PlannedMove,
    PlanState,
    Step,
)
from loadmanager.leader.plans.store import Shortened
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from tests.loadmanager.leader.advice.advice_world import advice

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
S = PlanState


def proposal(moves: int) -> Plan:
    planned = tuple(PlannedMove(Bundle("t/n", n, n + 1), A, B, 5) for n in range(moves))
    usages = Figures({"a:1": 0.5}, 0.2)
    return Plan(
        "p1", PlanKind.UNLOAD, S.PROPOSED, 0, "ann", planned, before=usages, predicted=usages, left_out={"x": "y"}
    )


def life(moves: int, detail: str = "") -> list[Plan]:
    plan = proposal(moves)
    outcomes = tuple(PieceOutcome(MoveStatus.FAILED if detail else MoveStatus.DONE, detail) for _ in plan.moves)
    found = [plan]
    for state, more in (
        (S.APPROVED, ()),
        (S.RUNNING, ()),
        (S.DONE, outcomes),
        (S.VERIFIED, outcomes),
        (S.UNDONE, outcomes),
    ):
        step = Step(state.value, 1, "ann")
        found.append(msgspec.structs.replace(found[-1], state=state, outcomes=more, steps=(*found[-1].steps, step)))
    return found


def test_every_reader_of_the_versions_has_the_whole_plan_after_each():
    writer, reader = Shortened(), Shortened()
    for plan in life(3):
        data = writer.encode(plan)
        assert writer.decode(data) == plan == reader.decode(data)


def test_no_step_with_a_plan_repeats_its_moves():
    writer = Shortened()
    sizes = []
    for plan in life(1_000):
        sizes.append(len(writer.encode(plan)))
        writer.decode(writer.encode(plan))
    proposed, approved, running, done, verified, undone = sizes
    assert max(approved, running, verified, undone) < 1_000 < done < proposed / 4


def test_moves_are_kept_once_whatever_happens_to_the_plan():
    reader, writer = Shortened(), Shortened()
    versions = [reader.decode(data) for data in _written(writer, life(3))]
    assert len({id(plan.moves) for plan in versions}) == 1
    assert len({id(plan.outcomes) for plan in versions if plan.outcomes}) == 1


def test_who_has_not_read_a_plan_yet_writes_all_of_it():
    approved = life(3)[1]
    assert Shortened().decode(Shortened().encode(approved)) == approved


def test_what_lost_against_another_leaves_nothing_out_of_what_comes_after():
    writer, reader = Shortened(), Shortened()
    proposed, _, running, done, *_ = life(3)
    for plan in (proposed, running):
        reader.decode(writer.encode(plan))
        writer.decode(Shortened().encode(plan))
    writer.encode(done)  # somebody cancelled it first, so nobody reads this
    cancelled = msgspec.structs.replace(running, state=S.CANCELLED)
    settled = msgspec.structs.replace(cancelled, outcomes=done.outcomes)
    for plan in (cancelled, settled):
        assert reader.decode(writer.encode(plan)) == plan


@pytest.mark.parametrize("detail", ["x" * 5_000, "it is at a-very-long-name.example.org:6650"])
def test_the_end_of_a_large_plan_fits_into_a_record_whatever_went_wrong(detail: str):
    writer = Shortened()
    ends = list(_written(writer, life(MOVES_A_PLAN, detail)))
    assert all(len(data) < 500_000 for data in ends[1:])


def _written(writer: Shortened, plans: list[Plan]) -> list[bytes]:
    found = []
    for plan in plans:
        data = writer.encode(plan)
        writer.decode(data)
        found.append(data)
    return found


WRITTEN_BEFORE = (
    b'{"id":"p1","kind":"balance","state":"proposed","proposed_ms":7,"author":"ann","moves":[{"bundle":["t/n",0,64],'
    b'"source":["a:1",1],"destination":["b:1",2],"seen":5,"reason":"too full","load":0.1},{"bundle":["t/n",64,128],'
    b'"source":["a:1",1],"destination":null,"seen":6}],"reason":"r","settings":{"tolerance":0.1},"before":{"usages":'
    b'{"a:1":0.5},"spread":0.2},"certificate":{"bound":0.1,"moved":0.1,"resource":"cpu","text":"all of it",'
    b'"whole":null,"proven":true},"left_out":{"x":"y"}}',
    b'{"id":"p1","kind":"balance","state":"running","proposed_ms":7,"author":"ann","reason":"r","settings":'
    b'{"tolerance":0.1},"before":{},"predicted":{},"steps":[{"action":"run","at_ms":9,"author":"ann","reason":"go"}]}',
    b'{"id":"p1","kind":"balance","state":"verified","proposed_ms":7,"author":"ann","reason":"r","settings":'
    b'{"tolerance":0.1},"before":{},"predicted":{},"steps":[{"action":"run","at_ms":9,"author":"ann","reason":"go"}],'
    b'"outcomes":[["done",""],["skipped","elsewhere"]],"verification":{"at_ms":10,"holding":1,"moved_on":{"z":"w"},'
    b'"actual":{"usages":{"a:1":0.4},"spread":0.1}}}',
)
"""A plan as a release wrote it that knew none with advice."""


def test_plans_of_before_plans_had_advice_are_read_and_written_as_they_were():
    reader, writer = Shortened(), Shortened()
    for data in WRITTEN_BEFORE:
        plan = reader.decode(data)
        assert writer.encode(plan) == data
        writer.decode(data)
    assert (plan.state, plan.advice, plan.before) == (S.VERIFIED, None, Figures({"a:1": 0.5}, 0.2))
    assert [outcome.status for _, outcome in plan.pairs(plan.outcomes)] == [MoveStatus.DONE, MoveStatus.SKIPPED]
    assert plan.verification is not None
    assert plan.verification.holding == 1


def test_advice_is_written_once_and_its_moves_when_it_runs():
    writer, reader = Shortened(), Shortened()
    of = advice(MoveBundles((PreMove("t/n/0x00000000_0x40000000", "a:1", "b:1"),), 1, 2))
    proposed = Plan(of.id, PlanKind.ADVICE, S.PROPOSED, 0, "history advise", advice=of)
    running = msgspec.structs.replace(proposed, state=S.RUNNING, moves=proposal(1).moves)
    measuring = msgspec.structs.replace(running, state=S.MEASURING, outcomes=(PieceOutcome(MoveStatus.DONE),))
    sizes = []
    for plan in (proposed, running, measuring):
        data = writer.encode(plan)
        sizes.append(len(data))
        assert writer.decode(data) == plan == reader.decode(data)
    assert sizes[0] > 2 * sizes[2]
    with pytest.raises(Invalid, match="the digest of what it says"):
        Shortened().decode(msgspec.json.encode(proposed).replace(b"a:1", b"c:1"))
    with pytest.raises(Invalid, match="must have the same id"):
        Shortened().decode(msgspec.json.encode(msgspec.structs.replace(proposed, id="p2")))
