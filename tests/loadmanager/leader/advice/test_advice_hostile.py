"""Advice where others act at the same moment, clocks step, and leaders read what is over long ago."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadmanager.errors import Conflict
from loadmanager.leader.advice.board import Entry
from loadmanager.leader.advice.effect import Sample
from loadmanager.leader.advice.hands.contract import Done, Waits
from loadmanager.leader.advice.hands.settings import SettingsHand
from loadmanager.leader.advice.judging import turn
from loadmanager.leader.advice.model import Advice, ChangeSettings, Progress, Ruler, SettingChange, State, Verdict
from loadmanager.leader.advice.states import Action
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
    await process.board.publish(of)
    await process.board.review(of.id, Verdict.APPROVE, "ann", "")
    return of


async def test_a_change_that_somebody_makes_while_rounds_are_read_is_not_overwritten(tmp_path: Path) -> None:
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

        leader.following._rounds = slowly
        assert await leader.until_over(of) is State.SUPERSEDED
        assert leader.changes() == [("bob", 0.15)]


async def test_advice_that_is_refused_replaces_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        older = await approved(leader, advice(GOOD, START_MS - HOUR_MS))
        newer = advice(TOO_FAR)
        await leader.board.publish(newer)
        assert await leader.until_over(older) is State.KEPT
        assert leader.state(newer) is State.REFUSED


def test_advice_of_the_future_replaces_nothing() -> None:
    now, later = (Entry(advice(GOOD, at_ms), None, None) for at_ms in (START_MS, START_MS + HOUR_MS))
    assert turn([now, later], START_MS, enabled=False).endings == ()
    [ending] = turn([now, later], START_MS + HOUR_MS, enabled=False).endings
    assert (ending.entry, ending.action) == (now, Action.SUPERSEDE)


async def test_a_leader_whose_clock_is_behind_waits_with_advice_and_ends_none(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(GOOD))
        here.clock.now_ms -= HOUR_MS
        await leader.following.tick()
        assert leader.state(of) is State.APPROVED
        assert "ahead of this leader's clock" in leader.following.waiting[of.id]
        here.clock.now_ms += HOUR_MS
        assert await leader.until_over(of) is State.KEPT


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

        leader.following._rounds = counted
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
        assert leader.following.waiting[second.id] == f"advice {first.id} is measuring: one at a time"


class Spy:
    """A hand that only counts; it never ends."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    async def apply(self, advice: Advice, progress: Progress) -> Waits:
        self.acts.append("apply")
        return Waits("for ever")

    async def undo(self, advice: Advice, progress: Progress) -> Done:
        self.acts.append("undo")
        return Done(0, "")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def test_a_leader_that_read_long_ago_that_advice_is_applied_does_nothing_about_it(tmp_path: Path) -> None:
    """As one that was stopped between reading and acting, while the next one brought it to its end."""
    async with place(tmp_path) as here:
        old, new = await here.process(1), await here.process(2)
        of = await approved(new, advice(HARMFUL))
        stale = Progress(of.id, 1, 1, State.APPLYING, START_MS, before=SettingsHand(new.live).before(of))
        assert await old.board.advance(stale)
        then = old.board.get(of.id)
        assert then.state is State.APPLYING
        await new.board.refresh()
        assert await _ended(new, of) is State.WITHDRAWN
        spy = Spy()
        old.following._hands = {"settings": spy}  # type: ignore[dict-item]
        with pytest.raises(Conflict, match="withdrawn meanwhile"):
            await old.following._apply(then, stale)
        withdrawing = msgspec.structs.replace(then, progress=msgspec.structs.replace(stale, state=State.WITHDRAWING))
        with pytest.raises(Conflict, match="withdrawn meanwhile"):
            await old.following._go_on(withdrawing)
        assert spy.acts == []


async def _ended(process: Process, of: Advice) -> State:
    """By an administrator: this progress has no time before to be judged by."""
    await process.board.review(of.id, Verdict.WITHDRAW, "ann", "")
    return await process.until_over(of)


async def test_without_any_round_afterwards_it_waits_says_so_and_can_be_withdrawn(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(GOOD))
        await leader.following.tick()
        assert leader.state(of) is State.MEASURING
        read, applied_ms = leader.rounds, here.clock.now_ms

        async def silent(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            return [each for each in await read(begin_ms, end_ms, ruler) if each.at_ms <= applied_ms]

        leader.following._rounds = silent
        here.clock.now_ms += 10 * MEASURE_MS
        await leader.following.tick()
        assert leader.state(of) is State.MEASURING
        assert leader.following.waiting[of.id] == "0 rounds since then can be compared, 5 are needed"
        leader.following._rounds = read
        here.clock.now_ms += MEASURE_MS
        assert await leader.until_over(of) is State.KEPT, "a later round tells as well"


async def test_a_clock_that_steps_ahead_judges_nothing_before_there_are_rounds(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await approved(leader, advice(HARMFUL))
        await leader.following.tick()
        applied_ms, read = here.clock.now_ms, leader.rounds

        async def few(begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
            return [each for each in await read(begin_ms, end_ms, ruler) if each.at_ms < applied_ms + 5 * ROUND_MS]

        leader.following._rounds = few
        here.clock.now_ms += HOUR_MS
        await leader.following.tick()
        assert leader.state(of) is State.MEASURING
        leader.following._rounds = read
        here.clock.now_ms += MEASURE_MS
        assert await leader.until_over(of) is State.WITHDRAWN
