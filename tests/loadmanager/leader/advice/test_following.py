"""What becomes of advice about settings: approved, applied, measured, kept or withdrawn; whichever leader does it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from loadmanager.errors import Conflict
from loadmanager.leader.plans.advice import Advice, Expected, Measure
from loadmanager.leader.plans.plan import PlanState
from loadmanager.leader.plans.table import PlanAction
from tests.loadmanager.leader.advice.advice_world import (
    HOUR_MS,
    MEASURE_MS,
    ROUND_MS,
    START_MS,
    Fault,
    Killed,
    Place,
    Process,
    advice,
    place,
    tolerance,
)

GOOD, HARMFUL, IDLE = tolerance("default", 0.2), tolerance("default", 0.05), tolerance("default", 0.15)


async def published(process: Process, of: Advice, verdict: PlanAction | None = PlanAction.APPROVE) -> Advice:
    await process.publish(of)
    if verdict is not None:
        await process.review(of.id, verdict, "ann", "looks right")
    return of


async def test_approved_advice_is_applied_measured_and_kept(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(GOOD))
        assert await leader.until_over(of) is PlanState.DONE
        assert leader.live.current.balancing_tolerance == 0.2
        entry = leader.plans.get(of.id)
        assert [step.action for step in entry.steps] == ["approve", "run", "finish", "keep"]
        assert entry.steps[1].author == "ann"
        effect = entry.effect
        assert effect is not None
        assert (effect.before, effect.after) == (pytest.approx(0.5, abs=0.02), pytest.approx(0.2, abs=0.02))
        assert effect.period.end_ms - effect.period.begin_ms == MEASURE_MS
        assert leader.live.history("balancing_tolerance")[0].reason.startswith(f"advice {of.id}: replay")


async def test_advice_that_does_harm_is_withdrawn_and_its_change_undone(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(HARMFUL))
        assert await leader.until_over(of) is PlanState.UNDONE
        assert leader.live.current.balancing_tolerance == "default"
        assert leader.changes() == [(f"plan {of.id}", 0.05), (f"plan {of.id}, undone", None)]
        assert any("worse" in note and "harm" in note for note in leader.notes)
        assert leader.counts.advice["harmed"] == leader.counts.advice["withdrawn"] == 1


async def test_a_value_that_the_cluster_had_is_set_again(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        await leader.live.set("balancing_tolerance", 0.1, seen=0, author="bob", reason="")
        here.clock.now_ms += 1000
        of = await published(leader, advice(tolerance(0.1, 0.05), here.clock.now_ms))
        assert await leader.until_over(of) is PlanState.UNDONE
        assert leader.changes()[-1] == (f"plan {of.id}, undone", 0.1)


async def test_no_worse_than_noise_and_the_bound_is_kept(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        assert await leader.until_over(await published(leader, advice(IDLE))) is PlanState.DONE


async def test_nothing_is_applied_that_nobody_approved(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(GOOD), None)
        rejected = await published(leader, advice(IDLE), PlanAction.REJECT)
        for _ in range(10):
            await leader.following.tick()
            here.clock.now_ms += ROUND_MS
        assert leader.changes() == []
        assert leader.following.waiting == {of.id: "it waits for approval"}
        assert leader.state(rejected) is PlanState.REJECTED
        with pytest.raises(Conflict, match="is rejected: the operator cannot approve it; possible: nothing"):
            await leader.review(rejected.id, PlanAction.APPROVE, "bob", "")


async def test_with_the_setting_on_nobody_needs_to_approve(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process(advice_apply=True)
        of = await published(leader, advice(GOOD), None)
        assert await leader.until_over(of) is PlanState.DONE
        entry = leader.plans.get(of.id)
        assert entry.steps[0].author == "advice_apply"


async def test_a_rejection_stands_against_the_setting_too(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process(advice_apply=True)
        of = await published(leader, advice(GOOD), PlanAction.REJECT)
        assert await leader.until_over(of) is PlanState.REJECTED
        assert leader.changes() == []


async def test_advice_never_overrides_what_somebody_has_set_since_its_data(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        here.clock.now_ms += 1
        await leader.live.set("balancing_tolerance", "default", seen=0, author="bob", reason="")
        of = await published(leader, advice(GOOD))
        assert await leader.until_over(of) is PlanState.SUPERSEDED
        assert leader.changes() == [("bob", "default")]


async def test_a_change_by_somebody_else_while_it_is_measured_stays(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(HARMFUL))
        await leader.following.tick()
        assert leader.state(of) is PlanState.MEASURING
        await leader.live.set("balancing_tolerance", 0.15, seen=1, author="bob", reason="")
        assert await leader.until_over(of) is PlanState.SUPERSEDED
        assert leader.live.current.balancing_tolerance == 0.15


async def test_an_administrator_withdraws_what_is_measured_or_kept(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(GOOD))
        assert await leader.until_over(of) is PlanState.DONE
        with pytest.raises(Conflict, match="the operator cannot reject it; possible: withdraw"):
            await leader.review(of.id, PlanAction.REJECT, "bob", "")
        await leader.review(of.id, PlanAction.WITHDRAW, "bob", "clients complain")
        assert leader.state(of) is PlanState.UNDOING
        assert await leader.until_over(of) is PlanState.UNDONE
        assert leader.live.current.balancing_tolerance == "default"


async def test_withdrawing_leaves_alone_what_somebody_has_set_since(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(GOOD))
        assert await leader.until_over(of) is PlanState.DONE
        await leader.live.set("balancing_tolerance", 0.2, seen=1, author="bob", reason="mine now")
        await leader.review(of.id, PlanAction.WITHDRAW, "cid", "")
        assert await leader.until_over(of) is PlanState.UNDONE
        assert leader.changes()[-1] == ("bob", 0.2)
        entry = leader.plans.get(of.id)
        assert "changed since by bob" in entry.steps[-1].reason


async def test_one_piece_of_advice_at_a_time_is_measured(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        first = await published(leader, advice(GOOD))
        await leader.following.tick()
        weight = msgspec.structs.replace(GOOD.changes[0], name="balancing_budget", was=0.2, to=0.3)
        second = await published(leader, advice(msgspec.structs.replace(GOOD, changes=(weight,))))
        await leader.following.tick()
        assert [leader.state(first), leader.state(second)] == [PlanState.MEASURING, PlanState.APPROVED]
        assert await leader.until_over(first) is PlanState.DONE
        assert await leader.until_over(second) is PlanState.DONE


async def test_newer_advice_about_the_same_replaces_what_waits(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        old = await published(leader, advice(GOOD, START_MS - HOUR_MS), None)
        new = await published(leader, advice(IDLE), None)
        assert await leader.until_over(old) is PlanState.SUPERSEDED
        assert leader.state(new) is PlanState.PROPOSED


async def test_several_settings_are_changed_together_or_not_at_all(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        fault = Fault()
        leader, other = await here.process(fault=fault), await here.process(2)
        both = msgspec.structs.replace(
            GOOD,
            changes=(GOOD.changes[0], msgspec.structs.replace(GOOD.changes[0], name="weight_cpu", was=1.0, to=1.5)),
        )
        of = await published(leader, advice(both))
        fault.at, fault.what, fault.writes = 2, "held", 0  # applying, the tolerance, the weight
        held = asyncio.create_task(leader.following.tick())
        await fault.reached.wait()
        await other.live.set("weight_cpu", 2.0, seen=0, author="bob", reason="")
        fault.go.set()
        await held
        assert leader.state(of) is PlanState.SUPERSEDED
        assert leader.changes() == [(f"plan {of.id}", 0.2), (f"plan {of.id}, undone", None)]
        assert leader.live.current.weight_cpu == 2.0


async def test_following_waits_without_a_comparison_and_expires_in_the_end(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process(advice_measure_s=ROUND_MS / 1000)
        of = await published(leader, advice(GOOD))
        await leader.following.tick()
        assert "5 are needed" in leader.following.waiting[of.id]
        leader.held_up = "the cluster is paused"
        await leader.following.tick()
        assert leader.following.waiting[of.id] == "the cluster is paused"
        here.clock.now_ms += 24 * HOUR_MS
        assert await leader.until_over(of) is PlanState.EXPIRED
        assert leader.changes() == []


@pytest.mark.parametrize("what", ["before", "after", "held"])
@pytest.mark.parametrize(("change", "end"), [(GOOD, PlanState.DONE), (HARMFUL, PlanState.UNDONE)])
async def test_leader_that_ends_anywhere_has_a_successor_that_finishes_once(
    tmp_path: Path, what: str, change: object, end: PlanState
) -> None:
    """Killed before or after each of its writes; or held up there until the next one is done, and then going on."""
    at = 0
    while True:
        (tmp_path / f"{at}").mkdir()
        async with place(tmp_path / f"{at}") as here:
            if not await _changed_leaders(here, Fault(at, what), change, end):
                assert at >= 3
                return
        at += 1


async def _changed_leaders(here: Place, fault: Fault, change: object, end: PlanState) -> bool:
    """Whether the first leader got as far as the fault."""
    admin, first, second = await here.process(0), await here.process(1, fault), await here.process(2)
    of = await published(admin, advice(change))  # type: ignore[arg-type]
    leading = asyncio.create_task(first.until_over(of))
    reached = asyncio.create_task(fault.reached.wait())
    await asyncio.wait({leading, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    assert await second.until_over(of) is end
    fault.go.set()
    with suppress(Killed):
        await leading
    await first.plans.refresh()
    await first.following.tick()
    await second.plans.refresh()
    await second.following.tick()
    again = await here.process(3)
    await again.following.tick()
    undone = [(f"plan {of.id}, undone", None)] if end is PlanState.UNDONE else []
    assert again.changes() == [(f"plan {of.id}", change.changes[0].to), *undone]  # type: ignore[attr-defined]
    assert again.state(of) is end
    assert again.plans.get(of.id).effect is not None
    return fault.reached.is_set()


async def test_a_rejection_that_comes_while_it_is_begun_stands_and_nothing_changes(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        fault = Fault(0, "held")
        leader, admin = await here.process(1, fault), await here.process(0)
        of = await published(admin, advice(GOOD))
        await leader.plans.refresh()
        held = asyncio.create_task(leader.following.tick())
        await fault.reached.wait()
        await admin.review(of.id, PlanAction.REJECT, "bob", "not tonight")
        fault.go.set()
        with pytest.raises(Conflict):
            await held
        assert await leader.until_over(of) is PlanState.REJECTED
        assert leader.changes() == []


async def test_a_deposed_leader_does_not_apply_what_the_next_one_has_ended(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        fault = Fault(0, "held")
        old, new = await here.process(1, fault), await here.process(2)
        of = await published(new, advice(GOOD))
        await old.plans.refresh()
        held = asyncio.create_task(old.following.tick())
        await fault.reached.wait()
        here.clock.now_ms += 24 * HOUR_MS
        assert await new.until_over(of) is PlanState.EXPIRED
        fault.go.set()
        with pytest.raises(Conflict, match="leader 2"):
            await held
        await new.live.set("weight_cpu", 2.0, seen=0, author="bob", reason="")
        assert new.changes() == []


async def test_a_deposed_leaders_late_word_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader, old = await here.process(5), await here.process(4)
        of = await published(leader, advice(GOOD))
        await old.plans.refresh()
        approved = old.plans.get(of.id)
        assert await leader.until_over(of) is PlanState.DONE
        kept = leader.plans.get(of.id)
        with pytest.raises(Conflict):
            await old.plans.go_on(approved, PlanAction.RUN, "leader 4")
        await old.plans.refresh()
        with pytest.raises(Conflict, match="is done meanwhile"):
            await old.plans.go_on(approved, PlanAction.RUN, "leader 4")
        again = await here.process(6)
        assert again.plans.get(of.id) == kept == old.plans.get(of.id)


async def test_what_is_long_over_is_forgotten(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        of = await published(leader, advice(GOOD), PlanAction.REJECT)
        here.clock.now_ms += 40 * 24 * HOUR_MS
        await leader.following.tick()
        assert leader.plans.all() == []
        again = await here.process()
        assert again.plans.all() == []
        assert of.id


async def test_it_is_judged_by_the_measure_that_it_promised(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        leader = await here.process()
        promised = Expected(Measure.ABOVE_TOLERANCE, before=1.0, after=0.1, low=0.5, high=1.0)
        of = await published(leader, advice(HARMFUL, expected=promised))
        assert await leader.until_over(of) is PlanState.DONE  # it was above the tolerance all the time before, too
