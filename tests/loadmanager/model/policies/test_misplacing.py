"""The difference that policies make: which of all bundles must leave, however cold they are."""

from __future__ import annotations

import msgspec

from loadmanager.model.policies.constraints import kept_apart, misplaced, with_policies
from loadmanager.model.policies.model import (
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    IsolationPolicy,
    NamespacePolicy,
    Policies,
)
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action
from statechannel.law.table import OwnershipTable
from tests.loadmanager.counting import counted
from tests.loadmanager.model.policies.small_fleet import brokers
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World

SETTINGS = Settings()
ISOLATED = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("a:1",))})


def wrong(policies: Policies, table: OwnershipTable) -> set[Bundle]:
    fleet = with_policies(policies, brokers((A.name, B.name, "c:1")))
    found = list(misplaced(policies, fleet, table, SETTINGS))
    assert len(found) == len({bundle for bundle, _ in found}), "each once"
    assert all(table.get(bundle).holder == holder for bundle, holder in found)  # type: ignore[union-attr]
    return {bundle for bundle, _ in found}


@virtually
async def test_only_what_a_rule_forbids_is_misplaced(world: World):
    async with replica(world) as channel:
        hand, table = Hand(channel), channel.table
        on_a, on_b, moving, nobodys = await hand.create(4, "pay/x")
        (shared,) = await hand.create(1, "shop/x")
        for bundle, broker in ((on_a, A), (on_b, B), (moving, B), (shared, B)):
            await hand.assign(bundle, broker)
        await hand.accept(Action.TRANSFER, moving, B, A)
        assert wrong(Policies(), table) == set()
        assert wrong(ISOLATED, table) == {on_b}
        pinned = msgspec.structs.replace(ISOLATED, bundles={on_a: BundlePolicy(pin=B.name)})
        assert wrong(pinned, table) == {on_b, on_a}
        assert wrong(Policies(bundles={on_a: BundlePolicy(exclude=(A.name,))}), table) == {on_a}
        assert wrong(Policies(brokers={B.name: BrokerPolicy(drain=True)}), table) == {on_b, shared}
        assert nobodys not in wrong(ISOLATED, table)


@virtually
async def test_what_is_paused_or_quarantined_stays(world: World):
    async with replica(world) as channel:
        hand, table = Hand(channel), channel.table
        (bundle,) = await hand.create(1, "pay/x")
        await hand.assign(bundle, B)
        assert wrong(ISOLATED, table) == {bundle}
        for held in (
            msgspec.structs.replace(ISOLATED, cluster=ClusterPolicy(paused=True)),
            msgspec.structs.replace(ISOLATED, namespaces={"pay/x": NamespacePolicy(paused=True)}),
            msgspec.structs.replace(ISOLATED, bundles={bundle: BundlePolicy(quarantined="3 died")}),
        ):
            assert wrong(held, table) == set()


@virtually
async def test_what_is_merely_tolerated_where_it_is_stays(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create(1, "pay/x")
        await hand.assign(bundle, A)
        fleet = brokers((A.name, B.name), versions={B.name: "2.0"})
        newest = Settings(prefer_later_versions=True)
        assert list(misplaced(ISOLATED, fleet, channel.table, newest)) == []
        either = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("a:1", "b:1"))})
        assert list(misplaced(either, fleet, channel.table, newest)) == [], "the older release"


@virtually
async def test_all_assigned_bundles_of_namespaces_that_share_a_group_are_looked_at(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        one, moving, _ = await hand.create(3, "db/one")
        (two,) = await hand.create(1, "db/two")
        (alone,) = await hand.create(1, "web/one")
        for bundle in (one, moving, two, alone):
            await hand.assign(bundle, A)
        await hand.accept(Action.TRANSFER, moving, A, B)
        groups = {"db/one": "db", "db/two": "db", "db/gone": "db", "web/one": "web"}
        policies = Policies(
            namespaces={name: NamespacePolicy(anti_affinity_group=group) for name, group in groups.items()}
        )
        fleet = brokers((A.name, B.name))
        assert set(kept_apart(policies, fleet, channel.table)) == {(one, A), (two, A)}
        assert list(kept_apart(policies, brokers((B.name,)), channel.table)) == []


@virtually
async def test_a_look_at_many_bundles_takes_a_time_that_a_round_can_spare(world: World):
    async with replica(world) as channel:
        hand = Hand(channel)
        for at in range(10):
            await hand.create(2_000, f"pay/x{at}")
        found, calls = counted(lambda: wrong(ISOLATED, channel.table))
        assert found == set()
        assert calls < 10 * 20_000
