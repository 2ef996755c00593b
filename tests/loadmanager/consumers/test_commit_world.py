"""Coordinators that are cut off, moved and fenced, a Kafka whose requests are late: no offset of a group goes back.

The coordinators and their store are the product's, on a simulated log and in virtual time. Kafka is a model: each
request is on the wire until it arrives, whatever its sender does meanwhile. Each reset goes to a higher million, and
members count up from where the group is. So whatever is stored after something higher is a commit that came late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import NotServing
from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator.ports import Committed
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.errors import LoadManagerError
from statechannel.errors import LogUnavailable, StateChannelError, WriterFenced
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import Token
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets
from tests.simulator.loop import VirtualLoop
from tests.simulator.network import Network
from tests.simulator.simulated_log import SimulatedLog, SimulatedLogServer

NAMESPACE = "shop/orders"
GROUP = f"persistent://{NAMESPACE}/billing"
BUNDLE = tile(NAMESPACE, even_boundaries(1))[0]
PARTITIONS = 3
SEEDS, LONG_S = 60, 60.0
RESET = 1_000_000


class Kafka:
    """What is stored of the group, and the writers that were fenced."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.stored: dict[Partition, int] = {}
        self.fenced: set[str] = set()
        self.seen = Counter[str]()

    def store(self, writer: str, offsets: Mapping[Partition, int]) -> None:
        if writer in self.fenced:
            self.seen["refused"] += 1
            raise WriterFenced(f"{writer} is fenced")
        for each, offset in offsets.items():
            before = self.stored.get(each, 0)
            assert offset >= before, f"{each} goes back from {before} to {offset}"
            self.stored[each] = offset
        self.seen["stored"] += 1


class Topics:
    """One broker's way to Kafka. Requests of one writer are carried out one after the other."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka, self._name = kafka, name
        self.offsets = MemoryOffsets()
        self.offsets.topics = {"orders": [(0, 0)] * PARTITIONS}
        self.light = asyncio.Event()
        self.light.set()
        self._writer = f"{name}-0"
        self._turn = asyncio.Lock()
        self._wires = set[asyncio.Task[None]]()

    def writer(self, group: str) -> str:
        return self._writer

    async def sizes(self, topics: Iterable[str]) -> Mapping[str, int]:
        return {"orders": PARTITIONS}

    async def retention_s(self) -> float | None:
        return 8.0

    async def fence(self, writers: Collection[str]) -> None:
        await self._travel()
        self._kafka.fenced |= {*writers}

    async def commits(self, group: str, partitions: Collection[Partition]) -> Mapping[Partition, Committed]:
        async with asyncio.timeout(20), self._turn:
            await self._travel()
            return {each: Committed(self._kafka.stored[each]) for each in partitions if each in self._kafka.stored}

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        wire = asyncio.ensure_future(self._send(self._writer, dict(offsets)))
        self._wires.add(wire)
        wire.add_done_callback(self._wires.discard)
        try:
            async with asyncio.timeout(3):
                await asyncio.shield(wire)
        except TimeoutError:
            raise LogUnavailable("no answer in time") from None

    async def delete(self, group: str) -> bool:
        raise AssertionError("no offsets are deleted here")

    async def _send(self, writer: str, offsets: Mapping[Partition, int]) -> None:
        async with self._turn:
            await self._travel()
            try:
                self._kafka.store(writer, offsets)
            except WriterFenced:
                if self._writer == writer:
                    number = int(writer.rpartition("-")[2])
                    self._writer = f"{self._name}-{number + 1}"
                raise

    async def _travel(self) -> None:
        await asyncio.sleep(self._kafka.random.expovariate(1 / 0.02))
        await self.light.wait()


class Broker:
    """What a coordinator knows of its broker: whether it owns the bundle."""

    def __init__(self) -> None:
        self.owned: Claim | None = None
        self._admitted = 0

    @asynccontextmanager
    async def admit(self, topic: str, timeout_s: float = 5.0) -> AsyncGenerator[Claim]:
        if self.owned is None:
            raise NotServing("another broker owns it")
        self._admitted += 1
        try:
            yield self.owned
        finally:
            self._admitted -= 1

    def claim(self, topic: str) -> Claim | None:
        return self.owned

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self._admitted:
                    await asyncio.sleep(0.01)
        return not self._admitted


class World:
    """Three coordinators, one of which has the bundle, and three members that read, commit, leave and join."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        loop = asyncio.get_running_loop()
        server = SimulatedLogServer(self.random, lambda: int(loop.time() * 1_000))
        network = Network(self.random)
        self.kafka = Kafka(self.random)
        self.brokers = [Broker() for _ in range(3)]
        self.topics = [Topics(self.kafka, f"w{number}") for number in range(3)]
        self.coordinators: list[Coordinator] = []
        for number, (broker, topics) in enumerate(zip(self.brokers, self.topics, strict=True)):
            log = SimulatedLog(server, network, f"broker-{number}")
            coordinator = Coordinator(GroupStore(log), topics, loop.time, topics_every_s=0.5, lag_every_s=1e9)
            coordinator.attached(broker)
            self.coordinators.append(coordinator)
        self.token = Token(1, 0, 1)
        self.at = 0
        self.resets = 0
        self.under_way = set[asyncio.Task[None]]()

    @property
    def coordinator(self) -> Coordinator:
        return self.coordinators[self.at]

    async def start(self) -> None:
        for each in self.coordinators:
            await each.start()
        self.kept = [asyncio.ensure_future(each.run()) for each in self.coordinators]
        await self._own(0, None)

    async def _own(self, at: int, hand_off: bytes | None) -> None:
        self.at = at
        self.token = Token(1, 0, self.token.offset + 1)
        self.brokers[at].owned = Claim(BUNDLE, self.token)
        await self.coordinators[at].acquire(BUNDLE, self.token, hand_off)

    async def move(self) -> None:
        """Planned, or because the owner is cut off: then what it sent to Kafka comes later."""
        former = self.at
        to = self.random.randrange(3)
        if self.random.random() < 0.5:
            self.kafka.seen["moved"] += 1
            self.brokers[former].owned, claim = None, self.brokers[former].owned
            assert claim is not None
            hand_off = await self.coordinators[former].release(BUNDLE, None)
            await self._own(to, hand_off)
        else:
            self.kafka.seen["cut off"] += 1
            self.topics[former].light.clear()
            await asyncio.sleep(self.random.random())
            self.brokers[former].owned = None
            await self.coordinators[former].abandon(BUNDLE)
            if to == former:
                to = (to + 1) % 3
            await self._own(to, None)
            asyncio.get_running_loop().call_later(self.random.random() * 5, self.topics[former].light.set)

    async def darken(self) -> None:
        """Kafka is out of the owner's reach for some seconds."""
        self.kafka.seen["dark"] += 1
        light = self.topics[self.at].light
        light.clear()
        asyncio.get_running_loop().call_later(self.random.random() * 8, light.set)

    async def reset(self) -> None:
        self.resets += 1
        self.kafka.seen["reset"] += 1
        some = [("orders", each) for each in range(PARTITIONS) if self.random.random() < 0.6]
        with suppress(LoadManagerError, StateChannelError):
            await self.coordinator.reset(GROUP, dict.fromkeys(some, self.resets * RESET), 5.0)

    async def member(self, name: str) -> None:
        """Reads on from what is committed, a few records at a time; now and then it hangs, or joins anew."""
        while True:
            member, at, sequence = Membership(name, Subscription(("orders",), 2_000, 1_000)), dict[Partition, int](), 0
            told = ""
            while not member.over:
                now_ms = asyncio.get_running_loop().time() * 1000
                for each in list(at):
                    if each not in member.reads(now_ms):
                        del at[each]
                for each in member.reads(now_ms) - at.keys():
                    at[each] = self.kafka.stored.get(each, 0)
                beat = member.beat(now_ms)
                with suppress(LoadManagerError, StateChannelError):
                    answer = await self.coordinator.heartbeat(GROUP, name, beat)
                    told = getattr(answer, "coordinator", told)
                    member.given_up(member.answered(beat.sequence, answer).revoked)
                now_ms = asyncio.get_running_loop().time() * 1000
                done = {each: at[each] + self.random.randint(1, 9) for each in at.keys() & member.reads(now_ms)}
                at |= done  # whatever becomes of the commit
                if done:
                    sequence += 1
                    commit = name, member.epoch, member.revision, done, None, sequence, told
                    if self.random.random() < 0.2:
                        self.spawn(self.late(commit))
                    with suppress(LoadManagerError, StateChannelError):
                        await self.coordinator.commit(GROUP, *commit)
                await asyncio.sleep(self.random.choice((0.05, 0.1, 0.3, 0.3, 4.0)))
            name = f"{name}'"

    async def late(self, commit: tuple[Any, ...]) -> None:
        """The request comes once more, by another way, when its sender has given it up."""
        await asyncio.sleep(self.random.expovariate(2))
        with suppress(LoadManagerError, StateChannelError):
            refused = await self.coordinator.commit(GROUP, *commit)
            self.kafka.seen["late"] += bool(refused)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def play(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        members = [asyncio.ensure_future(self.member(name)) for name in ("a", "b", "c")]
        while loop.time() < until_s:
            await asyncio.sleep(self.random.random() * 4)
            await self.random.choice((self.move, self.move, self.darken, self.darken, self.reset))()
            for each in (*members, *self.kept):
                if each.done():
                    each.result()
        for topics in self.topics:
            topics.light.set()
        for each in (*members, *self.kept):
            each.cancel()
        await asyncio.wait((*members, *self.kept))


def played(seed: int) -> Counter[str]:
    loop = VirtualLoop()

    async def play() -> Counter[str]:
        world = World(seed)
        await world.start()
        await world.play(LONG_S)
        return world.kafka.seen

    return loop.run_until_complete(play())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_offset_goes_back_and_a_reset_holds(seed: int) -> None:
    assert played(seed)["stored"] > 20
