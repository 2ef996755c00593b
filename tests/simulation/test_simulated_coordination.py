"""The simulated coordination service: sessions in virtual time, and what a process in trouble sees of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from statechannel.errors import CoordinationUnavailable, Fenced
from statechannel.law.record import BrokerId
from statechannel.ports import Connection
from tests.simulator.loop import Process
from tests.simulator.network import NO_FAULTS, Faults
from tests.simulator.simulated_coordination import SimulatedCoordination
from tests.simulator.world import World

T = TypeVar("T")

A = BrokerId("a:1", 1)


class Registered:
    """A process `a:1` that registers, takes the lead and then only lives; and a process `b:1` that watches it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.a, self.coordination = self._client("a:1", leads=True)
        self.b, self.observer = self._client("b:1", leads=False)

    def _client(self, name: str, *, leads: bool) -> tuple[Process, SimulatedCoordination]:
        process = self.world.process(name)
        client = self.world.coordination_client(process, session_timeout_s=6, request_timeout_s=1)

        async def main() -> None:
            await client.start(5)
            if leads:
                broker = await client.start_incarnation(name, 0)
                await client.register(broker, b"data")
                await client.campaign(broker)
            await asyncio.Event().wait()

        process.start(main)
        return process, client

    async def up(self) -> None:
        await self.world.until(self.is_seen, 5, "a is registered and leads")

    def is_seen(self) -> bool:
        return "a:1" in self.observer.members and self.observer.leadership is not None

    def is_gone(self) -> bool:
        return "a:1" not in self.observer.members and self.observer.leadership is None


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as world:
        yield world


def test_a_crashed_process_is_gone_after_its_session_time_out_not_before(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        world.crash("a:1")
        crashed_s = world.now_s
        await world.until(scene.is_gone, 10, "a is gone")
        assert 3.9 < world.now_s - crashed_s < 6.1  # a heartbeat may be up to 2 s old

    world.run(drive())


def test_a_paused_process_loses_its_session_and_registers_again_by_proving(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        world.pause("a:1")
        await world.until(scene.is_gone, 10, "a is gone")
        world.resume("a:1")
        proof = scene.a.run(lambda: world.loop.create_task(scene.coordination.prove(A)))
        await proof
        await world.until(lambda: "a:1" in scene.observer.members, 5, "a is back")
        assert scene.observer.members["a:1"].data == b"data"
        assert scene.observer.leadership is None

    world.run(drive())


def test_a_process_that_is_cut_off_sees_suspended_and_after_healing_a_new_session(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        world.cut("a:1", "coordination")
        await world.until(lambda: scene.coordination.connection is Connection.SUSPENDED, 5, "a notices")
        assert scene.is_seen()
        await world.until(scene.is_gone, 10, "its session expires")
        assert scene.coordination.leadership is not None  # its own view is as old as the cut
        world.heal("a:1", "coordination")
        await world.until(lambda: scene.coordination.connection is Connection.CONNECTED, 5, "a is connected")
        await world.until(lambda: scene.coordination.leadership is None, 5, "a learns what happened")

    world.run(drive())


def test_nothing_expires_while_the_service_is_down(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        world.set_down("coordination", True)
        with pytest.raises(CoordinationUnavailable):
            await scene.a.run(lambda: world.loop.create_task(scene.coordination.prove(A)))
        await asyncio.sleep(60)
        world.set_down("coordination", False)
        await asyncio.sleep(20)
        assert scene.is_seen()
        assert world.coordination.sessions_expired == 0

    world.run(drive())


def test_a_campaign_whose_answer_is_lost_may_have_won(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        leadership = scene.observer.leadership
        assert leadership is not None
        assert await scene.b.run(lambda: world.loop.create_task(scene.observer.evict(leadership)))
        world.network.faults = Faults(lost_answer=1)
        with pytest.raises(CoordinationUnavailable, match="retry"):
            await scene.a.run(lambda: world.loop.create_task(scene.coordination.campaign(A)))
        world.network.faults = NO_FAULTS
        await world.until(lambda: scene.coordination.leadership is not None, 5, "a sees that it leads")
        assert scene.coordination.leadership is not None
        assert scene.coordination.leadership.epoch == leadership.epoch + 1

    world.run(drive())


def test_a_raised_incarnation_is_fenced_at_its_next_proof(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        await scene.b.run(lambda: world.loop.create_task(scene.observer.raise_incarnation(A, epoch=1)))
        with pytest.raises(Fenced, match="a:1#2"):
            await scene.a.run(lambda: world.loop.create_task(scene.coordination.prove(A)))

    world.run(drive())


def test_watches_lag_by_the_network_and_call_back_inside_the_process(world: World) -> None:
    scene = Registered(world)
    seen_s: list[float] = []

    async def drive() -> None:
        await scene.up()
        scene.observer.on_change(lambda: seen_s.append(world.now_s))
        world.pause("b:1")
        world.expire_session("a:1")
        expired_s = world.now_s
        await asyncio.sleep(1)
        assert seen_s == []
        world.resume("b:1")
        await world.until(scene.is_gone, 1, "b has seen it")
        assert seen_s[0] == pytest.approx(expired_s + 1, abs=0.02)

    world.run(drive())


# --- leases


def in_process(world: World, process: Process, ask: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    return process.run(lambda: world.loop.create_task(ask()))


def test_an_office_is_taken_once_and_everybody_sees_by_whom(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        b = await in_process(world, scene.b, lambda: scene.observer.start_incarnation("b:1", 0))
        assert await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))
        assert await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))
        assert not await in_process(world, scene.b, lambda: scene.observer.claim("clerk", b))
        assert await in_process(world, scene.b, lambda: scene.observer.claim("porter", b))
        both = {"clerk": A, "porter": b}
        await world.until(lambda: scene.observer.leases == scene.coordination.leases == both, 5, "both see both")

    world.run(drive())


def test_an_office_ends_with_the_session_of_who_holds_it(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        b = await in_process(world, scene.b, lambda: scene.observer.start_incarnation("b:1", 0))
        await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))
        world.pause("a:1")
        await world.until(lambda: "clerk" not in scene.observer.leases, 10, "its session expires")
        assert await in_process(world, scene.b, lambda: scene.observer.claim("clerk", b))
        world.resume("a:1")
        assert not await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))

    world.run(drive())


def test_an_office_that_is_claimed_again_in_a_new_session_does_not_end_with_the_old_one(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        other = world.coordination_client(scene.a, session_timeout_s=60)
        await in_process(world, scene.a, lambda: other.start(5))
        await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))
        assert await in_process(world, scene.a, lambda: other.claim("clerk", A))
        await in_process(world, scene.a, scene.coordination.close)
        await world.until(lambda: "a:1" not in scene.observer.members, 5, "the first session has ended")
        assert scene.observer.leases == {"clerk": A}

    world.run(drive())


def test_only_who_holds_an_office_vacates_it(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))
        await in_process(world, scene.b, lambda: scene.observer.vacate("clerk", BrokerId("b:1", 1)))
        await world.until(lambda: scene.observer.leases == {"clerk": A}, 5, "a holds it still")
        for _ in range(2):
            await in_process(world, scene.a, lambda: scene.coordination.vacate("clerk", A))
        await world.until(lambda: scene.observer.leases == {}, 5, "it is free")

    world.run(drive())


def test_who_is_not_current_gets_no_office(world: World) -> None:
    scene = Registered(world)

    async def drive() -> None:
        await scene.up()
        await in_process(world, scene.b, lambda: scene.observer.raise_incarnation(A, epoch=1))
        with pytest.raises(Fenced):
            await in_process(world, scene.a, lambda: scene.coordination.claim("clerk", A))

    world.run(drive())
