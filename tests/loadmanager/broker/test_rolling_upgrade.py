"""Two releases in one cluster: it writes what all of them read, and whoever cannot read what stands there stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from zlib import crc32

import pytest

from loadmanager.errors import Conflict
from loadmanager.settings.choices import Algorithm
from statechannel.errors import LogRetired, NeedsNewerFormat, NewerRecord
from statechannel.law import codec
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.codec import NEWEST_VERSION
from statechannel.law.record import NEVER, UNSAID, Action, Record, Role
from statechannel.law.transitions import State
from tests.loadmanager.small_world import ADMIN, NAMESPACE, Nodes, Service, Started, virtually
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.world import World

OLD, NEW = 1, 2
KEYS = [f"persistent://{NAMESPACE}/key-{i}" for i in range(20)]


class Knowing(Service):
    """A service that tells where its keys are, so that its bundles can be split by their number."""

    def positions(self, bundle: Bundle) -> Iterable[int]:
        return [at for at in map(crc32, (Key.parse(key).full_name.encode() for key in KEYS)) if at in bundle]


class Cluster:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = Nodes(world)

    async def start(self, name: str, reads: int) -> Started:
        """A broker of a release, when all know each other."""
        started = self.nodes.start(name, Knowing(), reads=reads)
        await asyncio.sleep(0)
        await self.world.until(lambda: started.node.ready.is_set(), 10, f"{name} is ready")
        await self.world.until(self.agreed, 20, "all know each other, and one leads")
        return started

    def agreed(self) -> bool:
        here = self.here()
        names = {started.name for started in here}
        return all(set(s.node.peers()) == names for s in here) and self.nodes.leader() in here

    def here(self) -> list[Started]:
        return [started for started in self.nodes.by_name.values() if not started.process.dead]

    async def stop(self, started: Started) -> None:
        """As an upgrade does: drained, then ended."""
        started.process.run(started.node.stop)
        await self.world.until(lambda: started.process.dead, 20, "it left")
        del self.nodes.by_name[started.name]
        await self.world.until(self.agreed, 20, "the others noticed")

    async def at_rest(self) -> None:
        """Every bundle is with a broker that is here, and exactly that one serves it."""

        def settled() -> bool:
            present = {started.node.current.me for started in self.here()}
            table, *others = [started.node.channel.table for started in self.here()]
            read_alike = all(set(other) == set(table) for other in others)  # none has still to read what was written
            return read_alike and all(e.state is State.ASSIGNED and e.holder in present for e in table)

        await self.world.until(settled, 20, "all are owned by somebody who is here")
        for entry in self.here()[0].node.channel.table:
            bundle, holder = entry.bundle, entry.holder
            assert holder is not None
            await self.world.until(
                lambda of=bundle, name=holder.name: self.nodes.serving(of) == [name], 10, f"{bundle} is served"
            )

    def formats(self) -> list[int]:
        """Of each record in the log, in order."""
        [partition] = self.world.log.partitions("bundle-state")
        return [int((entry.value or b"")[2:4], 16) for entry in partition.read(0, 1 << 30)]

    def deletes(self) -> list[Record]:
        [partition] = self.world.log.partitions("bundle-state")
        records = [codec.decode(entry.value) for entry in partition.read(0, 1 << 30)]
        return [record for record in records if record.action is Action.DELETE_NAMESPACE]

    def entry(self, bundle: Bundle) -> State:
        found = self.here()[0].node.channel.table.get(bundle)
        assert found is not None
        return found.state


def split(by: Started, bundle: Bundle) -> asyncio.Task[tuple[Bundle, ...]]:
    return by.ask(lambda: by.node.current.operations.split(bundle, algorithm=Algorithm.TOPIC_COUNT))


async def ended_with(started: Started, world: World, error: type[Exception]) -> str:
    await world.until(lambda: started.process.dead, 20, "it ends")
    failure: BaseException | None = started.process.failure
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, error), failure
    return str(failure)


# --- there


@virtually
async def test_rolling_upgrade_begins_the_new_format_with_the_last_broker(world: World):
    cluster = Cluster(world)
    names = ("a:1", "b:1", "c:1")
    started = [await cluster.start(name, OLD) for name in names]
    await cluster.nodes.own_all(6, started[0])
    for index, name in enumerate(names):
        await cluster.at_rest()
        assert set(cluster.formats()) == {1}, "somebody who reads no more is here"
        await cluster.stop(started[index])
        started[index] = await cluster.start(name, NEW)
    before = len(cluster.formats())
    await cluster.at_rest()
    [first, *_] = [entry.bundle for entry in started[0].node.channel.table]
    await started[0].ask(lambda: started[0].node.current.operations.unload(first))
    later = cluster.formats()[before:]
    assert set(later) == {2}
    assert all(each.node.channel.counts["skipped"] == 0 for each in started)


@virtually
async def test_a_split_by_algorithm_waits_for_the_last_old_broker(world: World):
    cluster = Cluster(world)
    old, new = await cluster.start("a:1", OLD), await cluster.start("b:1", NEW)
    [bundle] = await cluster.nodes.own_all(1, new)
    await cluster.at_rest()
    before = len(cluster.formats())
    with pytest.raises(Conflict, match=r"needs record format 2.*upgrade the others first"):
        await split(new, bundle)
    assert cluster.entry(bundle) is State.ASSIGNED
    assert all(s.node.channel.counts[f"refused {r}"] == 0 for s in (old, new) for r in ("illegal", "malformed"))
    assert set(cluster.formats()[before:]) <= {1}
    await cluster.stop(old)
    await cluster.at_rest()
    children = await split(new, bundle)
    assert len(children) == 2
    assert set(cluster.formats()) == {1, 2}
    await cluster.at_rest()


@virtually
async def test_an_even_split_works_among_old_and_new(world: World):
    cluster = Cluster(world)
    old, new = await cluster.start("a:1", OLD), await cluster.start("b:1", NEW)
    first, second = await cluster.nodes.own_all(2, new)
    await new.ask(lambda: new.node.current.operations.transfer(second, old.name))
    for bundle, asked in ((first, old), (second, new)):
        children = await asked.ask(lambda b=bundle, a=asked: a.node.current.operations.split(b, parts=2))
        assert len(children) == 2
    await cluster.at_rest()
    assert set(cluster.formats()) == {1}


@virtually
async def test_nobody_closes_the_log_while_an_old_broker_would_misread_it(world: World):
    cluster = Cluster(world)
    old, new = await cluster.start("a:1", OLD), await cluster.start("b:1", NEW)
    retire = Record("", Action.RETIRE, ADMIN, Role.ADMIN, moved_to="elsewhere")
    with pytest.raises(NeedsNewerFormat):
        await new.ask(lambda: new.node.channel.publish(retire, partition=0))
    await cluster.stop(old)
    new.ask(lambda: new.node.channel.publish(retire, partition=0))
    assert "start with --log elsewhere" in await ended_with(new, world, LogRetired)


@virtually
async def test_mixed_brokers_delete_a_namespace_by_the_strict_rule_once_all_know(world: World):
    cluster = Cluster(world)
    old, new = await cluster.start("a:1", NEWEST_VERSION - 1), await cluster.start("b:1", NEWEST_VERSION)
    await cluster.nodes.own_all(2, new)
    await new.ask(lambda: new.node.current.operations.delete_namespace(NAMESPACE))
    await world.until(lambda: not old.node.channel.table.namespaces(), 10, "the old one has read it too")
    assert cluster.deletes()[-1].seen_latest == UNSAID
    await cluster.stop(old)
    await new.ask(lambda: new.node.current.operations.create_namespace(NAMESPACE, even_boundaries(2)))
    await new.ask(lambda: new.node.current.operations.delete_namespace(NAMESPACE))
    deleted = new.node.channel.table.namespace(NAMESPACE)
    assert deleted is not None
    assert deleted.revision > cluster.deletes()[-1].seen_latest > NEVER


# --- and back


@virtually
async def test_rolling_downgrade_works_while_nothing_new_was_written(world: World):
    """Format 2 begins with the first record after the last old broker left: until then an upgrade can go back."""
    cluster = Cluster(world)
    started = [await cluster.start("a:1", OLD), await cluster.start("b:1", NEW)]
    await cluster.nodes.own_all(4, started[0])
    await cluster.stop(started[1])
    started[1] = await cluster.start("b:1", OLD)
    await cluster.at_rest()
    assert set(cluster.formats()) == {1}


@virtually
async def test_old_broker_that_starts_on_newer_records_says_so_and_serves_nothing(world: World):
    cluster = Cluster(world)
    new = await cluster.start("b:1", NEW)
    bundles = await cluster.nodes.own_all(4, new)
    await cluster.at_rest()
    assert 2 in cluster.formats()
    old = cluster.nodes.start("a:1", reads=OLD)
    assert "this release reads up to 1: upgrade this broker" in await ended_with(old, world, NewerRecord)
    assert old.service.calls == []
    del cluster.nodes.by_name["a:1"]
    assert set(new.node.peers()) == {"b:1"}, "it never registered"
    assert all(cluster.nodes.serving(bundle) == ["b:1"] for bundle in bundles)


@virtually
async def test_old_broker_that_joins_during_a_new_write_stops_and_others_go_on(world: World):
    """The new one does not see it register: it writes what the late one cannot read. That one stops, and owns nothing
    for longer than that takes."""
    cluster = Cluster(world)
    other = await cluster.start("c:1", OLD)  # so that all there is can be read by the one that comes
    new = await cluster.start("b:1", NEW)
    bundles = await cluster.nodes.own_all(4, other)
    world.cut("b:1", COORDINATION_SERVER)
    late = cluster.nodes.start("a:1", reads=OLD)
    await asyncio.sleep(0)
    await world.until(lambda: late.node.ready.is_set(), 10, "it registers")
    await other.ask(lambda: other.node.current.operations.transfer(bundles[0], "a:1"))
    assert cluster.nodes.serving(bundles[0]) == ["a:1"]
    assert set(cluster.formats()) == {1}
    new.node.channel.write_version = NEW  # as if the other old one had just left
    await new.ask(lambda: new.node.channel.read_back(0, new.node.current.me))
    said = await ended_with(late, world, NewerRecord)
    assert "upgrade this broker" in said
    assert cluster.nodes.serving(bundles[0]) == []
    await ended_with(other, world, NewerRecord)
    for name in ("a:1", "c:1"):
        del cluster.nodes.by_name[name]
    world.heal("b:1", COORDINATION_SERVER)
    await cluster.at_rest()
    assert all(cluster.nodes.serving(bundle) == ["b:1"] for bundle in bundles)
