"""One fixed scene with every fault in it, from the seed given; prints the run's digest. Run by test_determinism.py."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from statechannel.errors import CoordinationError, LogUnavailable
from statechannel.ports import Payload, TopicSpec
from tests.simulator.network import Faults, Latency
from tests.simulator.simulated_coordination import SimulatedCoordination
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.world import World

NAMES = ("a:1", "b:1", "c:1")


async def write(world: World, log: SimulatedLog, name: str) -> None:
    for number in range(200):
        await asyncio.sleep(world.random.expovariate(20))
        with contextlib.suppress(LogUnavailable):
            await log.append("t", number % 3, [Payload(name.encode(), str(number).encode())])


async def read(world: World, log: SimulatedLog, name: str) -> None:
    async for batch in log.tail("t", [0, 0, 0]):
        for entry in batch:
            world.trace.write(name, f"reads {entry.partition}/{entry.offset} {entry.key!r} {entry.value!r}")


async def keep_alive(world: World, coordination: SimulatedCoordination, name: str) -> None:
    broker = await coordination.start_incarnation(name, 0)
    coordination.on_change(lambda: world.trace.write(name, f"sees {sorted(coordination.members)}"))
    while True:
        await asyncio.sleep(1)
        with contextlib.suppress(CoordinationError):
            await coordination.prove(broker)
            if await coordination.campaign(broker):
                world.trace.write(name, "leads")


async def live(world: World, name: str) -> None:
    process = world.processes[name]
    log = world.log_client(process, request_timeout_s=2)
    coordination = world.coordination_client(process, session_timeout_s=3, request_timeout_s=1)
    await log.start(10)
    await coordination.start(10)
    await log.open_topic(TopicSpec("t", 3))
    async with asyncio.TaskGroup() as group:
        group.create_task(write(world, log, name))
        group.create_task(read(world, log, name))
        group.create_task(keep_alive(world, coordination, name))


def start(world: World, name: str) -> None:
    world.process(name).start(lambda: live(world, name))


async def drive(world: World) -> None:
    for name in NAMES:
        start(world, name)
    world.network.faults = Faults(0.02, 0.02, 0.5, 5.0, 0.5)
    for _ in range(20):
        await asyncio.sleep(world.random.uniform(0.1, 2))
        name = world.random.choice(NAMES)
        match world.random.randrange(5):
            case 0:
                world.crash(name)
                start(world, name)
            case 1:
                world.pause(name)
            case 2:
                world.cut(name, world.random.choice(("log", "coordination")))
            case 3:
                world.set_down(world.random.choice(("log", "coordination")), True)
            case _:
                world.heal_everything()
    world.heal_everything()
    await asyncio.sleep(10)


def digest_of(seed: int) -> str:
    with World(seed, latency=Latency(spike_chance=0.02)) as world:
        world.run(drive(world))
        return f"{world.trace.digest()} {world.loop.executed} {world.trace.written} {world.loop.now_ns}"


if __name__ == "__main__":
    print(digest_of(int(sys.argv[1])))
