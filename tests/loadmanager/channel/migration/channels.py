"""Logs to move: tables out of random histories and by hand, servers of their own in a simulated world, and a hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.log_import import Planned
from loadmanager.channel.migration.move import Place, Terms
from loadmanager.channel.migration.offline_log import TOPIC, FoldedLog
from statechannel.law import codec
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import Payload, TopicSpec
from tests.simulator.simulated_coordination import SimulatedCoordination, SimulatedCoordinationServer
from tests.simulator.simulated_log import SimulatedLog, SimulatedLogServer
from tests.simulator.world import World
from tests.statechannel.auditor import History

S = TypeVar("S", bound=msgspec.Struct)

GENESIS = ClusterIdentity("shop", "g-1", 3)
A, B = BrokerId("a:1", 4), BrokerId("b:1", 2)
ADMIN = BrokerId("admin:1", 1)
TERMS = Terms("shop", None, 2.0, 0.1, now_ms=5)


class Book:
    """A table with all its records, as `History` writes them."""

    def __init__(self, partitions: int = 1, cluster_identity: ClusterIdentity | None = GENESIS) -> None:
        self.table = OwnershipTable(partitions)
        self.log: list[tuple[int, int, Record]] = []
        if cluster_identity is not None:
            begin = Record(
                cluster_identity.identity,
                Action.GENESIS,
                ADMIN,
                cluster=cluster_identity.cluster,
                epoch=cluster_identity.generation,
            )
            self.replay(begin, 0)

    def replay(self, record: Record, partition: int | None = None) -> Change | Refusal:
        if partition is None:
            name = record.namespace or record.subjects[0].bundle.namespace
            partition = self.table.partition_of(name)
        offset = self.table.next_offset(partition)
        self.log.append((partition, offset, record))
        return self.table.replay(partition, offset, record)

    def accept(self, record: Record) -> None:
        verdict = self.replay(record)
        assert isinstance(verdict, Change), verdict

    def create(self, namespace: str, boundaries: tuple[int, ...]) -> tuple[Bundle, ...]:
        known = self.table.namespace(namespace)
        self.accept(
            Record(
                "c", Action.CREATE_NAMESPACE, ADMIN, Role.ADMIN,
                namespace=namespace, boundaries=boundaries, seen_namespace=known.revision if known else NEVER,
            )
        )  # fmt: skip
        made = self.table.namespace(namespace)
        assert made is not None
        return made.bundles

    def do(self, action: Action, bundles: Iterable[Bundle], by: BrokerId, to: BrokerId | None = None) -> None:
        found = [self.table.get(bundle) for bundle in bundles]
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in found if entry is not None)
        self.accept(Record("d", action, by, subjects=subjects, to=to))

    def write(self, planned: Iterable[Planned]) -> list[Change | Refusal]:
        return [self.replay(each.record, each.partition) for each in planned]


def book_of(seed: int, steps: int, partitions: int = 2) -> Book:
    """A random history, and everybody's last move open where the dice left it."""
    book = Book(partitions)
    for record, home in History(book, seed).steps(steps):
        book.replay(record, home)
    return book


def exported(book: Book) -> Export:
    """As it is, with the genesis that it should have."""
    cuts = (book.table.cut(partition) for partition in range(book.table.partitions))
    return Export(GENESIS, 5, "sqlite:old.db", tuple(cuts))


def begun(partitions: int, generation: int = 4) -> Book:
    """A new log with the genesis record of an import."""
    return Book(partitions, ClusterIdentity("shop", f"import-{generation}-x", generation))


def two_namespaces() -> Book:
    """Some bundles at each of two brokers, some on their way, some with nobody, and a namespace that was deleted."""
    book = Book(2)
    first = book.create("shop/orders", even_boundaries(8))
    second = book.create("game/rooms", (0, 5, 0x40000000, 0xFFFFFFFF))
    book.do(Action.OWN, first[:4], A, A)
    book.do(Action.RETURN, first[:4], A)
    book.do(Action.OWN, (*first[4:6],), B, B)
    book.do(Action.TRANSFER, first[:1], A, B)
    book.do(Action.UNLOAD, first[1:2], A)
    book.do(Action.OWN, second[:2], B, B)
    book.create("shop/gone", even_boundaries(2))
    gone = book.table.namespace("shop/gone")
    assert gone is not None
    book.accept(
        Record(
            "x", Action.DELETE_NAMESPACE, ADMIN, Role.ADMIN, namespace="shop/gone",
            seen_namespace=gone.revision, seen_latest=gone.latest,
        )
    )  # fmt: skip
    return book


def owners(table: OwnershipTable) -> dict[Bundle, str | None]:
    return {entry.bundle: entry.holder.name if entry.holder else None for entry in table}


class Stores:
    """A log and a coordination service of their own, beside those of the world."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.log = SimulatedLogServer(world.random, world.wall_ms)
        self.coordination = SimulatedCoordinationServer(trace=lambda what: None)
        self._clients = 0

    async def place(self) -> Place:
        """Fresh clients of both."""
        self._clients += 1
        process, network = f"{self.name}-{self._clients}", self.world.network
        log = SimulatedLog(self.log, network, process, request_timeout_s=0.5)
        coordination = SimulatedCoordination(
            self.coordination, network, process, session_timeout_s=3.0, request_timeout_s=0.5
        )
        await log.start(5)
        await coordination.start(5)
        return Place(log, coordination, f"log {self.name}", f"coordination {self.name}")

    async def place_opened(self, partitions: int) -> Place:
        """The same, with the channel's topics there."""
        place = await self.place()
        await place.log.open_topic(TopicSpec(TOPIC, partitions))
        await place.log.open_topic(TopicSpec(TOPIC + SNAPSHOTS, partitions, compacted=True))
        return place

    async def folded(self, cause: str = "", partitions: int | None = None) -> FoldedLog:
        """What stands in the log now."""
        folded = FoldedLog((await self.place()).log, f"log {self.name}", cause)
        await folded.open(partitions)
        return folded

    async def hold(self, book: Book) -> None:
        """Let this be the log's content."""
        folded = await self.folded(partitions=book.table.partitions)
        for partition, _, record in book.log:
            payload = Payload(None, codec.encode(record, codec.version_of(record)))
            await folded.log.append(TOPIC, partition, [payload])

    def records(self) -> list[Record]:
        """Every record that stands in the log, partition after partition."""
        if TOPIC not in self.log._topics:
            return []
        return [codec.decode(entry.value) for p in self.log.partitions(TOPIC) for entry in p.read(0, 1 << 30)]


def with_numbers(table: OwnershipTable) -> dict[str, int]:
    return {name: table.highest_incarnation(name) for name in ("a:1", "b:1", "c:1")}


def replaced(value: S, **more: object) -> S:
    return msgspec.structs.replace(value, **more)
