"""Channel owners among others: spread, followed by others, held up, and never in the way of ownership."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from loadmanager.channel.owner.election import lease_of, ranking
from loadmanager.channel.owner.service import ChannelOwner, owner_of
from loadmanager.cluster.readers import ReaderRegistry
from loadmanager.settings import Settings
from statechannel.ports import ExclusiveWriter
from tests.loadmanager.channel.owner.watching import CHANNEL, Watch
from tests.loadmanager.small_world import QUICK, Nodes, Started, virtually
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_log import LOG_SERVER, Step
from tests.simulator.world import World

P = 4
EAGER = QUICK.model_copy(
    update={"partitions": P, "snapshot_records": 5, "snapshot_interval_s": 5.0, "log_retention_s": 60.0}
)
THREE = ("a:1", "b:1", "c:1")


def owner(started: Started) -> ChannelOwner:
    return started.node.current.channel_owner


def held(started: Started) -> frozenset[int]:
    return frozenset() if started.process.dead else owner(started).leases.held


def kept(started: Started) -> frozenset[int]:
    """The partitions whose exclusive writer it is."""
    return frozenset(partition for partition, keeper in owner(started).keepers.items() if keeper.is_open)


class Cluster:
    """Nodes that all write a record a second into each partition, under the eyes of a `Watch`."""

    def __init__(self, world: World, settings: Settings = EAGER) -> None:
        self.world, self.watch = world, Watch(world, P)
        self.nodes = Nodes(world, settings)

    async def start(self, *names: str) -> list[Started]:
        return await self.nodes.ready(*names)

    def write(self, by: Started, times: int) -> asyncio.Task[Any]:
        async def write() -> None:
            me = by.node.current.me
            for _ in range(times):
                await asyncio.gather(*(by.node.channel.read_back(p, me) for p in range(P)))
                await asyncio.sleep(1)

        return by.ask(write)

    async def spread(self, *names: str) -> None:
        """Wait until all partitions are looked after, each by the one who is preferred among these."""
        firsts = [ranked[0] for ranked in ranking(names, P)]
        wanted = {name: frozenset(p for p in range(P) if firsts[p] == name) for name in names}
        alive = self.nodes.by_name
        await self.world.until(
            lambda: all(held(alive[name]) == wanted[name] == kept(alive[name]) for name in names), 90, f"over {names}"
        )

    def owner_of(self, partition: int) -> Started:
        return next(s for s in self.nodes.by_name.values() if partition in held(s))

    async def covered(self, within_s: float = 60.0) -> None:
        """Wait until somebody has written a snapshot of each partition from now on."""
        ends = self.world.log.ends(CHANNEL)

        def all_covered() -> bool:
            indices = [reader.index for reader in self.watch.readers]
            return all(i is not None and i.newest.next_offset >= end for i, end in zip(indices, ends, strict=True))

        await self.world.until(all_covered, within_s, "all partitions have new snapshots")


@virtually
async def test_partitions_are_spread_over_the_brokers_and_come_to_one_owner_each(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    assert sorted(Counter(len(held(s)) for s in started).elements()) == [1, 1, 2]
    shown = [owner_of(s.node.world.coordination, s.node.membership, 0) for s in started]
    assert shown == [cluster.owner_of(0).node.current.me] * 3


@pytest.mark.slow
@virtually
async def test_snapshots_and_trims_go_on_while_brokers_come_and_go(world: World):
    cluster = Cluster(world)
    a, _b, c = await cluster.start(*THREE)
    cluster.write(a, 1_000)
    await cluster.covered()
    await asyncio.sleep(120)
    assert all(begin > 0 for begin in world.log.begins(CHANNEL))
    world.crash("c:1")
    assert c.process.dead
    del cluster.nodes.by_name["c:1"]
    await cluster.spread("a:1", "b:1")
    await cluster.start("d:1")
    await cluster.covered()
    await asyncio.sleep(120)
    lengths = [end - begin for begin, end in zip(world.log.begins(CHANNEL), world.log.ends(CHANNEL), strict=True)]
    assert max(lengths) < 60 + 2 * 60 / 4 + 20
    assert cluster.watch.complaints == []


@virtually
async def test_when_an_owner_dies_another_one_writes_the_next_snapshot(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    dead = cluster.owner_of(3)
    writer = next(s for s in started if s is not dead)
    world.crash(dead.name)
    cluster.write(writer, 100)
    await asyncio.sleep(1)
    await cluster.covered(within_s=20)
    assert 3 in held(cluster.owner_of(3))
    assert cluster.watch.complaints == []


@virtually
async def test_an_owner_that_sleeps_through_a_takeover_writes_nothing_afterwards(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    sleeper = cluster.owner_of(0)
    writer = next(s for s in started if s is not sleeper)
    cluster.write(writer, 300)
    await cluster.covered()
    world.pause(sleeper.name)
    await world.until(lambda: any(0 in held(s) for s in started if s is not sleeper), 30, "another one took over")
    await cluster.covered()
    lists = cluster.watch.lists
    world.resume(sleeper.name)
    await cluster.covered()
    await asyncio.sleep(60)
    assert cluster.watch.lists > lists
    assert sum(0 in held(s) for s in started) == 1
    assert cluster.watch.complaints == []


@virtually
async def test_owner_cut_off_from_coordination_does_not_fence_its_successor(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    cut_off = cluster.owner_of(0)
    others = [s for s in started if s is not cut_off]
    cluster.write(others[0], 200)
    world.cut(cut_off.name, COORDINATION_SERVER)
    await world.until(lambda: any(0 in kept(s) for s in others), 30, "another one took over")
    await asyncio.sleep(60)
    assert 0 in held(cut_off), "it does not know"
    assert owner(cut_off).counts.failed >= 1
    assert sum(owner(s).counts.failed for s in others) == 0
    world.heal(cut_off.name, COORDINATION_SERVER)
    await cluster.spread(*THREE)
    assert cluster.watch.complaints == []


@virtually
async def test_a_broker_that_drains_gives_its_offices_away_and_takes_none(world: World):
    cluster = Cluster(world)
    await cluster.start(*THREE)
    await cluster.spread(*THREE)
    drained = cluster.owner_of(0)
    drained.ask(lambda: drained.node.drain(5.0))
    others = tuple(name for name in THREE if name != drained.name)
    await world.until(lambda: not held(drained), 5, "it gave them up")
    await cluster.spread(*others)
    assert not held(drained)
    drained.ask(drained.node.undrain)
    await cluster.spread(*THREE)


@virtually
async def test_a_broker_that_stops_leaves_no_office_behind(world: World):
    cluster = Cluster(world)
    await cluster.start(*THREE)
    await cluster.spread(*THREE)
    leaver = cluster.owner_of(0)
    leaver.process.run(leaver.node.stop, 1.0)
    await world.until(lambda: leaver.process.dead, 10, "it stopped")
    holders = [s for s in cluster.nodes.by_name.values() if not s.process.dead]
    await cluster.spread(*(s.name for s in holders))


@virtually
async def test_fenced_incarnation_is_followed_by_the_next_of_the_same_process(world: World):
    cluster = Cluster(world)
    [a] = await cluster.start("a:1")
    await cluster.spread("a:1")
    before = a.node.current
    leadership = a.node.world.coordination.leadership
    assert leadership is not None
    a.ask(lambda: a.node.world.coordination.raise_incarnation(before.me, leadership.epoch))
    await world.until(lambda: a.node.current is not before and held(a) == frozenset(range(P)), 30, "it owns them again")
    assert all(h == a.node.current.me for h in a.node.world.coordination.leases.values())
    cluster.write(a, 20)
    await asyncio.sleep(1)
    await cluster.covered()


@virtually
async def test_silent_log_costs_no_broker_and_snapshots_resume(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    world.set_down(LOG_SERVER, True)
    await asyncio.sleep(30)
    world.set_down(LOG_SERVER, False)
    await asyncio.sleep(5)
    cluster.write(started[0], 100)
    await asyncio.sleep(2)
    await cluster.covered()
    assert not any(s.process.dead for s in started)
    assert cluster.watch.complaints == []


@virtually
async def test_without_the_coordination_service_owners_go_on(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    world.set_down(COORDINATION_SERVER, True)
    await asyncio.sleep(10)
    cluster.write(started[0], 20)
    await asyncio.sleep(2)
    await cluster.covered()
    world.set_down(COORDINATION_SERVER, False)
    await asyncio.sleep(30)
    cluster.write(started[0], 20)
    await asyncio.sleep(2)
    await cluster.covered()
    assert cluster.watch.complaints == []


@virtually
async def test_a_writer_from_elsewhere_does_not_stop_the_owner_for_long(world: World):
    cluster = Cluster(world)
    [a] = await cluster.start("a:1")
    await cluster.spread("a:1")
    world.log.new_writer(lease_of(0))
    cluster.write(a, 30)
    await asyncio.sleep(6)
    await cluster.covered()
    assert owner(a).counts.failed >= 1
    assert a.told("another client writes them")


@virtually
async def test_failing_owner_lets_others_try_and_a_bug_costs_no_ownership(world: World):
    cluster = Cluster(world)
    started = await cluster.start(*THREE)
    await cluster.spread(*THREE)
    broken = cluster.owner_of(0)
    [bundle] = await cluster.nodes.own_all(1, broken)

    async def fail(writer_id: str) -> ExclusiveWriter:
        raise ZeroDivisionError(f"a bug: {writer_id}")

    broken.node.world.log.exclusive = fail  # type: ignore[method-assign]
    for partition in held(broken):
        world.log.new_writer(lease_of(partition))
    cluster.write(started[0], 60)
    await world.until(lambda: any(0 in held(s) for s in started if s is not broken), 60, "somebody else does it")
    assert not any(s.process.dead for s in started)
    assert cluster.nodes.serving(bundle) == [broken.name]
    assert broken.told("ZeroDivisionError")


@virtually
async def test_nothing_is_trimmed_that_a_registered_reader_wants(world: World):
    cluster = Cluster(world)
    a, _b, _c = await cluster.start(*THREE)
    views = a.node.views
    registry = ReaderRegistry(views.readers, a.node.world.log, CHANNEL, world.wall_ms)
    cluster.write(a, 400)
    await asyncio.sleep(3)
    await a.ask(lambda: registry.register("history", world.log.ends(CHANNEL)))
    positions = views.readers["history"].positions if "history" in views.readers else world.log.ends(CHANNEL)
    await asyncio.sleep(200)
    assert all(begin <= at for begin, at in zip(world.log.begins(CHANNEL), positions, strict=True))
    await a.ask(lambda: registry.remove("history"))
    await asyncio.sleep(60)
    assert all(begin > at for begin, at in zip(world.log.begins(CHANNEL), positions, strict=True))
    assert cluster.watch.complaints == []


@virtually
async def test_nothing_is_trimmed_while_a_broker_needs_the_whole_log_to_start(world: World):
    cluster = Cluster(world)
    a, b, c = await cluster.start(*THREE)
    c.node.registration = msgspec.structs.replace(c.node.registration, codec=1)
    await c.ask(lambda: c.node.world.coordination.register(c.node.current.me, c.node.registration.encode()))
    cluster.write(a, 300)
    await cluster.spread("a:1", "b:1")
    assert not held(c)
    await asyncio.sleep(150)
    await cluster.covered()
    assert set(world.log.begins(CHANNEL)) == {0}
    world.crash("c:1")
    await world.until(lambda: min(world.log.begins(CHANNEL)) > 0, 60, "it is trimmed at last")
    assert cluster.watch.complaints == []
    assert not b.process.dead


@virtually
async def test_a_commit_that_is_fenced_is_not_tried_again_with_the_same_writer(world: World):
    cluster, steps = Cluster(world), list[Step]()

    def fence(step: Step, _: str) -> None:
        if step in (Step.BECOME_WRITER, Step.COMMIT):
            steps.append(step)
        if step is Step.COMMIT:
            for partition in range(P):
                world.log.new_writer(lease_of(partition))

    world.log.on_step = fence
    [a] = await cluster.start("a:1")
    cluster.write(a, 60)
    await world.until(lambda: steps.count(Step.COMMIT) >= P, 60, "each writer has been fenced")
    begin = len(steps) - 1
    await world.until(lambda: steps[begin:].count(Step.COMMIT) > 8, 60, "it tries anew")
    assert all(before is Step.BECOME_WRITER for before, step in pairwise(steps[begin:]) if step is Step.COMMIT)
    assert a.told("another client writes them")
    assert not a.process.dead
