"""Placement as one broker does it: bursts spread evenly, in a time that grows with the burst, not with its square."""

from __future__ import annotations

from collections import Counter

from loadmanager.assignment.registry import PLACEMENTS
from loadmanager.placing import Placing
from loadmanager.settings import Settings
from loadmanager.sim.world import World
from loadmanager.views import Views
from statechannel.record import Action, Broker, Record, Role, Subject
from statechannel.transitions import State
from statechannel.verdict import Change
from tests.loadmanager.small_world import A, B, C, Hand, membership_of, process, replica, virtually


def placing(world: World, hand: Hand, *brokers: Broker) -> Placing:
    views = Views(world.log_client(process(world, "views")), Settings.model_construct(), world.wall_ms)
    return Placing(A, hand.channel.table, membership_of(*brokers), views, PLACEMENTS.make("least-loaded"))


@virtually
async def test_a_burst_is_spread_evenly_before_the_table_shows_any_of_it(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(90)
        place = placing(world, hand, A, B, C).place
        got = Counter(place(hand.entry(bundle)) for bundle in bundles)
        assert set(got.values()) <= {29, 30, 31}
        assert set(got) == {A, B, C}


@virtually
async def test_asking_twice_for_one_bundle_counts_once(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        first, *_ = await hand.create(2)
        one = placing(world, hand, A, B)
        for _ in range(5):
            one.place(hand.entry(first))
        assert sum(one._pending.values()) == 1


@virtually
async def test_what_the_table_shows_is_not_counted_twice(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        first, second = await hand.create(2)
        one = placing(world, hand, A, B)
        to = one.place(hand.entry(first))
        assert to is not None
        await hand.accept(Action.OWN, first, A, to)
        assert one.place(hand.entry(second)) not in (None, to), "it sees one bundle there, not two, and none elsewhere"
        assert one._pending.total() == 1


@virtually
async def test_the_work_of_a_mass_revocation_grows_with_it_not_with_its_square(world: World):
    """Counted, not timed: how often the table is asked."""
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(1_000)
        lead = Record("", Action.LEAD, C, Role.LEADER, epoch=1)
        assert isinstance(await channel.publish(lead, 0), Change)
        for action, by, role, to in ((Action.OWN, A, Role.BROKER, A), (Action.REVOKE, C, Role.LEADER, None)):
            subjects = tuple(Subject(bundle, hand.entry(bundle).revision) for bundle in bundles)
            record = Record("", action, by, role, int(role is Role.LEADER), subjects, to)
            assert isinstance(await channel.publish(record), Change)
        assert len(channel.table.in_state(State.REVOKING)) == 1_000
        one = placing(world, hand, B, C)
        entries = [hand.entry(bundle) for bundle in bundles]
        asked = 0
        get = channel.table.get

        def count(bundle):
            nonlocal asked
            asked += 1
            return get(bundle)

        channel.table.get = count  # type: ignore[method-assign]
        assert all(one.place_preferring(entry, "a:1") in (B, C) for entry in entries)
        assert asked < 5_000


@virtually
async def test_a_bundle_that_must_leave_goes_to_another_and_to_nobody_if_there_is_none(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        assert placing(world, hand, A, B).place_elsewhere(hand.entry(bundle)) == B


@virtually
async def test_nobody_to_place_on_is_said(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        one = placing(world, hand, A)
        assert one.place_elsewhere(hand.entry(bundle)) is None
        assert one.last_refusal


@virtually
async def test_the_former_name_is_preferred_but_never_the_incarnation_that_lost_the_bundle(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        await hand.assign(bundle, A)
        restarted = Broker("a:1", 2)
        assert placing(world, hand, restarted, B).place_preferring(hand.entry(bundle), "a:1") == restarted
        world.crash("views")
        assert placing(world, hand, A, B).place_preferring(hand.entry(bundle), "a:1") == B


@virtually
async def test_who_could_not_prepare_is_passed_over_once(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        await hand.assign(bundle, A)
        one = placing(world, hand, A, B, C)
        declined = one.place_elsewhere(hand.entry(bundle))
        assert declined is not None
        await hand.accept(Action.TRANSFER, bundle, A, declined)
        await hand.accept(Action.CANCEL, bundle, declined)
        assert one.place_elsewhere(hand.entry(bundle)) not in (None, declined)
