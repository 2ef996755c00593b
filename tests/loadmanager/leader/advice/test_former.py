"""Advice that a release kept in the topic `advice` which knew no plans with advice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadmanager.leader.advice.former import ADVICE_TOPIC, Progress, Review, carry_over
from loadmanager.leader.plans.advice import Advice
from loadmanager.leader.plans.model import PlanState
from statechannel.ports import Payload, TopicSpec
from tests.loadmanager.leader.advice.advice_world import (
    CLUSTER,
    HOUR_MS,
    START_MS,
    Place,
    Process,
    advice,
    place,
    tolerance,
)


async def written(here: Place, *values: Advice | Review | Progress, foreign: bytes = b"") -> None:
    await here.log.open_topic(TopicSpec(ADVICE_TOPIC, 1, compacted=True))
    kinds = {Advice: "advice", Review: "review", Progress: "progress"}
    payloads = [Payload(f"{kinds[type(v)]}/{v.id}".encode(), msgspec.json.encode(v)) for v in values]
    more = [Payload(b"advice/x", foreign), Payload(b"review/x", b"[" * 100_000)] if foreign else []
    await here.log.append(ADVICE_TOPIC, 0, [*payloads, *more])


async def carried(here: Place, leader: Process) -> None:
    await carry_over(here.log, leader.plans, CLUSTER, here.clock, leader.notes.append)


async def test_what_waits_becomes_a_plan_once_and_the_topic_is_empty(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        steps = (0.2, 0.15, 0.05, 0.12, 0.13)
        waits, approved, rejected, over, measuring = (advice(tolerance("default", to)) for to in steps)
        stale = advice(tolerance("default", 0.11), START_MS - 48 * HOUR_MS)
        await written(here, waits, approved, rejected, over, measuring, stale, foreign=b"\xff{")
        await written(
            here,
            Review(approved.id, "approve", "ann", "looks right"),
            Review(rejected.id, "reject", "bob"),
            Review(measuring.id, "approve", "ann"),
            Progress(measuring.id, 2, 2, "measuring"),
            Progress(over.id, 2, 1, "kept"),
        )
        await carried(here, leader)
        assert {plan.id: plan.state for plan in leader.plans.all()} == {
            waits.id: PlanState.PROPOSED,
            approved.id: PlanState.APPROVED,
        }
        assert [(step.author, step.reason) for step in leader.plans.get(approved.id).steps] == [("ann", "looks right")]
        told = "\n".join(leader.notes)
        assert f"advice {measuring.id} was measuring under an earlier release" in told
        assert f"advice {stale.id} of an earlier release becomes no plan: this advice is stale" in told
        said = len(leader.notes)
        await carried(here, leader)
        assert len(leader.notes) == said, "there is nothing left"


async def test_a_leader_that_dies_before_the_topic_is_empty_carries_nothing_twice(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        one, other = await here.process(), await here.process()
        waits = advice(tolerance("default", 0.2))
        await written(here, waits, Review(waits.id, "approve", "ann"))
        await carried(here, one)
        await written(here, waits, Review(waits.id, "approve", "ann"))
        await carried(here, other)
        assert [step.action for step in other.plans.get(waits.id).steps] == ["approve"]
        assert await other.until_over(waits) is PlanState.DONE


WRITTEN_BEFORE = {
    b"advice/fed1e702e66b253d": b'{"type":"advice","change":{"type":"settings","changes":[{"name":'
    b'"balancing_tolerance","was":"default","to":0.2}]},"reason":"replay found it better","expected":'
    b'{"measure":"spread","before":0.5,"after":0.3,"low":0.1,"high":0.3},"provenance":{"cluster":"test","data_from_ms":996400000,"data_to_ms":'
    b'1000000000,"job":"history advise","job_version":"0.1.0","method":"replay","tables":{"decision":3}},'
    b'"expires_ms":1086400000,"id":"fed1e702e66b253d","format":1}',
    b"review/fed1e702e66b253d": b'{"type":"review","id":"fed1e702e66b253d","verdict":"approve","author":"ann","at_ms":'
    b'1000000001,"reason":"looks right"}',
    b"progress/fed1e702e66b253d": b'{"type":"progress","id":"fed1e702e66b253d","epoch":3,"number":2,"state":'
    b'"measuring","at_ms":1000000002,"ruler":{"weight_cpu":1,"weight_memory":1,"weight_bandwidth":1,"weight_message_rate":1,'
    b'"tolerance":0.1},"before":[{"name":"balancing_tolerance","version":0}],"baseline":{"begin_ms":1,"end_ms":2,'
    b'"rounds":7,"spread":0.1,"spread_error":0.1,"above_tolerance":0.1,"above_tolerance_error":0.1},"applied_ms":'
    b'1000000001,"steps":[{"state":"applying","at_ms":1,"author":"ann"}]}',
}
"""As the last release wrote them that kept advice in a topic of its own."""


@pytest.mark.parametrize("under_way", [False, True])
async def test_the_bytes_of_the_earlier_release_are_read(tmp_path: Path, under_way: bool) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        await here.log.open_topic(TopicSpec(ADVICE_TOPIC, 1, compacted=True))
        payloads = [Payload(key, value) for key, value in WRITTEN_BEFORE.items()]
        await here.log.append(ADVICE_TOPIC, 0, payloads if under_way else payloads[:2])
        await carried(here, leader)
        approved = [] if under_way else [("fed1e702e66b253d", PlanState.APPROVED)]
        assert [(plan.id, plan.state) for plan in leader.plans.all()] == approved
        assert ("was measuring under an earlier release" in leader.notes[0]) is under_way
