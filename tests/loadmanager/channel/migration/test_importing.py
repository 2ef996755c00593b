"""A new log is filled once, by one import, whole or not at all; nobody starts on a part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.log_import import HIGHEST_GENERATION, Import
from loadmanager.channel.migration.move import Moved, restore
from loadmanager.channel.migration.offline_log import TOPIC
from loadmanager.errors import Conflict
from statechannel.errors import CoordinationUnavailable, ForeignCluster, LogUnavailable, StateChannelError
from statechannel.law.record import Action, BrokerId, Record
from statechannel.ports import Identity, Payload
from statechannel.runtime.channel import Channel, ChannelSettings
from statechannel.runtime.core import ChannelCore
from tests.loadmanager.channel.migration.channels import (
    TERMS,
    Stores,
    begun,
    book_of,
    exported,
    owners,
    replaced,
    two_namespaces,
)
from tests.loadmanager.small_world import virtually
from tests.simulator.network import Faults
from tests.simulator.world import World

SEAL = "f00d"


async def imported(stores: Stores, export: Export, seal: str = SEAL, **more) -> Moved:
    return await restore(export, seal, await stores.place(), TERMS, say=lambda text: None, **more)


async def refused(stores: Stores, export: Export, **more) -> str:
    with pytest.raises((Conflict, StateChannelError)) as caught:
        await imported(stores, export, **more)
    return str(caught.value)


async def claim(stores: Stores, cluster: str = "shop") -> str:
    """Start a channel on this log as a broker does; the identity of the log that it found."""
    place = await stores.place()
    channel = Channel(place.log, ChannelSettings(publish_timeout_s=1.0), nonce="late", wall_ms=lambda: 1)
    await channel.open()
    async with channel.running():
        await channel.catch_up(5)
        try:
            return (await channel.claim_cluster(cluster, BrokerId("late:1", 0))).identity
        except StateChannelError as error:
            refusal = error
    raise refusal


# --- filling


@virtually
async def test_a_new_log_says_what_the_export_says_under_the_next_generation(world: World):
    book, stores = two_namespaces(), Stores(world, "new")
    moved = await imported(stores, exported(book))
    assert (moved.cluster, moved.generation, moved.bundles, moved.was_done) == ("shop", 4, 11, False)
    assert moved.owners == {"a:1": 4, "b:1": 4}
    table = (await stores.folded()).table
    assert owners(table) == owners(book.table)
    assert table.cluster_identity is not None
    assert table.cluster_identity.identity == moved.identity
    assert await claim(stores) == moved.identity


@virtually
async def test_the_coordination_root_belongs_to_the_new_log_then(world: World):
    stores = Stores(world, "new")
    moved = await imported(stores, exported(two_namespaces()))
    place = await stores.place()
    await place.coordination.identify("shop", moved.identity)
    with pytest.raises(ForeignCluster):
        await place.coordination.identify("shop", "another")


@virtually
async def test_the_same_import_again_changes_nothing(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    first = await imported(stores, export)
    before = stores.records()
    again = await imported(stores, export)
    assert (again.was_done, again.identity) == (True, first.identity)
    assert stores.records() == before


def test_random_exports_arrive_over_a_network_that_loses_messages():
    async def story(world: World, seed: int) -> None:
        book, stores = book_of(seed, 100), Stores(world, "new")
        world.network.faults = Faults(lost_request=0.02, lost_answer=0.03, repeated=0.5, repeat_within_s=2.0)
        for _ in range(60):
            try:
                await imported(stores, exported(book))
                break
            except (LogUnavailable, CoordinationUnavailable):
                continue
        world.network.faults = Faults()
        await asyncio.sleep(3)
        table = (await stores.folded()).table
        assert not table.import_is_unfinished
        assert owners(table) == owners(book.table)

    for seed in range(25):
        with World(seed) as world:
            world.run(story(world, seed))


# --- interruptions


class Interrupted(Exception):
    pass


async def interrupted(stores: Stores, export: Export, at: int) -> bool:
    """An import that ends before its n-th append; whether it came to that."""
    place, count = await stores.place(), 0
    append = place.log.append

    async def counted(topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Interrupted
        await append(topic, partition, payloads)

    place.log.append = counted  # type: ignore[method-assign]
    try:
        await restore(export, SEAL, place, TERMS, say=lambda text: None)
    except Interrupted:
        return True
    return False


def test_interrupted_import_lets_nobody_start_and_is_ended_by_the_same_one():
    async def story(world: World, at: int) -> bool:
        book, stores = two_namespaces(), Stores(world, "new")
        if not await interrupted(stores, exported(book), at):
            return False
        if stores.records():
            with pytest.raises(LogUnavailable, match="being filled by an import"):
                await claim(stores)
        moved = await imported(stores, exported(book))
        assert not moved.was_done
        table = (await stores.folded()).table
        assert owners(table) == owners(book.table)
        assert await claim(stores) == moved.identity
        return True

    cuts = 0
    for at in range(1, 30):
        with World(at) as world:
            if not world.run(story(world, at)):
                break
        cuts += 1
    assert cuts >= 5


@virtually
async def test_a_broker_that_is_there_too_early_starts_once_the_import_is_done(world: World):
    book, stores = two_namespaces(), Stores(world, "new")
    assert await interrupted(stores, exported(book), 3)
    place = await stores.place()
    channel = Channel(place.log, ChannelSettings(publish_timeout_s=1.0), nonce="early", wall_ms=lambda: 1)
    await channel.open()
    async with channel.running():
        await channel.catch_up(5)
        with pytest.raises(LogUnavailable, match="wait for it, or run it again"):
            await channel.claim_cluster("shop", BrokerId("early:1", 0))
        await imported(stores, exported(book))
        await channel.catch_up(5)
        assert (await channel.claim_cluster("shop", BrokerId("early:1", 0))).generation == 4
    assert owners((await stores.folded()).table) == owners(book.table)


@virtually
async def test_the_rest_of_an_import_is_not_that_of_another_file(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    assert await interrupted(stores, export, 4)
    before = stores.records()
    assert "filled in part by another import" in await refused(stores, export, seal="beef")
    assert "began there with that generation, not 9" in await refused(stores, export, generation=9)
    assert stores.records() == before


# --- refusals


@virtually
async def test_a_log_that_is_not_empty_is_refused_with_what_stands_there(world: World):
    stores = Stores(world, "new")
    await stores.hold(begun_by_a_broker := two_namespaces())
    before = stores.records()
    found = await refused(stores, exported(begun_by_a_broker))
    assert "it belongs to cluster 'shop', generation 3" in found
    assert "choose another" in found
    assert stores.records() == before


@virtually
async def test_a_log_on_which_a_cluster_runs_since_an_import_is_refused(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    await imported(stores, export)
    place = await stores.place()
    channel = Channel(place.log, ChannelSettings(publish_timeout_s=1.0), nonce="late", wall_ms=lambda: 1)
    await channel.open()
    async with channel.running():
        await channel.read_back(0, BrokerId("late:1", 1))
    assert "needs a new, empty log" in await refused(stores, export)


@virtually
async def test_a_log_with_somebodys_leftovers_is_refused(world: World):
    stores = Stores(world, "new")
    folded = await stores.folded()
    await folded.log.append(TOPIC, 0, [Payload(None, b"?")])
    assert "belongs to no cluster" in await refused(stores, exported(two_namespaces()))


@virtually
async def test_foreign_cluster_or_old_generation_is_refused_and_writes_nothing(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    foreign = replaced(export, cluster_identity=replaced(export.cluster_identity, cluster="shed"))
    assert "of cluster 'shed', not 'shop'" in await refused(stores, foreign)
    assert "generation 3 is not above 3, which was used already" in await refused(stores, export, generation=3)
    last = replaced(export, cluster_identity=replaced(export.cluster_identity, generation=HIGHEST_GENERATION))
    assert "above 9999" in await refused(stores, last)
    assert stores.records() == []


@virtually
async def test_root_of_another_log_is_refused_and_another_root_is_accepted(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    await (await stores.place()).coordination.identify("shop", "the lost log")
    assert "the lost log" in await refused(stores, export)
    other = Stores(world, "other")
    other.log = stores.log
    assert (await imported(other, export)).bundles == 11


@virtually
async def test_nobody_may_be_registered_in_the_new_root_or_in_that_of_the_lost_log(world: World):
    stores, lost, export = Stores(world, "new"), Stores(world, "lost"), exported(two_namespaces())
    await (await lost.place()).coordination.identify("shop", export.cluster_identity.identity)
    for where, more in ((stores, {}), (lost, {"old": True})):
        place = await where.place()
        broker = await place.coordination.start_incarnation("b:1", 5)
        await place.coordination.register(broker, b"")
        if more:
            more = {"old": ((await lost.place()).coordination, "coordination lost")}
        found = await refused(stores, export, **more)
        assert f"registered in coordination {where.name}: b:1" in found
        assert "Stop these brokers" in found
        await place.coordination.close()
    assert stores.records() == []


@virtually
async def test_a_root_that_cannot_be_that_of_the_lost_log_is_refused(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    for tied, found in (
        (None, "belongs to no cluster: no broker was ever registered there"),
        (Identity("shed", "import-3-ab"), "belongs to cluster 'shed', not to 'shop'"),
        (Identity("shop", "import-2-ab"), "generation 2, older than the export's"),
        (Identity("shop", "import-4-ab"), "a new one of generation 4 would give out its tokens again"),
    ):
        coordination = (await Stores(world, f"lost {tied}").place()).coordination
        if tied is not None:
            tied = Identity(tied.cluster, tied.log, await coordination.identify(tied.cluster, tied.log))
        assert found in await refused(stores, export, old=(coordination, "coordination lost"))
        assert await coordination.identity() == tied, "nothing was changed there either"
    assert stores.records() == []


@virtually
async def test_the_root_of_a_later_log_will_do_if_the_generation_is_above_that_one(world: World):
    stores, lost, export = Stores(world, "new"), Stores(world, "lost"), exported(two_namespaces())
    coordination = (await lost.place()).coordination
    await coordination.identify("shop", "import-4-ab")
    moved = await imported(stores, export, generation=5, old=(coordination, "coordination lost"))
    assert moved.generation == 5


@virtually
async def test_root_of_the_lost_log_fences_old_incarnations_before_any_assignment(world: World):
    stores, lost, export = Stores(world, "new"), Stores(world, "lost"), exported(two_namespaces())
    await (await lost.place()).coordination.identify("shop", export.cluster_identity.identity)
    began_s = world.now_s
    await imported(stores, export, old=((await lost.place()).coordination, "coordination lost"))
    assert world.now_s - began_s >= 2.1
    assert await (await lost.place()).coordination.start_incarnation("a:1", 0) == BrokerId("a:1", 6)


@virtually
async def test_a_broker_that_writes_its_genesis_first_keeps_the_log(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    target = await stores.folded("import x")
    work = Import(target, "shop", 4)
    work.check()
    identity = await claim(stores)
    with pytest.raises(Conflict, match="it belongs to cluster 'shop', generation 0"):
        await work.claim((await stores.place()).coordination)
    assert await claim(stores) == identity
    assert len((await stores.folded()).table) < export.bundles


@virtually
async def test_who_writes_to_a_log_that_is_being_filled_stops_the_import(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    target = await stores.folded(f"import {SEAL}")
    work = Import(target, "shop", 4)
    await work.claim((await stores.place()).coordination)
    await (await stores.folded()).append(0, [Record("r", Action.NOOP, BrokerId("old-release:1", 1))])
    with pytest.raises(Conflict, match="another import"):
        await work.fill(export)
    assert (await stores.folded()).table.import_is_unfinished


@virtually
async def test_a_log_that_is_not_as_the_export_stays_closed(world: World):
    stores, export = Stores(world, "new"), exported(two_namespaces())
    target = await stores.folded(f"import {SEAL}")
    work = Import(target, "shop", 4)
    await work.claim((await stores.place()).coordination)
    with pytest.raises(Conflict, match="stays closed"):
        await work.finish(export)
    assert (await stores.folded()).table.import_is_unfinished


@virtually
async def test_a_mark_survives_snapshots(world: World):
    table = ChannelCore(2, 2).table
    for state in (begun(2).table.cut(0), begun(2).table.cut(1)):
        table.restore(state)
    assert table.import_is_unfinished
