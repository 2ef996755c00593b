"""The auditor of snapshots: what it says of right and wrong ones, and of trimming."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from statechannel.law.bundle import even_boundaries
from statechannel.law.partition import ClusterIdentity, Lead, PartitionState
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.snapshot import Index, SnapshotInfo, SnapshotsReader, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.ports import LogEntry, Payload
from tests.simulator.audits import SnapshotAudit

ADMIN = BrokerId("admin:1", 1)
RETENTION_S = 4.0


class Scene:
    """One partition, an audit of it, and a snapshots topic that is written by hand."""

    def __init__(self) -> None:
        self.table = OwnershipTable(1)
        self.now_ms = 1_000_000
        self.wrong: list[str] = []
        self.audit = SnapshotAudit(self.table, lambda: self.now_ms, RETENTION_S, self.wrong.append, lambda _: None)
        self.reader = SnapshotsReader(0)
        self.replay(Record("1", Action.GENESIS, ADMIN, cluster="test"))
        self.ends = 0
        self.numbers = 0

    def replay(self, record: Record) -> None:
        self.table.replay(0, self.table.next_offset(0), record)
        self.audit.folded(0, accepted=self.table.next_offset(0))

    def create(self, name: str) -> None:
        self.replay(
            Record(name, Action.CREATE_NAMESPACE, ADMIN, Role.ADMIN, namespace=name, boundaries=even_boundaries(2))
        )

    def take(self, payloads: list[Payload]) -> None:
        for payload in payloads:
            entry = LogEntry(0, self.ends, payload.key, payload.value, self.now_ms)
            self.ends += 1
            self.reader.take(entry)
            self.audit.appended(entry)

    def snapshot(
        self,
        change: Callable[[PartitionState], PartitionState] = lambda state: state,
        keep: int = 10,
        known: Index | None = None,
    ) -> SnapshotInfo:
        """Write one as the channel owner does, of the state that `change` makes of the present one."""
        self.numbers += 1
        *chunks, info = encode(change(self.table.cut(0)), f"s{self.numbers}", self.now_ms)
        assert isinstance(info, SnapshotInfo)
        known = known or self.reader.index
        kept = {each.snapshot_id for each in (known.snapshots if known else ())[-keep:]} if keep else set[str]()
        cluster_identity = self.table.cluster_identity
        assert cluster_identity is not None
        self.take([*(c for c in chunks if isinstance(c, Payload)), *closing(known, cluster_identity, 0, info, kept)])
        return info


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_snapshots_of_what_the_log_said_are_right(scene: Scene) -> None:
    for name in ("t/a", "t/b", "t/c"):
        scene.create(name)
        scene.snapshot(keep=1)
    scene.audit.check_chunks()
    assert scene.wrong == []
    assert scene.audit.written == 3


def test_one_that_forgot_something_is_told_with_what_it_forgot(scene: Scene) -> None:
    scene.replay(Record("2", Action.LEAD, ADMIN, Role.LEADER, epoch=7))
    scene.snapshot(lambda state: msgspec.structs.replace(state, lead=Lead()))
    (told,) = scene.wrong
    assert "SNAPSHOT AND REPLAY DIFFER" in told
    assert "it says Lead(epoch=0" in told


def test_one_that_covers_what_the_log_has_not_reached_is_told(scene: Scene) -> None:
    scene.snapshot(lambda state: msgspec.structs.replace(state, next_offset=5))
    assert "where the log has not been" in scene.wrong[0]


def test_an_older_one_in_place_of_the_newest_is_told(scene: Scene) -> None:
    scene.snapshot()
    stale = scene.reader.index
    old = scene.table.cut(0)
    scene.create("t/a")
    scene.snapshot()
    scene.snapshot(lambda _: old, known=stale)
    assert any("went back: the newest covered 2, and now 1" in told for told in scene.wrong)


def test_chunks_that_nobody_lists_and_listed_ones_that_are_gone_are_told(scene: Scene) -> None:
    first = scene.snapshot()
    scene.take([Payload(b"stray/0", b"x")])
    scene.audit.check_chunks()
    scene.take([Payload(b"stray/0", None), Payload(f"{first.snapshot_id}/0".encode(), None)])
    scene.audit.check_chunks()
    assert "too many are [b'stray/0'], too few []" in scene.wrong[0]
    assert "too many are [], too few [b's1/0']" in scene.wrong[1]


def test_an_index_that_does_not_read_is_told(scene: Scene) -> None:
    scene.snapshot()
    scene.take([Payload(b"index", b"nonsense")])
    assert "does not read" in scene.wrong[0]


def test_the_log_may_be_trimmed_to_the_oldest_snapshot_once_that_is_old(scene: Scene) -> None:
    info = scene.snapshot()
    scene.create("t/a")
    scene.snapshot()
    scene.now_ms += round(RETENTION_S * 1000)
    scene.audit.trimmed(0, info.next_offset)
    assert scene.wrong == []
    assert scene.audit.trims == 1


def test_trimming_beyond_the_oldest_snapshot_or_too_early_is_told(scene: Scene) -> None:
    info = scene.snapshot()
    scene.audit.trimmed(0, info.next_offset)
    assert "the last is only 0 ms old" in scene.wrong.pop()
    scene.now_ms += 10_000
    scene.create("t/a")
    scene.now_ms += 10_000
    scene.audit.trimmed(0, info.next_offset + 1)
    assert "its oldest snapshot covers only 1" in scene.wrong[0]


def test_a_list_with_a_snapshot_from_before_the_begin_is_told(scene: Scene) -> None:
    scene.snapshot()
    scene.create("t/a")
    scene.now_ms += 10_000
    scene.audit.trimmed(0, 2)
    scene.wrong.clear()
    scene.snapshot()
    assert "though the log begins at 2" in scene.wrong[0]


def test_a_replica_that_loaded_something_else_is_told(scene: Scene) -> None:
    info, state = scene.snapshot(), scene.table.cut(0)
    scene.audit.loaded("b:1", info, state)
    assert scene.wrong == []
    scene.audit.loaded("b:1", info, msgspec.structs.replace(state, cluster_identity=ClusterIdentity("other", "2", 0)))
    assert "the replica that b:1 loaded from s1" in scene.wrong[0]
