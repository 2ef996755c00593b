"""What performing duties writes, and what it makes of silence, of refusals and of a raise without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from loadmanager.leader.core import Cancel, LeaderCore, LeaderSettings, Place, Raise, Revoke
from loadmanager.leader.service import DutyExecutor
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.ports import Leadership
from tests.loadmanager.small_world import A, B, C, Hand, replica, virtually
from tests.simulator.network import Faults
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World


class Leading:
    """The duty executor of broker a in epoch 1, and what they told."""

    def __init__(self, hand: Hand, tasks: asyncio.TaskGroup) -> None:
        self.hand, self.tasks = hand, tasks
        self.executor: DutyExecutor
        self.core = LeaderCore(LeaderSettings(2.0, 0.1, 30.0, 150.0))
        self.deposed: list[str] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class ToC:
    """Gives all to C."""

    def look(self) -> bool:
        return True

    def place_many(self, entries: Sequence[Ownership], names: Sequence[str | None]) -> list[BrokerId | None]:
        return [C] * len(entries)

    def cause(self, entry: Ownership) -> str:
        return ""

    def basis(self) -> object:
        return None


@asynccontextmanager
async def leading(world: World) -> AsyncGenerator[Leading]:
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        coordination = world.coordination_client(world.processes["a:1"], request_timeout_s=0.5)
        await coordination.start(5)
        me = await coordination.start_incarnation("a:1", 0)
        leadership = Leadership(me, 1)
        assert await coordination.campaign(me) == leadership
        one = Leading(Hand(channel), tasks)
        one.executor = DutyExecutor(
            leadership, channel, coordination, one.core, ToC(), world.loop.time,
            lambda _text: None, one.wake, one.deposed.append,
        )  # fmt: skip
        assert await one.executor.take_partitions("")
        yield one
        await coordination.close()


@virtually
async def test_revocation_and_placement_are_one_record_each_per_partition(world: World):
    async with leading(world) as one:
        bundles = await one.hand.create(50)
        for bundle in bundles:
            await one.hand.assign(bundle, B)
        end = one.hand.channel.table.next_offset(0)

        def seen():
            return tuple((bundle, one.hand.entry(bundle).revision) for bundle in bundles)

        one.executor.perform([Revoke(B, seen(), "dead")], one.tasks)
        await world.until(lambda: len(one.hand.channel.table.in_state(State.REVOKING)) == 50, 1, "all are revoked")
        one.executor.perform([Place(seen(), revoked=True)], one.tasks)
        await world.until(lambda: len(one.hand.channel.table.held_by(C)) == 50, 1, "all have a new holder")
        assert one.hand.channel.table.next_offset(0) == end + 2
        assert one.woken >= 2


@virtually
async def test_a_raise_that_was_answered_is_reported_and_one_that_was_not_is_not(world: World):
    async with leading(world) as one:
        world.network.faults = Faults(late=0.0)
        world.set_down(COORDINATION_SERVER, True)
        one.executor.perform([Raise(B, "dead")], one.tasks)
        await asyncio.sleep(1)
        assert one.core._raised_s == {}
        world.set_down(COORDINATION_SERVER, False)
        asked_s = world.now_s
        one.executor.perform([Raise(B, "dead")], one.tasks)
        await world.until(lambda: B in one.core._raised_s, 1, "it is raised")
        assert one.core._raised_s[B] > asked_s
        assert not one.deposed


@virtually
async def test_a_raise_by_a_leader_of_the_past_deposes_it(world: World):
    async with leading(world) as one:
        world.coordination.end_leadership(Leadership(A, 1))
        one.executor.perform([Raise(B, "dead")], one.tasks)
        await world.until(lambda: bool(one.deposed), 1, "it knows")
        assert one.core._raised_s == {}


@virtually
async def test_a_record_of_a_leader_of_the_past_deposes_it(world: World):
    async with leading(world) as one:
        (bundle,) = await one.hand.create()
        await one.hand.assign(bundle, B)
        await one.hand.channel.publish(Record("", Action.LEAD, C, Role.LEADER, epoch=2), 0)
        one.executor.perform([Revoke(B, ((bundle, one.hand.entry(bundle).revision),), "dead")], one.tasks)
        await world.until(lambda: bool(one.deposed), 1, "it knows")
        assert one.hand.entry(bundle).state is State.ASSIGNED
        assert not await one.executor.take_partitions(""), "nor does it take the barrier back"


@virtually
async def test_silence_of_a_partition_is_remembered_until_it_answers_any_duty(world: World):
    async with leading(world) as one:
        (bundle,) = await one.hand.create()
        world.network.faults = Faults(late=0.0)
        world.set_down(LOG_SERVER, True)
        one.executor.perform([Cancel(((bundle, 0),), "stuck")], one.tasks)
        await asyncio.sleep(1.5)
        silent_s = one.executor.unknown_since_s
        assert silent_s is not None
        one.executor.check_silent(one.tasks)
        await asyncio.sleep(1.5)
        assert one.executor.unknown_since_s == silent_s, "it is silent still, and since then"
        world.set_down(LOG_SERVER, False)
        one.executor.check_silent(one.tasks)
        await world.until(lambda: one.executor.unknown_since_s is None, 1, "it answers")
