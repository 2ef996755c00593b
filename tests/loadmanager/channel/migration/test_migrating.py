"""A cluster moves to another log: the same owners by name, later tokens, never two owners, whatever interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from loadmanager.channel.migration.export import decode, encode, export_of
from loadmanager.channel.migration.move import Moved, Place, migrate, restore
from loadmanager.diagnostics.topics import topics_of
from loadmanager.errors import Conflict
from loadmanager.settings import Settings
from statechannel.errors import CoordinationUnavailable, ForeignCluster, LogRetired, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Token
from statechannel.law.transitions import State
from statechannel.ports import Payload
from tests.loadmanager.channel.migration.channels import TERMS, Stores, exported, owners, replaced, two_namespaces
from tests.loadmanager.small_world import QUICK, Nodes, Started, virtually
from tests.simulator.loop import Process
from tests.simulator.network import NO_FAULTS, Faults
from tests.simulator.world import World

SETTINGS = QUICK.model_copy(update={"cluster": "shop", "partitions": 2})
HERE = replaced(TERMS, partitions=3)
BUNDLES = 8


class Cluster:
    """Brokers on the stores of the world, which can be exchanged once they are stopped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.old, self.new = Stores(world, "old"), Stores(world, "new")
        self.nodes = Nodes(world, SETTINGS)
        self.said: list[str] = []
        self.run_on(self.old)

    def run_on(self, stores: Stores, settings=SETTINGS) -> None:
        """From now on brokers are started on these."""
        self.world.log, self.world.coordination = stores.log, stores.coordination
        self.nodes = Nodes(self.world, settings)

    async def start(self, *names: str) -> list[Started]:
        return await self.nodes.ready(*names)

    async def settled(self, by: Started) -> dict[Bundle, str | None]:
        """The owners, once all bundles are at rest."""
        table = by.node.channel.table

        def at_rest() -> bool:
            present = {started.node.current.me for started in self.nodes.by_name.values()}
            return all(entry.state is State.ASSIGNED and entry.holder in present for entry in table)

        await self.world.until(at_rest, 20, "all are owned by somebody who is there")
        return owners(table)

    async def filled(self, *names: str) -> tuple[dict[Bundle, str | None], dict[Bundle, Token]]:
        """A cluster that ran and was stopped: its owners, and the tokens."""
        started = await self.start(*names)
        bundles = await self.nodes.own_all(BUNDLES, started[0])
        for index, bundle in enumerate(bundles):
            to = started[index % len(started)].name
            if to != started[0].name:
                await started[0].ask(lambda b=bundle, to=to: started[0].node.current.operations.transfer(b, to))
        where = await self.settled(started[0])
        table = started[0].node.channel.table
        tokens = {entry.bundle: table.token(entry) for entry in table}
        await self.stop(*started)
        return where, tokens

    async def stop(self, *started: Started) -> None:
        """Kill them, and wait for the ends of their sessions: what a drain does is in the tests of drains."""
        for each in started:
            self.world.crash(each.name)
            del self.nodes.by_name[each.name]
        place = await self.old.place()
        await self.world.until(lambda: not place.coordination.members, 10, "the sessions are over")

    async def migrated(self, old: Place | None = None, new: Place | None = None, terms=HERE) -> Moved:
        old, new = old or await self.old.place(), new or await self.new.place()
        topics = topics_of(SETTINGS.model_copy(update={"partitions": terms.partitions}))
        return await migrate(old, new, terms, topics, say=self.said.append)


async def ends_with(process: Process, world: World, error: type[Exception]) -> str:
    await world.until(lambda: process.dead, 20, "it ends")
    failure: BaseException | None = process.failure
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, error), failure
    return str(failure)


@virtually
async def test_every_bundle_is_at_the_broker_of_the_same_name_with_a_later_token(world: World):
    cluster = Cluster(world)
    where, tokens = await cluster.filled("a:1", "b:1", "c:1")
    assert len(set(where.values())) == 3
    moved = await cluster.migrated()
    assert (moved.generation, moved.bundles, sum(moved.owners.values())) == (1, BUNDLES, BUNDLES)
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
    started = await cluster.start("a:1", "b:1", "c:1")
    assert await cluster.settled(started[1]) == where
    table = started[1].node.channel.table
    assert table.partitions == 3
    for entry in table:
        assert entry.holder is not None
        assert entry.holder == next(s.node.current.me for s in started if s.name == entry.holder.name)
        assert table.token(entry) > tokens[entry.bundle]


@virtually
async def test_no_broker_starts_on_the_old_log_again_and_is_told_where_to_go(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    await cluster.migrated()
    again = cluster.nodes.start("b:1")
    assert "start with --log log new" in await ends_with(again.process, world, LogRetired)


@virtually
async def test_brokers_that_are_registered_are_named_and_nothing_is_touched(world: World):
    cluster = Cluster(world)
    started = await cluster.start("a:1", "b:1")
    await cluster.nodes.own_all(4, started[0])
    with pytest.raises(Conflict, match=r"registered in coordination old: a:1, b:1. Stop these brokers"):
        await cluster.migrated()
    assert all(started.node.ready.is_set() for started in started)
    assert cluster.new.records() == []


@virtually
async def test_it_waits_for_those_who_leave(world: World):
    cluster = Cluster(world)
    started = await cluster.start("a:1", "b:1")
    await cluster.nodes.own_all(4, started[0])
    waiting = asyncio.ensure_future(cluster.migrated(terms=replaced(HERE, wait_s=30.0)))
    for each in started:
        await asyncio.sleep(1)
        each.process.run(each.node.stop)
    assert (await waiting).bundles == 4


@virtually
async def test_moving_again_after_it_was_done_changes_nothing(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    first = await cluster.migrated()
    before = (cluster.old.records(), cluster.new.records())
    again = await cluster.migrated()
    assert (again.was_done, again.identity, again.bundles) == (True, first.identity, BUNDLES)
    assert (cluster.old.records(), cluster.new.records()) == before


@virtually
async def test_moving_again_while_the_cluster_runs_on_the_new_log_changes_nothing(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    await cluster.migrated()
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
    [a] = await cluster.start("a:1")
    await cluster.settled(a)
    assert (await cluster.migrated()).was_done
    assert a.node.ready.is_set()


@virtually
async def test_a_process_that_slept_through_all_of_it_serves_nothing_when_it_wakes(world: World):
    cluster = Cluster(world)
    a, b = await cluster.start("a:1", "b:1")
    bundles = await cluster.nodes.own_all(BUNDLES, a)
    await cluster.settled(a)
    world.pause("a:1")
    world.crash("b:1")
    await cluster.migrated(terms=replaced(HERE, wait_s=20.0))
    assert a.node.serving is not None
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
    [c] = await cluster.start("c:1")
    assert set((await cluster.settled(c)).values()) == {"c:1"}
    world.resume("a:1")
    assert not any(a.process.run(a.node.serving.serving, bundle) for bundle in bundles)
    await ends_with(a.process, world, LogRetired)
    assert b.process.dead


@virtually
async def test_process_that_never_returned_has_no_proof_in_the_new_cluster(world: World):
    """Cut off from the coordination service it serves on by the channel, which says nothing more once it is closed."""
    cluster = Cluster(world)
    [a] = await cluster.start("a:1")
    bundles = await cluster.nodes.own_all(BUNDLES, a)
    await cluster.settled(a)
    world.cut("a:1", "coordination")
    place = await cluster.old.place()
    await world.until(lambda: not place.coordination.members, 10, "its session is over")
    assert a.node.serving is not None
    assert a.process.run(a.node.serving.serving, bundles[0]), "it has proofs of the channel"
    await cluster.migrated()
    assert a.process.dead or not a.process.run(a.node.serving.serving, bundles[0])
    assert "was moved to" in await ends_with(a.process, world, LogRetired)


@pytest.mark.parametrize("cut_off_again", [False, True])
def test_process_that_returns_at_the_worst_moment_has_no_proof_at_the_end(cut_off_again: bool):
    """Right before its number is raised it registers again and gets a proof, and does not read that the log closed."""

    async def story(world: World) -> None:
        cluster = Cluster(world)
        [a] = await cluster.start("a:1")
        bundles = await cluster.nodes.own_all(BUNDLES, a)
        await cluster.settled(a)
        serving = a.node.serving
        assert serving is not None
        world.cut("a:1", "log")
        world.pause("a:1")
        old = await cluster.old.place()
        start = old.coordination.start_incarnation

        async def in_the_worst_moment(name: str, above: int) -> BrokerId:
            world.resume("a:1")
            await world.until(lambda: a.process.run(serving.serving, bundles[0]), 5, "it has a proof, and serves")
            if cut_off_again:
                world.cut("a:1", "coordination")
            return await start(name, above)

        old.coordination.start_incarnation = in_the_worst_moment  # type: ignore[method-assign]
        await cluster.migrated(old, terms=replaced(HERE, wait_s=20.0))
        assert not any(a.process.run(serving.serving, bundle) for bundle in bundles)
        world.heal("a:1", "coordination")
        await asyncio.sleep(3)
        assert not any(a.process.run(serving.serving, bundle) for bundle in bundles)
        world.heal("a:1", "log")
        await ends_with(a.process, world, LogRetired)

    virtually(story)()


# --- interruptions


class Interrupted(Exception):
    pass


class Counting:
    """Ends a migration before its n-th write to any of the stores."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.writes = 0

    def _count(self) -> None:
        self.writes += 1
        if self.writes == self.at:
            raise Interrupted

    def watch(self, place: Place) -> Place:
        append, start = place.log.append, place.coordination.start_incarnation
        identify = place.coordination.identify

        async def appending(topic: str, partition: int, payloads: Sequence[Payload]) -> None:
            self._count()
            await append(topic, partition, payloads)

        async def starting(name: str, above: int) -> BrokerId:
            self._count()
            return await start(name, above)

        async def identifying(cluster: str, log_identity: str, root: str | None = None) -> str:
            self._count()
            return await identify(cluster, log_identity, root)

        place.log.append = appending  # type: ignore[method-assign]
        place.coordination.start_incarnation = starting  # type: ignore[method-assign]
        place.coordination.identify = identifying  # type: ignore[method-assign]
        return place


@pytest.mark.slow
def test_interrupted_move_is_resumed_and_the_old_log_works_until_closed():
    async def story(world: World, at: int) -> str:
        cluster = Cluster(world)
        where, tokens = await cluster.filled("a:1", "b:1")
        counting = Counting(at)
        try:
            await cluster.migrated(counting.watch(await cluster.old.place()), counting.watch(await cluster.new.place()))
        except Interrupted:
            pass
        else:
            return "done"
        closed = any(record.action is Action.RETIRE for record in cluster.old.records())
        if not closed:
            [c] = await cluster.start("c:1")
            assert set((await cluster.settled(c)).values()) == {"c:1"}
            where = dict.fromkeys(where, "c:1")
            await cluster.stop(c)
        await cluster.migrated()
        cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
        started = await cluster.start("a:1", "b:1", "c:1")
        assert await cluster.settled(started[0]) == where
        table = started[0].node.channel.table
        assert all(table.token(entry) > tokens[entry.bundle] for entry in table)
        return "closed" if closed else "open"

    found: list[str] = []
    for at in range(1, 40):
        with World(at) as world:
            found.append(world.run(story(world, at)))
        if found[-1] == "done":
            break
    assert found[-1] == "done"
    assert found == sorted(found, key=["open", "closed", "done"].index), "first what does no harm"
    assert found.count("open") >= 3
    assert found.count("closed") >= 5


@pytest.mark.slow
def test_move_over_a_lossy_network_is_repeated_until_it_is_done():
    async def story(world: World) -> int:
        cluster = Cluster(world)
        where, tokens = await cluster.filled("a:1", "b:1")
        world.network.faults = Faults(lost_request=0.03, lost_answer=0.03, repeated=0.5, repeat_within_s=3.0)
        runs = 0
        while True:
            runs += 1
            try:
                moved = await cluster.migrated()
                break
            except (LogUnavailable, CoordinationUnavailable):
                assert runs < 250  # 13 on average, and each run fails by itself: geometric
        world.network.faults = NO_FAULTS
        assert moved.generation == 1
        cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
        started = await cluster.start("a:1", "b:1")
        assert await cluster.settled(started[0]) == where
        await asyncio.sleep(4)  # what is carried out again, late, came while the new cluster started
        assert await cluster.settled(started[0]) == where
        table = started[0].node.channel.table
        assert all(table.token(entry) > tokens[entry.bundle] for entry in table)
        return runs

    runs: list[int] = []
    for seed in range(15):
        with World(seed) as world:
            runs.append(world.run(story(world)))
    assert max(runs) > 3, "some were interrupted"


@virtually
async def test_a_target_that_fails_before_the_old_log_is_closed_leaves_it_in_use(world: World):
    cluster = Cluster(world)
    where, _ = await cluster.filled("a:1", "b:1")
    new = await cluster.new.place()

    async def unavailable(topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        raise LogUnavailable("no such luck")

    new.log.append = unavailable  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable):
        await cluster.migrated(new=new)
    started = await cluster.start("a:1", "b:1")
    assert await cluster.settled(started[0]) == where


# --- refusals


@virtually
async def test_a_target_in_use_a_foreign_source_and_a_foreign_root_are_refused(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    with pytest.raises(Conflict, match="correct --cluster"):
        await cluster.migrated(terms=replaced(HERE, cluster="shed"))
    other = Stores(world, "other")
    with pytest.raises(Conflict, match="belongs to no cluster"):
        await cluster.migrated(old=await other.place())
    mixed = replaced(await cluster.old.place(), coordination=(await other.place()).coordination)
    with pytest.raises(Conflict, match="no broker was ever registered there; give --from-coordination"):
        await cluster.migrated(old=mixed)
    await (await other.place()).coordination.identify("shed", "x")
    mixed = replaced(await cluster.old.place(), coordination=(await other.place()).coordination)
    with pytest.raises(ForeignCluster):
        await cluster.migrated(old=mixed)
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"cluster": "else", "partitions": 3}))
    [b] = await cluster.start("b:1")
    with pytest.raises(Conflict, match="it belongs to cluster 'else', generation 0"):
        await cluster.migrated()
    assert b.node.ready.is_set()
    assert not any(record.action is Action.RETIRE for record in cluster.old.records())


@virtually
async def test_moved_log_cannot_move_again_but_can_still_be_exported(world: World):
    cluster, third = Cluster(world), Stores(world, "third")
    where, _ = await cluster.filled("a:1")
    await cluster.migrated()
    with pytest.raises(Conflict, match="was moved to log new already"):
        await cluster.migrated(new=await third.place())
    assert third.records() == []
    export = export_of((await cluster.old.folded()).table, {}, "log old", 5)
    assert export.moved_to == "log new"
    with pytest.raises(Conflict, match="generation 1 is not above 1, which was used already"):
        await restore(export, "f00d", await third.place(), HERE, generation=1, say=lambda text: None)
    moved = await restore(export, "f00d", await third.place(), HERE, say=lambda text: None)
    assert moved.generation == 2, "the log that was lost gave out tokens of 1"
    table = (await third.folded()).table
    assert not table.import_is_unfinished
    assert owners(table) == where


# --- what brokers agree on


async def words(stores: Stores) -> list[Agreement | None]:
    table = (await stores.folded()).table
    return [table.agreed(partition).agreement for partition in range(table.partitions)]


def given(**values: float) -> Settings:
    """Settings in which these were given, as on a command line."""
    all_given: dict[str, Any] = {name: getattr(SETTINGS, name) for name in SETTINGS.model_fields_set} | values
    return Settings.model_construct(**all_given)


async def root_of(stores: Stores) -> str:
    identity = await (await stores.place()).coordination.identity()
    assert identity is not None
    return identity.root


@virtually
async def test_new_log_names_root_and_old_values_before_any_broker_starts(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1", "b:1")
    [before, _] = await words(cluster.old)
    assert before is not None
    await cluster.migrated()
    expected = replaced(before, root=await root_of(cluster.new), partitions=3)
    assert await words(cluster.new) == [expected] * 3
    cluster.run_on(cluster.new, given(proof_validity_s=1.0, partitions=3))
    refusal = await ends_with(cluster.nodes.start("a:1").process, world, ForeignCluster)
    assert f"proof_validity_s is {before.proof_validity_s} in the log and 1.0 here" in refusal
    cluster.nodes.by_name.clear()
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": 3}))
    [b] = await cluster.start("b:1")
    assert b.node.ready.is_set()


@virtually
async def test_what_was_given_for_the_new_cluster_is_in_the_new_log(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    await cluster.migrated(
        terms=replaced(HERE, wanted=lambda before, root: replaced(before, root=root, proof_validity_s=1.5))
    )
    assert {word.proof_validity_s for word in await words(cluster.new) if word is not None} == {1.5}


@virtually
async def test_a_log_that_says_nothing_of_it_makes_one_that_says_nothing_of_it(world: World):
    stores, book = Stores(world, "new"), two_namespaces()
    await restore(exported(book), "f00d", await stores.place(), TERMS, say=lambda text: None)
    assert set(await words(stores)) == {None}


@virtually
async def test_it_waits_for_as_long_as_the_log_says_that_a_proof_counts(world: World):
    """Brokers that were given no proof time have the log's, and the command was given none either."""
    cluster = Cluster(world)
    await cluster.filled("a:1")
    await cluster.migrated(terms=replaced(HERE, validity_s=0.1, margin_s=0.0))
    [word, *_] = await words(cluster.old)
    assert word is not None
    waited = f"waiting {word.proof_validity_s + word.margin_s:.1f} s until no proof of the old cluster counts"
    assert waited in cluster.said
    assert word.proof_validity_s > 0.1


@virtually
async def test_a_backup_is_restored_with_what_brokers_agreed_on(world: World):
    cluster = Cluster(world)
    await cluster.filled("a:1")
    export = decode(encode(export_of((await cluster.old.folded()).table, {}, "log old", 5)))
    [before, _] = await words(cluster.old)
    assert before is not None
    await restore(export, "f00d", await cluster.new.place(), HERE, say=lambda text: None)
    assert await words(cluster.new) == [replaced(before, root=await root_of(cluster.new), partitions=3)] * 3


# --- backup and restore


@virtually
async def test_cluster_from_a_backup_of_a_lost_log_has_later_tokens(world: World):
    cluster = Cluster(world)
    a, b = await cluster.start("a:1", "b:1")
    bundles = await cluster.nodes.own_all(BUNDLES, a)
    backup = export_of((await cluster.old.folded()).table, {}, "log old", 5)
    for bundle in bundles[:3]:  # what the backup does not know
        await a.ask(lambda bundle=bundle: a.node.current.operations.transfer(bundle, "b:1"))
    await cluster.settled(a)
    table = a.node.channel.table
    given = {entry.bundle: table.token(entry) for entry in table}
    await cluster.stop(a, b)
    await restore(backup, "f00d", await cluster.new.place(), HERE, say=lambda text: None)
    cluster.run_on(cluster.new, SETTINGS.model_copy(update={"partitions": None}))
    started = await cluster.start("a:1", "b:1")
    assert set((await cluster.settled(started[0])).values()) == {"a:1"}, "as of the backup"
    table = started[0].node.channel.table
    assert all(table.token(entry) > given[entry.bundle] for entry in table)
    for bundle in bundles:
        assert cluster.nodes.serving(bundle) == ["a:1"]
