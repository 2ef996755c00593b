"""Lookups on one broker: one record for many, deferred until there is an answer, and no more than the time-out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from loadmanager.broker.lookup import FIRST_REST_S, LAST_REST_S, WOKEN_AT_ONCE, Located, Lookup
from loadmanager.cluster.membership import Membership
from loadmanager.errors import NotFound, Unavailable
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Action, BrokerId, Record, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from tests.loadmanager.small_world import NAMESPACE, A, B, Hand, membership_of, replica, see, virtually
from tests.simulator.world import World

TOPIC = Key.parse(f"{NAMESPACE}/x")
EPOCH = {"role": "leader", "epoch": 1}


class Asked:
    """One broker that is asked, and the placement's answers."""

    def __init__(self, lookup: Lookup, hand: Hand, membership: Membership, bundle: Bundle) -> None:
        self.lookup, self.hand, self.membership, self.bundle = lookup, hand, membership, bundle
        self.places: list[BrokerId | None] = [B]
        self.to_place: list[Ownership] = []
        """What was to be placed, in order."""
        self.look: Callable[[], bool] = lambda: False

    def place(self, entries: Sequence[Ownership]) -> list[BrokerId | None]:
        self.to_place += entries
        return [self.places.pop(0) if len(self.places) > 1 else self.places[0] for _ in entries]

    def state(self) -> State:
        return self.hand.entry(self.bundle).state


@asynccontextmanager
async def asked(world: World) -> AsyncGenerator[Asked]:
    membership = membership_of(A, B)
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        one = Asked(None, hand, membership, bundle)  # type: ignore[arg-type]
        one.lookup = Lookup(A, channel, membership, one.place, world.loop.time, look=lambda: one.look())
        yield one
        one.lookup.close()


@virtually
async def test_owned_bundle_is_answered_at_once_with_owner_registration_and_token(world: World):
    async with asked(world) as one:
        await one.hand.assign(one.bundle, B)
        located = one.lookup.peek(TOPIC)
        assert located is not None
        assert located == await one.lookup.locate(TOPIC, 0.001)
        assert (located.owner, located.bundle) == (B, one.bundle)
        assert located.peer is not None
        assert located.token.offset == one.hand.entry(one.bundle).token


@virtually
async def test_a_hundred_concurrent_lookups_of_an_unowned_bundle_cost_one_record(world: World):
    async with asked(world) as one:
        before = one.hand.channel.table.next_offset(0)
        lookups = [asyncio.ensure_future(one.lookup.locate(TOPIC, 5)) for _ in range(100)]
        await world.until(lambda: one.state() is State.ASSIGNING, 1, "it is assigned")
        await one.hand.accept(Action.RETURN, one.bundle, B)
        answers = await asyncio.gather(*lookups)
        assert {answer.owner for answer in answers} == {B}
        assert one.hand.channel.table.next_offset(0) == before + 2


@virtually
async def test_bundle_in_flight_is_deferred_then_refused_with_state_and_retry(world: World):
    async with asked(world) as one:
        await one.hand.accept(Action.OWN, one.bundle, B, B)
        began_s = world.now_s
        with pytest.raises(Unavailable, match=r"assigning, holder b:1#1.*try again") as refused:
            await one.lookup.locate(TOPIC, 3)
        assert world.now_s - began_s == pytest.approx(3, abs=0.01)
        assert refused.value.retry_after_s > 0
        await asyncio.sleep(0)
        assert not one.hand.channel.replica._watchers, "who gave up is forgotten"


@virtually
async def test_a_deferred_lookup_is_answered_in_the_moment_the_bundle_arrives(world: World):
    async with asked(world) as one:
        await one.hand.accept(Action.OWN, one.bundle, B, B)
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 60))
        await asyncio.sleep(10)
        assert not lookup.done()
        await one.hand.accept(Action.RETURN, one.bundle, B)
        await asyncio.sleep(0.001)
        assert lookup.result().owner == B


@virtually
async def test_lookups_that_one_record_wakes_look_again_in_several_turns(world: World):
    async with asked(world) as one:
        await one.hand.accept(Action.OWN, one.bundle, B, B)
        lookups = [asyncio.ensure_future(one.lookup.locate(TOPIC, 60)) for _ in range(10 * WOKEN_AT_ONCE)]
        await world.until(lambda: len(one.lookup._waits) == len(lookups), 1, "all wait")
        peek, looks = one.lookup.peek, [0]

        def counted(topic: Key) -> Located | None:
            if not looks[-1]:
                asyncio.get_running_loop().call_soon(looks.append, 0)
            looks[-1] += 1
            return peek(topic)

        one.lookup.peek = counted  # type: ignore[method-assign]
        await one.hand.accept(Action.RETURN, one.bundle, B)
        assert {answer.owner for answer in await asyncio.gather(*lookups)} == {B}
        assert max(looks) <= WOKEN_AT_ONCE
        assert sum(looks) >= len(lookups)


@virtually
async def test_moving_bundle_is_answered_by_its_present_owner_until_it_stops(world: World):
    async with asked(world) as one:
        await one.hand.assign(one.bundle, A)
        await one.hand.accept(Action.TRANSFER, one.bundle, A, B)
        located = one.lookup.peek(TOPIC)
        assert located is not None
        assert located.owner == A
        await one.hand.accept(Action.READY, one.bundle, B)
        assert one.lookup.peek(TOPIC) is None


@virtually
async def test_an_owner_that_is_not_live_is_not_answered_but_waited_for(world: World):
    async with asked(world) as one:
        await one.hand.assign(one.bundle, B)
        see(one.membership, A)
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 10))
        await asyncio.sleep(1)
        assert not lookup.done()
        see(one.membership, A, B)
        await asyncio.sleep(0.6)
        assert lookup.result().owner == B, "it came back without any record"


@virtually
async def test_an_unknown_namespace_is_not_found(world: World):
    async with asked(world) as one:
        with pytest.raises(NotFound, match="create it first"):
            await one.lookup.locate(Key.parse("no/where/x"), 5)


@virtually
async def test_without_a_place_it_waits_for_one(world: World):
    async with asked(world) as one:
        one.places = [None, None, B]
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 10))
        await world.until(lambda: one.state() is State.ASSIGNING, 3, "a place was found")
        lookup.cancel()


@virtually
async def test_a_broker_that_declines_for_ever_gets_the_bundle_ever_more_rarely(world: World):
    async with asked(world) as one:
        before = one.hand.channel.table.next_offset(0)
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 60))
        for _ in range(6_000):
            if one.state() is State.ASSIGNING:
                await one.hand.accept(Action.RELEASE, one.bundle, B)
            await asyncio.sleep(0.01)
        records = one.hand.channel.table.next_offset(0) - before
        assert 20 < records < 100, "neither a loop nor given up"
        with pytest.raises(Unavailable):
            await lookup


@virtually
async def test_a_broker_that_declined_once_is_asked_again_at_once_and_later_after_rests_that_double(world: World):
    async with asked(world) as one:
        before = one.hand.channel.table.next_offset(0)
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 60))
        paused_s: list[float] = []
        for _ in range(9):
            began_s = world.now_s
            await world.until(lambda: one.state() is State.ASSIGNING, 3, "b gets it")
            paused_s.append(world.now_s - began_s)
            await one.hand.accept(Action.RELEASE, one.bundle, B)
        rests_s = [0.0, 0.0, *(min(FIRST_REST_S * 2**times, LAST_REST_S) for times in range(7))]
        assert paused_s == pytest.approx(rests_s, abs=0.05)
        assert rests_s[-2:] == [LAST_REST_S] * 2
        assert one.hand.channel.table.next_offset(0) - before == 2 * len(paused_s), "an own and a release each"
        lookup.cancel()


@virtually
async def test_a_broker_that_got_the_bundle_through_another_one_does_not_rest(world: World):
    async with asked(world) as one:
        one.places = [B, B, A, B, B]
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 10))
        for holder in (B, B, A, B):
            await world.until(lambda: one.state() is State.ASSIGNING, 0.05, "it is assigned at once")
            assert one.hand.entry(one.bundle).holder == holder
            await one.hand.accept(Action.RELEASE, one.bundle, holder)
        await world.until(lambda: one.hand.entry(one.bundle).holder == B, 0.05, "b has declined once since a had it")
        lookup.cancel()


@virtually
async def test_a_bundle_that_was_assigned_before_it_was_placed_is_not_placed(world: World):
    async with asked(world) as one:
        table, end = one.hand.channel.table, world.log.ends("bundle-state")
        subject = Subject(one.bundle, one.hand.entry(one.bundle).revision)

        def read_on() -> bool:
            if one.state() is State.UNASSIGNED:
                table.replay(0, table.next_offset(0), Record("own", Action.OWN, B, subjects=(subject,), to=B))
            return True

        one.look = read_on
        with pytest.raises(Unavailable, match="assigning, holder b:1#1"):
            await one.lookup.locate(TOPIC, 1)
        assert one.to_place == []
        assert world.log.ends("bundle-state") == end


@virtually
async def test_a_decline_is_followed_at_once_by_a_broker_that_did_not_decline(world: World):
    async with asked(world) as one:
        one.places = [B, A]
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 10))
        await world.until(lambda: one.state() is State.ASSIGNING, 1, "it is assigned to b")
        await one.hand.accept(Action.RELEASE, one.bundle, B)
        await world.until(lambda: one.hand.entry(one.bundle).holder == A, 0.05, "a gets it without any wait")
        lookup.cancel()


@virtually
async def test_a_record_without_a_verdict_is_written_again_while_somebody_waits(world: World):
    async with asked(world) as one:
        world.network.cut("a:1", "log")
        lookup = asyncio.ensure_future(one.lookup.locate(TOPIC, 30))
        await asyncio.sleep(2.5)
        world.network.heal("a:1", "log")
        await world.until(lambda: one.state() is State.ASSIGNING, 3, "it is assigned after all")
        await one.hand.accept(Action.RETURN, one.bundle, B)
        assert (await lookup).owner == B
