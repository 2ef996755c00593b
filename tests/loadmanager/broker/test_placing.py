"""Placement as one broker does it: bursts spread evenly, in a time that grows with the burst, not with its square."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from loadmanager.broker.placing import Placing
from loadmanager.cluster.fitness import DECLINED, SEVERAL, Fitness
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.views import Views
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.policies.model import NO_POLICIES, BrokerPolicy, NamespacePolicy, Policies
from loadmanager.settings import Settings
from loadmanager.strategies.placement.placement import Roster
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition
from statechannel.ports import Connection
from tests.loadmanager.small_world import A, B, C, Hand, membership_of, process, replica, virtually
from tests.simulator.world import World


def placing(
    world: World,
    hand: Hand,
    *brokers: BrokerId,
    policies: Policies = NO_POLICIES,
    settings: Settings | None = None,
    membership: Membership | None = None,
    **more: Any,
) -> Placing:
    views = Views(world.log_client(process(world, "views")), Settings.model_construct(), world.wall_ms)
    placement = PLACEMENTS.make("least-loaded")
    chosen = settings or Settings.model_construct()
    seen = membership or membership_of(*brokers)
    return Placing(A, hand.channel.table, seen, views, placement, lambda: policies, lambda: chosen, **more)


@virtually
async def test_a_burst_is_spread_evenly_before_the_table_shows_any_of_it(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(90)
        one = placing(world, hand, A, B, C)
        got = Counter(one.place_all([hand.entry(bundle)])[0] for bundle in bundles)
        assert set(got.values()) <= {29, 30, 31}
        assert set(got) == {A, B, C}


@virtually
async def test_placements_after_a_look_do_not_look_again(world: World):
    """The leader looks in one turn of the loop and places in the next: each is bounded by itself."""
    async with replica(world) as channel:
        hand = Hand(channel)
        entries = [hand.entry(bundle) for bundle in await hand.create(20)]
        one = placing(world, hand, *(BrokerId(f"b-{n}:1", 1) for n in range(200)))
        assert one.look()
        looked = one._permitting
        assert not one.look(), "nothing has changed"
        assert None not in one.place_many(entries, [None] * len(entries))
        assert one._permitting is looked


@virtually
async def test_asking_twice_for_one_bundle_counts_once(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        first, *_ = await hand.create(2)
        one = placing(world, hand, A, B)
        for _ in range(5):
            one.place_all([hand.entry(first)])[0]
        assert sum(one._pending.values()) == 1


@virtually
async def test_what_the_table_shows_is_not_counted_twice(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        first, second = await hand.create(2)
        one = placing(world, hand, A, B)
        to = one.place_all([hand.entry(first)])[0]
        assert to is not None
        await hand.accept(Action.OWN, first, A, to)
        assert one.place_all([hand.entry(second)])[0] not in (None, to), (
            "it sees one bundle there, not two, and none elsewhere"
        )
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
        assert all(one.place_many([entry], ["a:1"])[0] in (B, C) for entry in entries)
        assert asked < 5_000


@virtually
async def test_many_at_once_are_placed_as_one_after_the_other(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(64)
        for bundle in bundles[:40]:
            await hand.assign(bundle, A)
        entries = [hand.entry(bundle) for bundle in bundles]
        restarted = BrokerId("a:1", 2)
        singly = placing(world, hand, restarted, B, C)
        world.crash("views")
        together = placing(world, hand, restarted, B, C)
        expected = [singly.place_many([entry], ["a:1"])[0] for entry in entries]
        assert (
            together.place_many(entries[:50], ["a:1"] * 50) + together.place_many(entries[50:], ["a:1"] * 14)
            == expected
        )
        assert together._pending == singly._pending
        assert together.place_many(entries[:3], [None] * 3) == [
            singly.place_many([entry], [None])[0] for entry in entries[:3]
        ]
        assert together._pending == singly._pending


@virtually
async def test_many_of_an_anti_affinity_group_are_spread_as_one_after_the_other(world: World):
    apart = NamespacePolicy(anti_affinity_group="g")
    names = [f"tenant/group-{number}" for number in range(4)]
    policies = Policies(namespaces=dict.fromkeys(names, apart))
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = [bundle for name in names for bundle in await hand.create(2, name)] + list(await hand.create(9))
        entries = [hand.entry(bundle) for bundle in sorted(bundles, key=lambda bundle: bundle.lo)]
        singly = placing(world, hand, A, B, C, policies=policies)
        world.crash("views")
        together = placing(world, hand, A, B, C, policies=policies)
        expected = [singly.place_many([entry], [None])[0] for entry in entries]
        assert together.place_many(entries, [None] * len(entries)) == expected
        first = [owner for entry, owner in zip(entries, expected, strict=True) if entry.bundle.namespace in names][:3]
        assert set(first) == {A, B, C}, "the group is apart"


@virtually
async def test_the_only_broker_gets_none_of_its_own_orphans(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(3)
        for bundle in bundles:
            await hand.assign(bundle, A)
        one = placing(world, hand, A)
        assert one.place_many([hand.entry(bundle) for bundle in bundles], [None] * 3) == [None] * 3


@virtually
async def test_brokers_that_may_take_nothing_are_told_apart_from_none(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create(1)
        membership = membership_of(A, B, C, draining=(A, B))
        membership.suspected = {C: "it does not answer"}
        one = placing(world, hand, membership=membership)
        told = "no broker takes bundles: 2 are draining, 1 is suspected to be down"
        assert one.why_nowhere(hand.entry(bundle)) == told
        membership.saw_members({}, Connection.CONNECTED, 0.0)
        membership.suspected = {}
        assert one.why_nowhere(hand.entry(bundle)) == "no broker is registered"


@virtually
async def test_looking_at_bundles_in_flight_costs_part_of_the_placements_only(world: World):
    """Counted: 800 bundles of a dead broker; the table changes after each ten that are placed."""
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(800)
        for bundle in bundles:
            await hand.assign(bundle, A)
        lead = Record("", Action.LEAD, C, Role.LEADER, epoch=1)
        assert isinstance(await channel.publish(lead, 0), Change)
        subjects = tuple(Subject(bundle, hand.entry(bundle).revision) for bundle in bundles)
        await channel.publish(Record("", Action.REVOKE, C, Role.LEADER, 1, subjects))
        assert len(channel.table.in_state(State.REVOKING)) == 800
        looks = gone_through = walks = 0
        candidates, flights = Roster.candidates, OwnershipTable.flights

        def counting(*arguments):
            nonlocal looks, gone_through
            looks += 1
            gone_through += len(one._given)
            return candidates(*arguments)

        def walking(table):
            nonlocal walks
            walks += 1
            return flights(table)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Roster, "candidates", counting)
            patch.setattr(OwnershipTable, "flights", walking)
            one = placing(world, hand, B, C)
            for begin in range(0, 800, 10):
                some = [hand.entry(bundle) for bundle in bundles[begin : begin + 10]]
                placed = one.place_many(some, [None] * len(some))
                for entry, owner in zip(some, placed, strict=True):
                    assert owner is not None
                    subject = Subject(entry.bundle, entry.revision)
                    record = Record("", Action.RELEASE, C, Role.LEADER, 1, (subject,), owner)
                    assert isinstance(await channel.publish(record), Change)
        assert looks >= 2
        assert walks == 0, "bundles in flight are counted, not walked"
        assert gone_through <= 8 * 800
        held = Counter(hand.entry(bundle).holder for bundle in bundles)
        assert set(held) == {B, C}
        assert max(held.values()) - min(held.values()) <= 40


@virtually
async def test_bundle_that_must_leave_goes_to_another_broker_or_to_nobody(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        assert placing(world, hand, A, B).place_all_elsewhere([hand.entry(bundle)])[0] == B


@virtually
async def test_the_only_broker_can_place_nothing_elsewhere(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        one = placing(world, hand, A)
        assert one.place_all_elsewhere([hand.entry(bundle)]) == [None]


@virtually
async def test_former_name_is_preferred_but_not_the_incarnation_that_lost_it(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        await hand.assign(bundle, A)
        restarted = BrokerId("a:1", 2)
        assert placing(world, hand, restarted, B).place_many([hand.entry(bundle)], ["a:1"])[0] == restarted
        world.crash("views")
        assert placing(world, hand, A, B).place_many([hand.entry(bundle)], ["a:1"])[0] == B


@virtually
async def test_who_could_not_prepare_is_passed_over_once(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        await hand.assign(bundle, A)
        one = placing(world, hand, A, B, C)
        declined = one.place_all_elsewhere([hand.entry(bundle)])[0]
        assert declined is not None
        await hand.accept(Action.TRANSFER, bundle, A, declined)
        await hand.accept(Action.CANCEL, bundle, declined)
        assert one.place_all_elsewhere([hand.entry(bundle)])[0] not in (None, declined)


@virtually
async def test_usage_of_a_broker_uses_policy_capacity_and_weights(world: World):
    policies = Policies(brokers={"a:1": BrokerPolicy(capacity={"cpu": 2.0})})
    load = BrokerLoadData(A, 1, cpu_percent=80.0, in_rate_msg_s=30.0, capacity={"cpu": 8.0, "rate_msg_s": 100.0})
    async with replica(world) as channel:
        hand = Hand(channel)
        laid_down = placing(world, hand, A, policies=policies)._measure()
        assert laid_down(load) == pytest.approx(0.8 * 8 / 2)
        world.crash("views")
        assert placing(world, hand, A)._measure()(load) == pytest.approx(0.8)
        world.crash("views")
        weighted = placing(world, hand, A, settings=Settings.model_construct(weight_cpu=0.0))
        assert weighted._measure()(load) == pytest.approx(0.3)


@virtually
async def test_bundles_that_brokers_were_lost_with_are_drawn_and_the_record_says_from_how_many(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(300)
        entries = [hand.entry(bundle) for bundle in bundles]
        lost_with = set(bundles)
        drawing = placing(world, hand, A, B, C, is_drawn=lost_with.__contains__, drawn_bundles=lambda: bundles)
        got = Counter(drawing.place_all(entries))
        assert set(got) == {A, B, C}
        assert got != Counter({A: 100, B: 100, C: 100}), "at random, not in turn"
        assert min(got.values()) >= 70
        assert {drawing.cause(entry) for entry in entries} == {"drawn:3"}
        lost_with.clear()
        assert None not in drawing.place_all(entries)
        assert {drawing.cause(entry) for entry in entries} == {""}


@virtually
async def test_drawn_bundles_are_kept_apart(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        one, *others = await hand.create(20)
        await hand.assign(one, B)
        drawing = placing(world, hand, A, B, C, is_drawn=lambda _: True, drawn_bundles=lambda: [one])
        entries = [hand.entry(bundle) for bundle in others]
        assert set(drawing.place_all(entries)) == {A, C}
        assert drawing.cause(entries[0]) == "drawn:2"


def unfit(*brokers: BrokerId, after_s: float = 0.0) -> Fitness:
    """Each has failed with bundles of its own; some time later."""
    now_s = [0.0]
    fitness = Fitness(lambda: now_s[0])
    for number, broker in enumerate(brokers):
        for bundle in tile("x/y", even_boundaries(64))[number * SEVERAL : (number + 1) * SEVERAL]:
            entry = Ownership(bundle, State.ASSIGNING, broker, None, 1, 1, Action.OWN, broker)
            record = Record("r", Action.RELEASE, broker, Role.BROKER, reason=DECLINED)
            fitness.observe(Change(0, 2, record, (Transition(entry, entry),)))
    assert fitness.closed() == set(brokers)
    now_s[0] = after_s
    return fitness


@pytest.mark.parametrize(
    ("sick", "after_s", "given"),
    [((B,), 0.0, {A, C}), ((A, B, C), 0.0, {A, B, C}), ((A, B, C), 1_000.0, {A, B, C})],
)
def test_an_unfit_broker_gets_nothing_unless_all_are(sick: tuple[BrokerId, ...], after_s: float, given: set[BrokerId]):
    @virtually
    async def story(world: World):
        async with replica(world) as channel:
            hand = Hand(channel)
            entries = [hand.entry(bundle) for bundle in await hand.create(30)]
            assert set(placing(world, hand, A, B, C, fitness=unfit(*sick, after_s=after_s)).place_all(entries)) == given

    story()


@virtually
async def test_one_bundle_of_a_burst_is_the_trial_of_an_unfit_broker(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        entries = [hand.entry(bundle) for bundle in await hand.create(30)]
        fitness = unfit(B, after_s=1_000.0)
        assert fitness.closed() == frozenset()
        got = Counter(placing(world, hand, A, B, C, fitness=fitness).place_all(entries))
        assert got[B] == 1
        assert fitness.closed() == {B}
