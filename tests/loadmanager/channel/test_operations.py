"""What an administrator asks for, done or refused with a reason, and nothing changed by a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadmanager.channel.operations import Operations
from loadmanager.cluster.membership import Membership
from loadmanager.errors import Conflict, Invalid, LoadManagerError, NotFound, Unavailable
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.record import Action
from statechannel.law.transitions import State
from tests.loadmanager.small_world import ADMIN, NAMESPACE, A, B, C, Hand, membership_of, replica, virtually
from tests.simulator.world import World


class AdminWriter:
    """Operations on one replica; `obey` plays the brokers."""

    def __init__(self, operations: Operations, hand: Hand, membership: Membership) -> None:
        self.operations, self.hand, self.membership = operations, hand, membership
        self.bundles: tuple[Bundle, ...] = ()

    @property
    def bundle(self) -> Bundle:
        return self.bundles[0]

    def state(self) -> State:
        return self.hand.entry(self.bundle).state

    async def obey(self) -> None:
        """Do for every broker what it has to do, for ever."""
        steps = {
            State.ASSIGNING: lambda e: (Action.RETURN, e.holder),
            State.TRANSFERRING: lambda e: (Action.READY, e.target),
            State.RELEASING: lambda e: (Action.RELEASE, e.holder),
        }
        while True:
            for entry in list(self.hand.channel.table.in_flight()):
                action, by = steps[entry.state](entry)
                await self.hand.write(action, entry.bundle, by)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def writer(world: World, bundles: int = 1, *, obedient: bool = True) -> AsyncGenerator[AdminWriter]:
    membership = membership_of(A, B, C, draining=(C,))
    async with replica(world) as channel:
        hand = Hand(channel)
        one = AdminWriter(Operations(ADMIN, channel, membership, world.loop.time, 3.0), hand, membership)
        one.bundles = await hand.create(bundles)
        brokers = asyncio.ensure_future(one.obey()) if obedient else None
        yield one
        if brokers is not None:
            brokers.cancel()


# --- what works


@virtually
async def test_a_transfer_returns_when_the_bundle_has_arrived(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)
        await one.operations.transfer(one.bundle, "b:1")
        entry = one.hand.entry(one.bundle)
        assert (entry.state, entry.holder) == (State.ASSIGNED, B)


@virtually
async def test_an_unowned_bundle_is_assigned_to_its_destination(world: World):
    async with writer(world) as one:
        await one.operations.transfer(one.bundle, "b:1")
        assert one.hand.entry(one.bundle).holder == B


@virtually
async def test_unload_returns_without_an_owner_and_repeating_it_changes_nothing(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)
        await one.operations.unload(one.bundle)
        assert one.state() is State.UNASSIGNED
        before = one.hand.channel.table.next_offset(0)
        await one.operations.unload(one.bundle)
        assert one.hand.channel.table.next_offset(0) == before


@virtually
async def test_an_unload_of_a_bundle_on_its_way_waits_until_it_has_arrived(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)
        await one.hand.accept(Action.TRANSFER, one.bundle, A, B)
        await one.operations.unload(one.bundle)
        assert one.state() is State.UNASSIGNED


@virtually
async def test_a_namespace_is_unloaded_then_deleted_and_its_name_can_be_used_again(world: World):
    async with writer(world, bundles=4) as one:
        for bundle in one.bundles:
            await one.hand.assign(bundle, A)
        await one.operations.delete_namespace(NAMESPACE)
        assert one.hand.channel.table.namespaces() == []
        await one.operations.create_namespace(NAMESPACE, even_boundaries(2))
        assert len(one.operations.namespace(NAMESPACE).bundles) == 2


@virtually
async def test_two_administrators_that_move_one_bundle_at_once_both_get_an_answer(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)
        moves = await asyncio.gather(
            one.operations.transfer(one.bundle, "b:1"), one.operations.unload(one.bundle), return_exceptions=True
        )
        assert all(move is None or isinstance(move, Conflict) for move in moves)
        assert None in moves


# --- what is refused

Ask = Callable[[Operations, Bundle], Coroutine[Any, Any, Any]]


async def _looked(operations: Operations, topic: str) -> None:
    operations.bundle_of(Key.parse(topic))


REFUSALS: list[tuple[str, Ask, type[LoadManagerError], str]] = [
    ("a name that is none", lambda o, b: o.create_namespace("no slash", (0, 9)), Invalid, "tenant/namespace"),
    ("boundaries that do not tile", lambda o, b: o.create_namespace("t/n", (0, 9)), Invalid, "0xffffffff"),
    ("a namespace that exists", lambda o, b: o.create_namespace(NAMESPACE, even_boundaries(1)), Conflict, "exists"),
    ("deleting an unknown namespace", lambda o, b: o.delete_namespace("t/none"), NotFound, "no namespace t/none"),
    ("unloading an unknown namespace", lambda o, b: o.unload_namespace("t/none"), NotFound, "no namespace"),
    ("unloading an unknown bundle", lambda o, b: o.unload(Bundle(NAMESPACE, 0, 5)), NotFound, "has 0x00000000_"),
    ("moving an unknown bundle", lambda o, b: o.transfer(Bundle(NAMESPACE, 0, 5), "b:1"), NotFound, "no bundle"),
    ("a bundle of no namespace", lambda o, b: o.unload(Bundle("t/none", 0, 5)), NotFound, "no namespace"),
    ("a topic of no namespace", lambda o, b: _looked(o, "t/none/x"), NotFound, "no namespace"),
    ("moving to an unknown broker", lambda o, b: o.transfer(b, "z:1"), NotFound, "registered: a:1, b:1, c:1"),
    ("moving to a draining broker", lambda o, b: o.transfer(b, "c:1"), Conflict, "draining"),
    ("moving to its owner", lambda o, b: o.transfer(b, "a:1"), Conflict, "owns .* already"),
]


@pytest.mark.parametrize(("ask", "error", "says"), [case[1:] for case in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_what_cannot_be_done_is_refused_says_why_and_changes_nothing(
    ask: Ask, error: type[LoadManagerError], says: str
):
    async def story(world: World) -> None:
        async with writer(world) as one:
            await one.hand.assign(one.bundle, A)
            before = one.hand.channel.table.next_offset(0)
            with pytest.raises(error, match=says):
                await ask(one.operations, one.bundle)
            assert one.hand.channel.table.next_offset(0) == before
            assert not one.hand.channel.replica._watchers, "nobody waits for what cannot come"

    virtually(story)()


@virtually
async def test_a_move_to_a_condemned_broker_is_refused_with_the_evidence(world: World):
    async with writer(world) as one:
        one.membership.suspected = {B: "b:1#1 refuses connections from a:1"}
        with pytest.raises(Conflict, match="refuses connections from a:1"):
            await one.operations.transfer(one.bundle, "b:1")


@virtually
async def test_a_move_that_the_destination_cancels_says_so(world: World):
    async with writer(world, obedient=False) as one:
        await one.hand.assign(one.bundle, A)
        moving = asyncio.ensure_future(one.operations.transfer(one.bundle, "b:1"))
        await world.until(lambda: one.state() is State.TRANSFERRING, 1, "it moves")
        await one.hand.accept(Action.CANCEL, one.bundle, B)
        with pytest.raises(Conflict, match=r"did not arrive at b:1: assigned at a:1#1 after cancel"):
            await moving


@virtually
async def test_what_does_not_get_done_in_time_is_unavailable_and_may_still_happen(world: World):
    async with writer(world, obedient=False) as one:
        await one.hand.assign(one.bundle, A)
        for ask in (one.operations.transfer(one.bundle, "b:1"), one.operations.unload(one.bundle)):
            with pytest.raises(Unavailable, match="within 3 s; it may still"):
                await ask
        assert not one.hand.channel.replica._watchers


@virtually
async def test_without_the_log_every_write_is_unavailable_with_the_records_id(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)
        world.set_down("log", True)
        for ask in (
            one.operations.create_namespace("t/new", even_boundaries(1)),
            one.operations.unload(one.bundle),
            one.operations.transfer(one.bundle, "b:1"),
        ):
            with pytest.raises(Unavailable, match="may still be done") as refused:
                await ask
            assert refused.value.record_id


@virtually
async def test_boundaries_that_no_record_can_hold_are_invalid(world: World):
    async with writer(world) as one:
        world.log.max_entry_bytes = 2_000
        with pytest.raises(Invalid, match="too many boundaries"):
            await one.operations.create_namespace("t/new", even_boundaries(1_000))


@virtually
async def test_a_namespace_that_is_always_assigned_again_cannot_be_deleted(world: World):
    async with writer(world) as one:
        await one.hand.assign(one.bundle, A)

        async def clients() -> None:
            while True:
                if one.state() is State.UNASSIGNED:
                    await one.hand.write(Action.OWN, one.bundle, A, A)
                await asyncio.sleep(0)
                await one.hand.channel.next_change(one.bundle)

        eager = asyncio.ensure_future(clients())
        with pytest.raises(Conflict, match="stop its clients first"):
            await one.operations.delete_namespace(NAMESPACE)
        eager.cancel()
