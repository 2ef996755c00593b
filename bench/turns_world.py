"""The world of `turns`: one real node among simulated peers, on virtual time, with the CPU time of each turn of its
loop.

The node is all of a broker but its doors and its adapters: table, replica, agent, leader, placing, views, balancing.
Its peers are a referee that folds the same records and writes what living brokers would write; their time, the
servers' and what a real process does on a thread (`apart`) do not count.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from random import Random
from typing import Any

import msgspec

from api.cli.broker import GC_THRESHOLDS
from loadmanager.drain import SUBJECTS_A_RECORD
from loadmanager.host import BundleLoad, Destination
from loadmanager.hosting import HostRunner
from loadmanager.load.model import (
    BROKERS_TOPIC,
    BUNDLES_TOPIC,
    BrokerLoadData,
    Figures,
    LoadedBundle,
    TopBundlesLoadData,
)
from loadmanager.node import Node
from loadmanager.registration import Peer, Registration
from loadmanager.settings import Settings
from loadmanager.sim.log_server import SimulatedLogServer
from loadmanager.sim.loop import VirtualLoop
from loadmanager.sim.process import Process
from loadmanager.sim.world import EPOCH_MS, World
from loadmanager.surroundings import Surroundings
from loadmanager.suspicion import Accusation, Answer
from loadmanager.views import ACCUSATIONS_TOPIC
from statechannel import codec
from statechannel.bundle import Bundle, even_boundaries, tile
from statechannel.partition import Genesis, Lead, NamespaceState, PartitionState
from statechannel.ports import LogEntry, Payload, TopicSpec
from statechannel.record import Action, Broker, Record, Role, Subject, Token
from statechannel.snapshot import SNAPSHOTS, SnapshotInfo, closing, encode
from statechannel.table import OwnershipTable
from statechannel.transitions import State
from statechannel.verdict import Change, Ownership, Transition

TOPIC = "bundle-state"
PARTITIONS = 4
TOP_BUNDLES = 10
GENESIS = Genesis("bench", "bench-1", 0)
ENDLESS_S = 1e9


class Turns(msgspec.Struct):
    """The turns of the loop of one scenario, in CPU time. A turn is all that was ready at its beginning."""

    longest_s: float = 0.0
    longest_of: str = ""
    """The call that took most of the longest turn."""
    over: int = 0
    """How many turns took more than the bound."""
    total_s: float = 0.0
    turns: int = 0
    collecting_s: float = 0.0
    """The longest pause for Python's search for cycles, which some turn contains."""


class TurnLoop(VirtualLoop):
    """A virtual loop that notes how long each turn of one process takes."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(instant_limit=50_000_000)
        self.measured: Process | None = None
        self.noted = Turns()
        self.bound_s = bound_s

    def _run_instant(self) -> None:
        while self._ready and not self._stopping:
            self._run_turn(len(self._ready))

    def _run_turn(self, calls: int) -> None:
        turn_s, longest_s, longest_of = 0.0, 0.0, ""
        for _ in range(calls):
            call = self._ready.popleft()
            callback, process = call.callback, call.process
            if callback is None or not process.running:
                continue
            mine = process is self.measured
            begin_s = time.thread_time() if mine else 0.0
            try:
                call.context.run(callback, *call.args)
            except Exception as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"in a callback of {process.name}", "exception": error})
            if mine:
                took_s = time.thread_time() - begin_s
                turn_s += took_s
                if took_s > longest_s:
                    longest_s, longest_of = took_s, _name_of(callback)
        if turn_s:
            noted = self.noted
            noted.turns += 1
            noted.total_s += turn_s
            noted.over += turn_s > self.bound_s
            if turn_s > noted.longest_s:
                noted.longest_s, noted.longest_of = turn_s, f"{longest_of} {longest_s * 1e3:.1f} ms of {calls} calls"


def _name_of(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", repr(owner))
    return getattr(callback, "__qualname__", repr(callback))


class IdleHost:
    """A service that takes and gives everything at once."""

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None: ...

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None: ...

    async def abandon(self, bundle: Bundle) -> None: ...

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}


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
        self.brokers = [Broker(f"broker-{number:04d}.example:8080", 3) for number in range(brokers)]
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
        self.log.open_topic(TopicSpec(ACCUSATIONS_TOPIC, 1, compacted=True))
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
            genesis = GENESIS if partition == 0 else None
            yield PartitionState(partition, offset, genesis, Lead(), None, (), tuple(found), (), ())

    def enter(self, broker: Broker) -> None:
        """A peer is there, in a session of its own that nobody has to keep."""
        link = self.network.link(broker.name, "coordination")
        self._sessions[broker.name], _ = self.coordination.open_session(ENDLESS_S, link, lambda _: None)
        link.close()
        self.register(broker)

    def register(self, broker: Broker, *, draining: bool = False) -> None:
        """What the others know of it."""
        registration = Registration(admin_url=f"http://{broker.name}", draining=draining)
        self.coordination.register(self._sessions[broker.name], broker, registration.encode())

    def report(self, brokers: Iterable[Broker]) -> None:
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
            surroundings = Surroundings(
                log=self.log_client(own),
                coordination=self.coordination_client(own),
                clock_s=self.loop.time,
                wall_ms=self.wall_ms,
                nonce="node",
                probe=self._probe,
                sensors=SteadySensors(),
                apart=self._apart,
            )
            self.node = Node(settings, IdleHost(), HostRunner(), surroundings)
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

    async def _apart(self, work: Callable[[], Any]) -> Any:
        """On a thread of a real process: its time is not the loop's."""
        answer = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001 - the caller's
                answer.set_exception(error)

        Context().run(self.loop.call_soon, run)
        return await answer

    async def _probe(self, peer: Peer) -> Answer:
        return Answer.REFUSED if peer.broker in self.referee.dead else Answer.OPEN

    # --- what happens

    def kill(self, broker: Broker) -> None:
        """Its port refuses; four of the others say so, and its session ends some seconds later."""
        self.referee.dead.add(broker)
        accusers = self.referee.random.sample([b for b in self.brokers[1:] if b not in self.referee.dead], 4)
        payloads = [
            Payload(f"{each.name}>{broker.name}".encode(), msgspec.json.encode(Accusation(each, broker)))
            for each in accusers
        ]
        loop = asyncio.get_running_loop()
        loop.call_later(self.referee.random.uniform(0.5, 0.8), self.log.append, ACCUSATIONS_TOPIC, 0, payloads)
        loop.call_later(8.0, self.coordination.close_session, self._sessions[broker.name])

    def restart(self, broker: Broker) -> Broker:
        """It ended its session in peace, and is here again under its next number."""
        self.coordination.close_session(self._sessions[broker.name])
        later = self.coordination.start_incarnation(broker.name, broker.incarnation)
        for some in (self.brokers, self.group):
            if broker in some:
                some[some.index(broker)] = later
        self.enter(later)
        return later


class Referee:
    """Folds the channel as every broker does, and writes what the living peers would."""

    def __init__(self, world: TurnsWorld) -> None:
        self.table = OwnershipTable(PARTITIONS)
        self.dead: set[Broker] = set()
        self.random = Random(2)
        self._world = world
        self._written = 0
        self._owed: dict[tuple[int, Broker, Action, Broker | None], list[Subject]] = {}

    def saw(self, topic: str, entry: LogEntry) -> None:
        """An entry was taken by the log."""
        if topic != TOPIC or entry.value is None:
            return
        verdict = self.table.replay(entry.partition, entry.offset, codec.decode(entry.value))
        if isinstance(verdict, Change) and verdict.record.action is not Action.CREATE_NAMESPACE:
            for transition in verdict.transitions:
                self._owe(entry.partition, transition)

    def _owe(self, partition: int, transition: Transition) -> None:
        after = transition.after
        if after is None:
            return
        who, to = after.holder, None
        match after.state:
            case State.ASSIGNING:
                action = Action.RETURN
            case State.TRANSFERRING:
                who, action = after.target, Action.READY
            case State.RELEASING:
                action, to = Action.RELEASE, None
            case State.REVOKING:
                action = Action.RELEASE
            case _:
                return
        if who is None or who in self.dead or who.name == self._world.brokers[0].name:
            return
        if not self._owed:
            Context().run(self._world.loop.call_later, 0.002, self._pay)
        self._owed.setdefault((partition, who, action, to), []).append(Subject(after.bundle, after.revision))

    def _pay(self) -> None:
        owed, self._owed = self._owed, {}
        for (partition, who, action, to), subjects in owed.items():
            self.write(partition, Record("", action, who, Role.BROKER, to=to), subjects)

    def write(self, partition: int, record: Record, subjects: list[Subject]) -> None:
        """Append the record, in parts."""
        payloads: list[Payload] = []
        for begin in range(0, len(subjects), SUBJECTS_A_RECORD):
            self._written += 1
            part = msgspec.structs.replace(
                record, id=f"referee-{self._written}", at_ms=EPOCH_MS,
                subjects=tuple(subjects[begin : begin + SUBJECTS_A_RECORD]),
            )  # fmt: skip
            payloads.append(Payload(None, codec.encode(part)))
        self._world.log.append(TOPIC, partition, payloads)

    def some_of(self, broker: Broker, count: int) -> list[Bundle]:
        """A few bundles that the broker holds."""
        found: list[Bundle] = []
        for name in self.table.namespaces_of(broker):
            namespace = self.table.namespace(name)
            assert namespace is not None
            found += [entry.bundle for entry in namespace.entries if entry.holder == broker]
            if len(found) >= count:
                break
        return found[:count]

    def drain(self, brokers: list[Broker], targets: list[Broker]) -> None:
        """These leave: each transfers all it holds, a part to each of some of the others."""
        held: dict[Broker, list[Ownership]] = {broker: [] for broker in brokers}
        for entry in self.table:  # once for all of them
            if entry.holder in held and entry.state is State.ASSIGNED:
                held[entry.holder].append(entry)
        for broker, entries in held.items():
            some = self.random.sample(targets, min(10, len(targets)))
            moves: dict[tuple[int, Broker], list[Subject]] = {}
            for index, entry in enumerate(entries):
                place = self.table.partition_of(entry.bundle.namespace), some[index * len(some) // len(entries)]
                moves.setdefault(place, []).append(Subject(entry.bundle, entry.revision))
            for (partition, to), subjects in moves.items():
                record = Record("", Action.TRANSFER, broker, Role.BROKER, to=to, reason="drain")
                self.write(partition, record, subjects)


@contextmanager
def noting(world: TurnsWorld) -> Generator[Turns]:
    """The turns of what happens inside."""
    noted = world.loop.noted = Turns()
    begun_s = 0.0

    def collecting(phase: str, _info: dict[str, int]) -> None:
        nonlocal begun_s
        if phase == "start":
            begun_s = time.thread_time()
        else:
            noted.collecting_s = max(noted.collecting_s, time.thread_time() - begun_s)

    gc.callbacks.append(collecting)
    try:
        yield noted
    finally:
        gc.callbacks.remove(collecting)
        world.loop.noted = Turns()
