"""The real channel shell in simulated processes: replicas agree whatever the log and the network do."""

from __future__ import annotations

import asyncio

import pytest

from statechannel.errors import LogUnavailable
from statechannel.law.bundle import even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.verdict import Change
from statechannel.runtime.channel import Channel, ChannelSettings
from tests.simulator.loop import Process
from tests.simulator.network import Faults, Latency
from tests.simulator.world import World

NAMES = ("a:1", "b:1", "c:1")
NAMESPACE = "tenant/ns"


class Replicas:
    """Three processes that all try to own the bundles of one namespace, over and over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels: dict[str, Channel] = {}
        self.lives = 0
        self.accepted = 0

    def start(self, name: str) -> Process:
        self.lives += 1
        process = self.world.process(name)
        process.start(lambda: self._live(process, BrokerId(name, self.lives)))
        return process

    async def _live(self, process: Process, broker: BrokerId) -> None:
        log = self.world.log_client(process, request_timeout_s=1)
        settings = ChannelSettings(partitions=2, publish_timeout_s=2)
        channel = Channel(log, settings, nonce=str(broker), wall_ms=self.world.wall_ms)
        while True:
            try:
                await channel.open()
                break
            except LogUnavailable:
                continue
        self.channels[broker.name] = channel
        async with channel.running():
            while True:
                await asyncio.sleep(self.world.random.uniform(0.01, 0.2))
                for record in self._wishes(channel, broker):
                    self.accepted += isinstance(await channel.publish(record), Change)

    def _wishes(self, channel: Channel, broker: BrokerId) -> list[Record]:
        if channel.table.namespace(NAMESPACE) is None:
            boundaries = even_boundaries(4)
            return [Record("", Action.CREATE_NAMESPACE, broker, Role.ADMIN, namespace=NAMESPACE, boundaries=boundaries)]
        entry = self.world.random.choice(list(channel.table))
        subject = (Subject(entry.bundle, entry.revision),)
        if entry.holder is None:
            return [Record("", Action.OWN, broker, subjects=subject, to=broker)]
        if entry.holder == broker:
            action = self.world.random.choice((Action.RETURN, Action.RELEASE, Action.UNLOAD))
            return [Record("", action, broker, subjects=subject)]
        return []

    def agree(self) -> bool:
        ends = self.world.log.ends("bundle-state")
        tables = [self.channels[name].table for name in NAMES]
        return all(
            table.next_offset(p) == end and table.digest(p) == tables[0].digest(p)
            for p, end in enumerate(ends)
            for table in tables
        )


@pytest.mark.parametrize("seed", range(5))
def test_replicas_agree_after_crashes_pauses_cuts_and_lost_answers(seed: int) -> None:
    with World(seed, latency=Latency(spike_chance=0.01), faults=Faults(0.02, 0.05, 0.5)) as world:
        scene = Replicas(world)

        async def drive() -> None:
            for name in NAMES:
                scene.start(name)
            for _ in range(15):
                await asyncio.sleep(world.random.uniform(0.5, 3))
                name = world.random.choice(NAMES)
                fault = world.random.choice((world.pause, world.resume, world.crash, world.cut, world.heal))
                if fault in (world.cut, world.heal):
                    fault(name, "log")  # type: ignore[call-arg]
                else:
                    fault(name)  # type: ignore[call-arg]
                if fault == world.crash:
                    scene.start(name)
            world.heal_everything()
            await asyncio.sleep(5)
            await world.until(scene.agree, 30, "replicas agree")

        world.run(drive())
        assert scene.accepted > 5
        assert [p.failure for p in world.processes.values()] == [None] * 3
