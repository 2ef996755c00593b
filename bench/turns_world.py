"""The world of `turns`: one real node among simulated peers, on virtual time, with the CPU time of each turn of its
loop.

The node is all of a broker but its endpoints and its adapters: table, replica, agent, leader, placing, views,
balancing. Its peers are a referee that folds the same records and writes what living brokers would write; their time,
the servers' and what a real process does on a thread (`run_blocking`) do not count.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from typing import Any

import msgspec

from bench.turns_loop import TurnLoop
from bench.turns_referee import PARTITIONS, TOPIC, Referee
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.suspicion import Answer, SuspicionReport
from loadmanager.cluster.views import SUSPICIONS_TOPIC
from loadmanager.model.host import BundleLoad, Destination
from loadmanager.model.load import (
    BROKERS_TOPIC,
    BUNDLES_TOPIC,
    BrokerLoadData,
    Figures,
    LoadedBundle,
    TopBundlesLoadData,
)
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings import Settings
from loadmanager_api.cli.broker import GC_THRESHOLDS
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId, Token
from statechannel.law.snapshot import SNAPSHOTS, SnapshotInfo, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.ports import Payload, TopicSpec
from tests.simulator.simulated_log import SimulatedLogServer
from tests.simulator.world import World

TOP_BUNDLES = 10
GENESIS = ClusterIdentity("bench", "bench-1", 0)
ENDLESS_S = 1e9
LOAD = BundleLoad(in_rate_msg_s=1.0)


class QuickHost:
    """A service that takes and gives everything at once. What it has is worth a message a second each."""

    def __init__(self) -> None:
        self._loads: dict[Bundle, BundleLoad] = {}

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self._loads[bundle] = LOAD

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        self._loads.pop(bundle, None)

    async def abandon(self, bundle: Bundle) -> None:
        self._loads.pop(bundle, None)

    async def load(self) -> dict[Bundle, BundleLoad]:
        return dict(self._loads)


class SteadySensors:
    """A machine that is a third busy."""

    def read(self) -> Figures:
        return Figures(35.0, 20.0, 8.0, 1 << 34, 35.0, 20.0)


class TurnsWorld(World):
    """`brokers` peers and the node, which is the first of them; a million bundles in the log's snapshots."""

    def __init__(self, brokers: int, namespaces: int, bundles_each: int, grouped: int, bound_s: float) -> None:
        super().__init__(1)
        self.loop: TurnLoop = TurnLoop(bound_s)
        self.log = SimulatedLogServer(self.random, self.wall_ms)
        self.log.compaction_chance = 0.0
        self.brokers = [BrokerId(f"broker-{number:04d}.example:8080", 3) for number in range(brokers)]
        self.group = self.brokers[brokers - grouped :]
        """Those to which an isolation policy binds the namespaces of the tenant `pay`."""
        self.namespaces, self.bundles_each = namespaces, bundles_each
        self.node: Node
        self.referee = Referee(self)
        self._sessions: dict[str, int] = {}

    # --- building

    def fill(self) -> None:
        """Topics, snapshots and load reports, and the referee's own table."""
        self.log.open_topic(TopicSpec(TOPIC, PARTITIONS))
        self.log.open_topic(TopicSpec(TOPIC + SNAPSHOTS, PARTITIONS, compacted=True))
        for state in self._states():
            stored = self.log.partitions(TOPIC)[state.partition]
            stored.skip(state.next_offset)
            stored.trim(state.next_offset)
            *chunks, info = encode(state, f"bench-{state.partition}", 0)
            assert isinstance(info, SnapshotInfo)
            payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
            payloads += closing(None, GENESIS, state.partition, info, ())
            self.log.append(TOPIC + SNAPSHOTS, state.partition, payloads)
            self.referee.table.restore(state)
        for topic in (BROKERS_TOPIC, BUNDLES_TOPIC):
            self.log.open_topic(TopicSpec(topic, 1, compacted=True))
        self.log.open_topic(TopicSpec(SUSPICIONS_TOPIC, 1, compacted=True))
        gc.collect()
        gc.freeze()  # as a broker's process does with its modules; and the referee's table is not the node's
        gc.set_threshold(*GC_THRESHOLDS)
        self.log.on_append = self.referee.saw

    def _states(self) -> Iterator[PartitionState]:
        namers = OwnershipTable(PARTITIONS)
        shared, bound = self.brokers[: -len(self.group)], self.group
        of_group = self.namespaces * len(bound) // len(self.brokers)
        names = [f"{'pay' if n < of_group else 'shop'}/namespace-{n}" for n in range(self.namespaces)]
        for partition in range(PARTITIONS):
            offset, found = 1, list[NamespaceState]()
            for name in sorted(name for name in names if namers.partition_of(name) == partition):
                owners = bound if name.startswith("pay/") else shared
                entries: list[Ownership] = []
                for index, bundle in enumerate(tile(name, even_boundaries(self.bundles_each))):
                    owner = owners[(index + offset) % len(owners)]
                    entries.append(
                        Ownership(bundle, State.ASSIGNED, owner, None, offset + 1, offset, Action.RETURN, owner)
                    )
                    offset += 2
                found.append(NamespaceState(name, offset, entries))
            cluster_identity = GENESIS if partition == 0 else None
            yield PartitionState(partition, offset, cluster_identity, Lead(), None, (), tuple(found), (), ())

    def enter(self, broker: BrokerId) -> None:
        """A peer is registered, in a session of its own that needs no heartbeats."""
        link = self.network.link(broker.name, "coordination")
        self._sessions[broker.name], _ = self.coordination.open_session(ENDLESS_S, link, lambda _: None)
        link.close()
        self.register(broker)

    def register(self, broker: BrokerId, *, draining: bool = False) -> None:
        """What the others know of it."""
        registration = Registration(admin_url=f"http://{broker.name}", draining=draining)
        self.coordination.register(self._sessions[broker.name], broker, registration.encode())

    def report(self, brokers: Iterable[BrokerId]) -> None:
        """The peers' loads, between 30 and 40 %, with their hottest bundles."""
        loads: list[Payload] = []
        tops: list[Payload] = []
        count = self.namespaces * self.bundles_each // len(self.brokers)
        for row, broker in enumerate(brokers):
            load = BrokerLoadData(
                broker, self.wall_ms(), 30.0 + row % 11, 20.0, in_rate_msg_s=1000.0, bundles=count,
                capacity={"cpu": 8.0, "memory_bytes": float(1 << 34)},
            )  # fmt: skip
            hot = tuple(
                LoadedBundle(bundle, BundleLoad(in_rate_msg_s=5.0 + number, cpu_percent=0.5))
                for number, bundle in enumerate(self.referee.some_of(broker, TOP_BUNDLES))
            )
            top = TopBundlesLoadData(broker, self.wall_ms(), hot, BundleLoad(in_rate_msg_s=1000.0), count)
            loads.append(Payload(broker.name.encode(), msgspec.json.encode(load)))
            tops.append(Payload(broker.name.encode(), msgspec.json.encode(top)))
        self.log.append(BROKERS_TOPIC, 0, loads)
        self.log.append(BUNDLES_TOPIC, 0, tops)

    async def start(self) -> None:
        """The node, until it leads and nothing is on its way."""
        own = self.process("node", drift=0.0, offset_s=0.0)
        self.loop.measured = own
        name = self.brokers[0].name
        settings = Settings.model_construct(cluster="bench", partitions=PARTITIONS, advertised=name)

        async def live() -> None:
            dependencies = Dependencies(
                log=self.log_client(own),
                coordination=self.coordination_client(own),
                clock_s=self.loop.time,
                wall_ms=self.wall_ms,
                nonce="node",
                probe=self._probe,
                sensors=SteadySensors(),
                run_blocking=self._run_blocking,
            )
            self.node = Node(settings, QuickHost(), HostRunner(), dependencies)
            await self.node.run()

        own.start(live)
        await asyncio.sleep(0)
        await self.until(lambda: self.node.ready.is_set(), 60, "the node is ready")
        await self.until(lambda: self.node.current.leader.leading is not None, 60, "the node leads")
        await self.settled()

    async def settled(self, within_s: float = 600.0, unplaced: int = 0) -> None:
        """Everything is where it belongs, but for so many bundles that have no place."""
        table = self.node.channel.table

        def at_rest() -> bool:
            states = table.count_by_state()
            moving = len(table) - states[State.ASSIGNED] - states[State.UNASSIGNED]
            return moving == 0 and states[State.UNASSIGNED] <= unplaced and not self._held_by_the_dead()

        await self.until(at_rest, within_s, "nothing is on its way", poll_s=0.1)

    def _held_by_the_dead(self) -> bool:
        return any(broker in self.referee.dead for broker in self.node.channel.table.holders())

    async def _run_blocking(self, work: Callable[[], Any]) -> Any:
        """On a thread of a real process: its time is not the loop's."""
        answer = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001 - the caller's
                answer.set_exception(error)

        Context().run(self.loop.call_soon, run)
        return await answer

    async def _probe(self, peer: Peer, keep_s: float) -> Answer:
        if peer.broker in self.referee.dead:
            return Answer.REFUSED
        await asyncio.sleep(keep_s)
        return Answer.ENDED if peer.broker in self.referee.dead else Answer.OPEN

    # --- what happens

    def kill(self, broker: BrokerId) -> None:
        """Its port refuses; four of the others say so, and its session ends some seconds later."""
        self.referee.dead.add(broker)
        observers = self.referee.random.sample([b for b in self.brokers[1:] if b not in self.referee.dead], 4)
        payloads = [
            Payload(f"{each.name}>{broker.name}".encode(), msgspec.json.encode(SuspicionReport(each, broker)))
            for each in observers
        ]
        loop = asyncio.get_running_loop()
        loop.call_later(self.referee.random.uniform(0.5, 0.8), self.log.append, SUSPICIONS_TOPIC, 0, payloads)
        loop.call_later(8.0, self.coordination.close_session, self._sessions[broker.name])

    def restart(self, broker: BrokerId) -> BrokerId:
        """It ended its session in peace, and is here again under its next number."""
        self.coordination.close_session(self._sessions[broker.name])
        later = self.coordination.start_incarnation(broker.name, broker.incarnation)
        for some in (self.brokers, self.group):
            if broker in some:
                some[some.index(broker)] = later
        self.enter(later)
        return later
