"""What an incarnation says of many bundles at once goes into one record, and each bundle gets its own verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from loadmanager.broker.agent import TURNS, Publisher
from loadmanager.broker.agent_core import Publish
from statechannel.law.bundle import Bundle
from statechannel.law.record import BUNDLES_A_RECORD, Action
from statechannel.law.transitions import State
from statechannel.law.verdict import Change
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World


async def vacated(_: Bundle) -> bool:
    return True


class Publishing:
    """Broker a's publisher, and the records that were accepted since."""

    def __init__(self, hand: Hand, tasks: asyncio.TaskGroup) -> None:
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self._tasks = tasks
        self.hand = hand
        self.over = self.more_follow = False
        self.publisher = Publisher(
            A, hand.channel, lambda: self.over, self.notes.append, vacated, self.spawn, lambda: self.more_follow
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """As an agent does it."""
        if not self.over:
            return self._tasks.create_task(work)
        work.close()
        return None

    async def all_owned(self, count: int) -> tuple[Bundle, ...]:
        """So many bundles that a may say something of."""
        bundles = await self.hand.create(count)
        for bundle in bundles:
            await self.hand.accept(Action.OWN, bundle, B, A)
        self.hand.channel.listen(self.changes.append)
        return bundles

    def publish(self, bundle: Bundle, action: Action, hand_off: bytes | None = None) -> asyncio.Task[None]:
        effect = Publish(bundle, action, self.hand.entry(bundle).revision, hand_off)
        return self._tasks.create_task(self.publisher.publish(effect))


@virtually
async def test_what_is_said_of_many_bundles_in_one_turn_is_one_record(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        bundles = await one.all_owned(BUNDLES_A_RECORD + 3)
        await asyncio.wait([one.publish(bundle, Action.RETURN) for bundle in bundles])
        assert [len(change.transitions) for change in one.changes] == [BUNDLES_A_RECORD, 3]
        assert {one.hand.entry(bundle).state for bundle in bundles} == {State.ASSIGNED}


@virtually
async def test_a_record_waits_a_few_turns_while_hooks_wait_to_begin(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        bundles, waiting = await one.all_owned(4 * TURNS), list[asyncio.Task[None]]()
        one.more_follow = True
        for bundle in bundles:
            waiting.append(one.publish(bundle, Action.RETURN))
            await asyncio.sleep(0)
        await asyncio.wait(waiting)
        assert 2 <= len(one.changes) <= 4, "it does not wait for ever, nor is each a record of its own"
        assert {one.hand.entry(bundle).state for bundle in bundles} == {State.ASSIGNED}


@virtually
async def test_a_bundle_that_changed_meanwhile_spoils_no_other(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        first, gone, last = await one.all_owned(3)
        waiting = [one.publish(bundle, Action.RETURN) for bundle in (first, gone, last)]
        await one.hand.accept(Action.RELEASE, gone, A)
        await asyncio.wait(waiting)
        states = [one.hand.entry(bundle).state for bundle in (first, gone, last)]
        assert states == [State.ASSIGNED, State.UNASSIGNED, State.ASSIGNED]


@virtually
async def test_different_actions_and_hand_offs_get_records_of_their_own(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        a, b, c, d = await one.all_owned(4)
        waiting = [one.publish(a, Action.RETURN), one.publish(b, Action.RELEASE)]
        waiting += [one.publish(c, Action.RELEASE, b"state"), one.publish(d, Action.RETURN)]
        await asyncio.wait(waiting)
        assert sorted(len(change.transitions) for change in one.changes) == [1, 1, 2]


@virtually
async def test_what_nobody_waits_for_any_more_is_not_written(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        kept, dropped = await one.all_owned(2)
        staying, leaving = one.publish(kept, Action.RETURN), one.publish(dropped, Action.RETURN)
        await asyncio.sleep(0)  # both are gathered
        leaving.cancel()
        await asyncio.wait([staying, leaving])
        assert one.hand.entry(kept).state is State.ASSIGNED
        assert one.hand.entry(dropped).state is State.ASSIGNING


@virtually
async def test_nobody_waits_for_what_an_ending_incarnation_did_not_write(world: World):
    async with replica(world) as channel, asyncio.TaskGroup() as tasks:
        one = Publishing(Hand(channel), tasks)
        (bundle,) = await one.all_owned(1)
        waiting = one.publish(bundle, Action.RETURN)
        await asyncio.sleep(0)  # it is gathered
        one.over = True
        await asyncio.wait_for(waiting, 5)
        assert one.hand.entry(bundle).state is State.ASSIGNING
