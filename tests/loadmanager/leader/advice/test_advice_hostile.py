"""Advice where others act at the same moment, clocks step, and leaders read what is over long ago."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadmanager.errors import Conflict
from loadmanager.leader.advice.changes import Done, SettingsApplier, Waits
from loadmanager.leader.advice.core import Sample, turn
from loadmanager.leader.plans.advice import Advice, ChangeSettings, MoveBundles, PreMove, Ruler, SettingChange, sealed
from loadmanager.leader.plans.plan import Plan, PlanKind, PlanState
from loadmanager.leader.plans.store import OPEN_AT_MOST
from loadmanager.leader.plans.table import PlanAction
from tests.loadmanager.leader.advice.advice_world import (
    HOUR_MS,
    MEASURE_MS,
    ROUND_MS,
    START_MS,
    Process,
    advice,
    place,
    tolerance,
)

GOOD, HARMFUL = tolerance("default", 0.2), tolerance("default", 0.05)
TOO_FAR = tolerance("default", 0.9)
BUDGET = ChangeSettings((SettingChange("balancing_budget", 0.2, 0.3),))


async def approved(process: Process, of: Advice) -> Advice:
    await process.publish(of)
    await process.review(of.id, PlanAction.APPROVE, "ann", "")
    return of


async def test_change_made_while_rounds_are_read_is_not_overwritten(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(GOOD))
        read = leader.rounds

        async def slowly(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            found = await read(begin_ms, end_ms, ruler)
            if not leader.changes():
                here.clock.now_ms += 1
                await leader.live.set("balancing_tolerance", 0.15, seen=0, author="bob", reason="")
            return found

        leader.rounds = slowly
        assert await leader.until_over(of) is PlanState.SUPERSEDED
        assert leader.changes() == [("bob", 0.15)]


async def test_advice_that_is_refused_replaces_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        older = await approved(leader, advice(GOOD, START_MS - HOUR_MS))
        newer = advice(TOO_FAR)
        await leader.publish(newer)
        assert await leader.until_over(older) is PlanState.DONE
        assert leader.state(newer) is PlanState.REFUSED


def test_advice_of_the_future_replaces_nothing() -> None:
    now, later = (_proposed(advice(GOOD, at_ms)) for at_ms in (START_MS, START_MS + HOUR_MS))
    assert turn([now, later], START_MS, enabled=False).endings == ()
    [ending] = turn([now, later], START_MS + HOUR_MS, enabled=False).endings
    assert (ending.plan, ending.action) == (now, PlanAction.SUPERSEDE)


def _proposed(of: Advice) -> Plan:
    return Plan(of.id, PlanKind.ADVICE, PlanState.PROPOSED, START_MS, "history advise", advice=of)


async def test_a_leader_whose_clock_is_behind_waits_with_advice_and_ends_none(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(GOOD))
        here.clock.now_ms -= HOUR_MS
        await leader.following.tick()
        assert leader.state(of) is PlanState.APPROVED
        assert "ahead of this leader's clock" in leader.following.waiting[of.id]
        here.clock.now_ms += HOUR_MS
        assert await leader.until_over(of) is PlanState.DONE


async def test_a_clock_that_is_set_back_makes_nobody_wait_for_it(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process(advice_measure_s=ROUND_MS / 1000)  # too short for rounds enough
        await approved(leader, advice(GOOD))
        await leader.following.tick()
        asked: list[int] = []
        read = leader.rounds

        async def counted(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            asked.append(end_ms)
            return await read(begin_ms, end_ms, ruler)

        leader.rounds = counted
        await leader.following.tick()
        assert asked == [], "just looked"
        here.clock.now_ms -= 60_000
        await leader.following.tick()
        assert len(asked) == 1


async def test_what_waits_for_other_advice_says_for_which(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        first = await approved(leader, advice(GOOD))
        await leader.following.tick()
        second = await approved(leader, advice(BUDGET))
        await leader.following.tick()
        assert leader.following.waiting[second.id] == f"advice {first.id} is measuring: only one runs at a time"


class Spy:
    """An applier that only counts; it never ends."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    async def apply(self, plan: Plan) -> Waits:
        self.acts.append("apply")
        return Waits("for ever")

    async def undo(self, plan: Plan) -> Done:
        self.acts.append("undo")
        return Done("")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def test_leader_that_read_long_ago_of_applied_advice_does_nothing(tmp_path: Path) -> None:
    """As one that was stopped between reading and acting, while the next one brought it to its end."""
    async with place(tmp_path) as here:
        old, new = await here.process(1), await here.process(2)
        of = await approved(new, advice(HARMFUL))
        await old.plans.refresh()
        noted = SettingsApplier(new.live).noted(old.plans.get(of.id))
        then = await old.plans.go_on(old.plans.get(of.id), PlanAction.RUN, "leader 1", noted=noted)
        assert then.state is PlanState.RUNNING
        await new.plans.refresh()
        assert await _ended(new, of) is PlanState.UNDONE
        spy = Spy()
        old.following._appliers = {"settings": spy}  # type: ignore[dict-item]
        with pytest.raises(Conflict, match="undone meanwhile"):
            await old.following._apply(then)
        with pytest.raises(Conflict, match="undone meanwhile"):
            await old.following._go_on(msgspec.structs.replace(then, state=PlanState.UNDOING))
        assert spy.acts == []


async def _ended(process: Process, of: Advice) -> PlanState:
    """By an administrator: this plan has no time before to be judged by."""
    await process.review(of.id, PlanAction.WITHDRAW, "ann", "")
    return await process.until_over(of)


async def test_without_any_round_afterwards_it_waits_says_so_and_can_be_withdrawn(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(GOOD))
        await leader.following.tick()
        assert leader.state(of) is PlanState.MEASURING
        read, applied_ms = leader.rounds, here.clock.now_ms

        async def silent(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            return [each for each in await read(begin_ms, end_ms, ruler) if each.at_ms <= applied_ms]

        leader.rounds = silent
        here.clock.now_ms += 10 * MEASURE_MS
        await leader.following.tick()
        assert leader.state(of) is PlanState.MEASURING
        assert leader.following.waiting[of.id] == "0 rounds since then can be compared, 5 are needed"
        leader.rounds = read
        here.clock.now_ms += MEASURE_MS
        assert await leader.until_over(of) is PlanState.DONE, "a later round tells as well"


async def test_a_clock_that_steps_ahead_judges_nothing_before_there_are_rounds(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(HARMFUL))
        await leader.following.tick()
        applied_ms, read = here.clock.now_ms, leader.rounds

        async def few(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            return [each for each in await read(begin_ms, end_ms, ruler) if each.at_ms < applied_ms + 5 * ROUND_MS]

        leader.rounds = few
        here.clock.now_ms += HOUR_MS
        await leader.following.tick()
        assert leader.state(of) is PlanState.MEASURING
        leader.rounds = read
        here.clock.now_ms += MEASURE_MS
        assert await leader.until_over(of) is PlanState.UNDONE


def test_while_moves_are_reviewed_the_setting_lets_no_moves_run() -> None:
    moves = MoveBundles((PreMove("t/n/0x00000000_0x40000000", "a:1", "b:1"),), START_MS - 1, START_MS + HOUR_MS)
    both = [_proposed(advice(change)) for change in (moves, GOOD)]
    assert {plan.id for plan in turn(both, START_MS, enabled=True).next} == {plan.id for plan in both}
    assert turn(both, START_MS, enabled=True, review=True).next == (both[1],)
    approved = msgspec.structs.replace(both[0], state=PlanState.APPROVED)
    assert turn([approved], START_MS, enabled=False, review=True).next == (approved,)


async def test_more_advice_than_people_can_look_at_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        for number in range(OPEN_AT_MOST):
            of = sealed(advice(GOOD, reason=f"number {number}"))
            await leader.publish(of)
        with pytest.raises(Conflict, match="100 pieces of advice wait for a decision"):
            await leader.publish(advice(BUDGET))
        assert (await leader.publish(of)).id == of.id, "that is there already"
        await leader.review(of.id, PlanAction.REJECT, "ann", "")
        await leader.publish(advice(BUDGET))
