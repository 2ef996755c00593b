"""Registrations of readers that race with trimming, and that are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loadmanager.cluster import readers
from loadmanager.cluster.readers import ChannelReader, ReaderRegistry, wanted
from loadmanager.cluster.views import readers_view
from loadmanager.errors import Conflict, Invalid, NotFound
from statechannel.ports import Payload, TopicSpec
from statechannel.runtime.view import TableView
from tests.loadmanager.small_world import process, virtually
from tests.simulator.world import World

TOPIC = "bundle-state"
TTL_S = 100.0


class Readers:
    def __init__(self, registry: ReaderRegistry, view: TableView[ChannelReader], world: World) -> None:
        self.registry, self.view, self.world = registry, view, world

    async def shows(self, *names: str) -> None:
        await self.world.until(lambda: set(self.view) == set(names), 5, f"the view shows {names}")


@asynccontextmanager
async def registered(world: World, entries: int = 10) -> AsyncGenerator[Readers]:
    """A registry about a log of two partitions, of so many entries each."""
    log = world.log_client(process(world, "a:1"))
    world.log.open_topic(TopicSpec(TOPIC, 2))
    for partition in (0, 1):
        world.log.append(TOPIC, partition, [Payload(None, b"x")] * entries)
    view = readers_view(log, TTL_S)
    await view.start()
    running = asyncio.get_running_loop().create_task(view.run())
    try:
        yield Readers(ReaderRegistry(view, log, TOPIC, world.wall_ms), view, world)
    finally:
        running.cancel()


@virtually
async def test_positions_of_all_partitions_within_the_log_are_taken(world: World):
    async with registered(world) as d:
        assert (await d.registry.register("a", [3, 10])).positions == (3, 10)
        assert (await d.registry.register("b", None)).positions == (0, 0)
        await d.shows("a", "b")
        assert sorted(wanted(d.registry.all().values(), 0)) == [0, 3]
        assert sorted(wanted(d.registry.all().values(), 1)) == [0, 10]
        for positions in ([3], [3, 4, 5], [3, 11]):
            with pytest.raises(Invalid):
                await d.registry.register("c", positions)
        with pytest.raises(Invalid):
            await d.registry.register("no name", None)
        await d.shows("a", "b")


@virtually
async def test_what_was_trimmed_is_refused_with_the_way_on(world: World):
    async with registered(world) as d:
        world.log.trim(TOPIC, 1, 6)
        with pytest.raises(Conflict, match="register at 6 or later"):
            await d.registry.register("a", [0, 5])
        assert (await d.registry.register("a", None)).positions == (0, 6)


@virtually
async def test_registration_behind_a_trim_is_refused_and_holds_up_nothing(world: World):
    async with registered(world) as d:
        put = d.view.put

        async def put_late(key: str, value: ChannelReader) -> None:
            world.log.trim(TOPIC, 0, 4)
            await put(key, value)

        d.view.put = put_late  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await d.registry.register("a", [2, 2])
        await d.shows()


@virtually
async def test_a_reader_that_is_not_renewed_is_forgotten(world: World):
    async with registered(world) as d:
        await d.registry.register("kept", [0, 0])
        await d.registry.register("forgotten", [0, 0])
        await asyncio.sleep(TTL_S / 2)
        await d.registry.register("kept", [1, 1])
        await asyncio.sleep(TTL_S / 2 + 1)
        await d.shows("kept")


def test_there_is_an_end_to_how_many_may_register(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "READERS_AT_MOST", 3)

    async def story(world: World) -> None:
        async with registered(world) as d:
            for name in ("r0", "r1", "r2"):
                await d.registry.register(name, None)
            await d.shows("r0", "r1", "r2")
            with pytest.raises(Conflict, match="remove"):
                await d.registry.register("r3", None)
            await d.registry.register("r2", [1, 1])
            await d.registry.remove("r1")
            await d.shows("r0", "r2")
            await d.registry.register("r3", None)
            with pytest.raises(NotFound, match="r0"):
                await d.registry.remove("r1")

    virtually(story)()
