"""A hand-driven channel for the tests of the law: writes records as a broker would, and replays them at once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import NEVER, UNSAID, Action, BrokerId, Record, Role, Subject
from statechannel.law.snapshot import chunk_key
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership, Refusal

from .snapshots import Topic, two_snapshots

NAMESPACE = "shop/orders"


class Ledger:
    """One log, and one table that has replayed all of it. `seen` is the present revision unless a test says else."""

    A, A2 = BrokerId("a:6650", 1), BrokerId("a:6650", 2)
    B, C = BrokerId("b:6650", 1), BrokerId("c:6650", 1)
    LEADER = BrokerId("c:6650", 1)

    def __init__(self, partitions: int = 1) -> None:
        self.table = OwnershipTable(partitions)
        self.log: list[tuple[int, int, Record | bytes]] = []
        """Partition, offset, and what was written: bytes if they are no record."""

    def begin(self, bundles: int = 2, namespace: str = NAMESPACE) -> tuple[Bundle, ...]:
        """A leader in every partition and one namespace; its bundles."""
        for partition in range(self.table.partitions):
            self.lead(1, partition=partition)
        self.create_namespace(namespace, even_boundaries(bundles))
        return self.bundles(namespace)

    def bundles(self, namespace: str = NAMESPACE) -> tuple[Bundle, ...]:
        known = self.table.namespace(namespace)
        return known.bundles if known else ()

    def replay(self, record: Record, partition: int | None = None) -> Change | Refusal:
        """Append a record to the partition it belongs to (or to the one given) and replay it."""
        if partition is None:
            names = [record.namespace or "", *(s.bundle.namespace for s in record.subjects)]
            partition = self.table.partition_of(next((name for name in names if name), ""))
        offset = self.table.next_offset(partition)
        self.log.append((partition, offset, record))
        return self.table.replay(partition, offset, record)

    def record(
        self,
        action: Action,
        bundles: Bundle | Iterable[Bundle] = (),
        by: BrokerId = A,
        *,
        seen: int | None = None,
        role: Role = Role.BROKER,
        epoch: int = 0,
        to: BrokerId | None = None,
        boundaries: tuple[int, ...] = (),
        hand_off: bytes | None = None,
    ) -> Record:
        listed = (bundles,) if isinstance(bundles, Bundle) else tuple(bundles)
        subjects = tuple(Subject(b, self.revision(b) if seen is None else seen, hand_off) for b in listed)
        return Record(f"r{len(self.log)}", action, by, role, epoch, subjects, to, boundaries=boundaries)

    def write(self, action: Action, bundles: Bundle | Iterable[Bundle] = (), by: BrokerId = A, **more):
        """`record`, replayed."""
        return self.replay(self.record(action, bundles, by, **more))

    def as_leader(self, action: Action, bundles: Bundle | Iterable[Bundle], **more):
        return self.write(action, bundles, self.LEADER, role=Role.LEADER, **{"epoch": 1, **more})

    def as_admin(self, action: Action, bundles: Bundle | Iterable[Bundle], **more):
        return self.write(action, bundles, self.B, role=Role.ADMIN, **more)

    def lead(self, epoch: int, by: BrokerId = LEADER, partition: int = 0):
        return self.replay(Record(f"r{len(self.log)}", Action.LEAD, by, Role.LEADER, epoch), partition)

    def create_namespace(
        self, name: str, boundaries: tuple[int, ...], seen: int | None = None, role: Role = Role.ADMIN
    ):
        return self._namespace_record(Action.CREATE_NAMESPACE, name, seen, role, boundaries=boundaries)

    def delete_namespace(
        self, name: str, seen: int | None = None, role: Role = Role.ADMIN, *, tells_latest: bool = True
    ):
        """`tells_latest`: whether it says what its author saw of all the bundles, as format 3 can."""
        known = self.table.namespace(name)
        latest = UNSAID if not tells_latest else known.latest if known else NEVER
        return self._namespace_record(Action.DELETE_NAMESPACE, name, seen, role, seen_latest=latest)

    def _namespace_record(self, action: Action, name: str, seen: int | None, role: Role, **more):
        known = self.table.namespace(name)
        present = known.revision if known else NEVER
        record = Record(
            f"r{len(self.log)}",
            action,
            self.B,
            role,
            epoch=1 if role is Role.LEADER else 0,
            namespace=name,
            seen_namespace=present if seen is None else seen,
            **more,
        )
        return self.replay(record)

    def assign(self, bundle: Bundle, to: BrokerId = A) -> Ownership:
        """Own, then return: the bundle is Assigned(to)."""
        self.write(Action.OWN, bundle, to, to=to)
        self.write(Action.RETURN, bundle, to)
        return self.entry(bundle)

    def entry(self, bundle: Bundle) -> Ownership:
        entry = self.table.get(bundle)
        assert entry is not None, f"there is no {bundle}"
        return entry

    def revision(self, bundle: Bundle) -> int:
        entry = self.table.get(bundle)
        return entry.revision if entry else NEVER


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(scope="session")
def new_ledger() -> type[Ledger]:
    """For property tests: each example makes its own."""
    return Ledger


@pytest.fixture
def topic(ledger) -> Topic:
    topic = two_snapshots(ledger)
    assert [chunk_key("new", n) in topic.keys for n in range(5)] == [True] * 4 + [False]
    return topic
