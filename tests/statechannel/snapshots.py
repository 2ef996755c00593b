"""One partition of the snapshots topic, on paper; and the promise of snapshots, played on random histories.

`replayed_from` is what a starting broker does: the newest snapshot, then the log after it. `audit_snapshots` compares
it with a replica that read the whole log; `test_snapshot.py` does so on the code as it is, `test_snapshot_mutants.py`
on code that forgets something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random

import msgspec

from statechannel.law import snapshot
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.snapshot import CHUNK_BUNDLES, Index, SnapshotInfo, SnapshotsReader, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import IN_FLIGHT, State
from statechannel.law.verdict import Change, Ownership, Refusal
from statechannel.ports import LogEntry, Payload

from .auditor import BROKERS, NAMESPACES, History, promise

GENESIS = ClusterIdentity("north", "g-1", 3)
Logged = tuple[int, int, Record]
FEW_BUNDLES = 2
"""In one chunk, so that the smallest history needs several."""

A, B = BrokerId("a:6650", 1), BrokerId("b:6650", 1)


def entry(bundle: Bundle, **more: object) -> Ownership:
    fine = Ownership(bundle, State.ASSIGNED, A, None, 7, 3, Action.RETURN, A)
    return msgspec.structs.replace(fine, **more)


def state_of(*namespaces: tuple[str, list[Ownership]], **more: object) -> PartitionState:
    listed = tuple(NamespaceState(name, 7, entries) for name, entries in namespaces)
    bare = PartitionState(0, 9, GENESIS, Lead(2, B), None, (("a:6650", 1),), listed, (), ())
    return msgspec.structs.replace(bare, **more)


def evenly(namespace: str, bundles: int, **more: object) -> tuple[str, list[Ownership]]:
    return namespace, [entry(bundle, **more) for bundle in tile(namespace, even_boundaries(bundles))]


class Topic:
    """The entries of a partition of the snapshots topic, oldest first."""

    def __init__(self, partition: int = 0, chunk_bundles: int = CHUNK_BUNDLES) -> None:
        self.partition = partition
        self.chunk_bundles = chunk_bundles
        self.entries: list[LogEntry] = []
        self.next_offset = 0

    def commit(self, payloads: Iterable[Payload]) -> None:
        for payload in payloads:
            self.entries.append(LogEntry(self.partition, self.next_offset, payload.key, payload.value, 0))
            self.next_offset += 1

    def compact(self, *, with_tombstones: bool = True) -> None:
        """Only the last entry of each key stays; later not even that if it deletes."""
        last = {entry.key: entry for entry in self.entries}
        self.entries = [e for e in self.entries if last[e.key] is e and (with_tombstones or e.value is not None)]

    def replace(self, key: bytes, value: bytes | None) -> None:
        """As if this had been written under a key, or (None) nothing at all."""
        self.entries = [
            LogEntry(e.partition, e.offset, e.key, value, 0) if e.key == key else e
            for e in self.entries
            if e.key != key or value is not None
        ]

    def value(self, key: bytes) -> bytes:
        found = [entry.value for entry in self.entries if entry.key == key]
        assert found, f"nothing under {key!r}"
        assert found[-1] is not None
        return found[-1]

    @property
    def keys(self) -> list[bytes]:
        return [entry.key for entry in self.entries if entry.key is not None]

    def read(self, partition: int | None = None) -> SnapshotsReader:
        reader = SnapshotsReader(self.partition if partition is None else partition)
        for entry in self.entries:
            reader.take(entry)
        return reader

    def index(self) -> Index | None:
        return self.read().index

    def known(self) -> Index:
        """The index of a topic that has one."""
        index = self.index()
        assert index is not None
        return index


def write(topic: Topic, state: PartitionState, name: str, keep: Collection[str] = ()) -> SnapshotInfo:
    """A snapshot in one transaction."""
    *chunks, info = encode(state, name, 0, topic.chunk_bundles)
    assert isinstance(info, SnapshotInfo)
    payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
    topic.commit([*payloads, *snapshot.closing(topic.index(), GENESIS, topic.partition, info, keep)])
    return info


def newest(topic: Topic) -> PartitionState:
    """What the newest snapshot in the topic says. Raises BadSnapshot."""
    reader = topic.read()
    assert reader.index is not None
    return reader.state(reader.index.newest.snapshot_id)


def there_and_back(state: PartitionState, chunk_bundles: int = CHUNK_BUNDLES) -> PartitionState:
    """A state as it is after a journey through the topic."""
    topic = Topic(state.partition, chunk_bundles)
    write(topic, state, "s")
    topic.compact()
    return newest(topic)


def replay_all(table: OwnershipTable, log: Iterable[Logged]) -> dict[tuple[int, int], Change | Refusal]:
    """The verdict of each record that the table has not replayed yet."""
    return {
        (partition, offset): table.replay(partition, offset, record)
        for partition, offset, record in log
        if offset >= table.next_offset(partition)
    }


def replayed_from(states: Iterable[PartitionState], log: list[Logged], known: int = 0, partitions: int = 2):
    """A table that had read `known` records of the log, loads snapshots, and reads on; and its verdicts of that."""
    table = OwnershipTable(partitions)
    replay_all(table, log[:known])
    for state in states:
        table.restore(state)
        table.check_invariants()
    return table, replay_all(table, log)


def history(
    ledger, seed: int, steps: int, snapshot_at: int
) -> tuple[list[PartitionState], dict[tuple[int, int], object]]:
    """Plays a history on the ledger: its partitions as they were after `snapshot_at` records, and all verdicts."""
    states: list[PartitionState] = []
    verdicts: dict[tuple[int, int], object] = {}
    for number, (record, home) in enumerate(History(ledger, seed).steps(steps)):
        if number == snapshot_at:
            states = cuts(ledger.table)
        offset = ledger.table.next_offset(home)
        verdicts[home, offset] = ledger.replay(record, home)
    return states or cuts(ledger.table), verdicts


def cuts(table: OwnershipTable) -> list[PartitionState]:
    return [table.cut(partition) for partition in range(table.partitions)]


def audit_snapshots(ledger, seed: int, steps: int, snapshot_at: int, chunk_bundles: int = CHUNK_BUNDLES) -> None:
    """Snapshot and tail equal full replay. Raises Violation, or whatever the table itself raises."""
    states, verdicts = history(ledger, seed, steps, snapshot_at)
    known = Random(seed).choice((0, snapshot_at // 2, snapshot_at))
    table, later = replayed_from([there_and_back(state, chunk_bundles) for state in states], ledger.log, known)
    table.check_invariants()
    promise(later == {at: verdicts[at] for at in later}, "a record has another verdict after a snapshot")
    for record, home in [(record, home) for home, _, record in ledger.log[-8:]]:
        offset = max(each.next_offset(home) for each in (table, ledger.table))
        promise(
            table.replay(home, offset, record) == ledger.table.replay(home, offset, record), "a copy is judged anew"
        )
    check_same(table, ledger.table)


def check_same(one: OwnershipTable, other: OwnershipTable) -> None:
    """All that can be asked of a table."""
    for partition in range(other.partitions):
        promise(one.digest(partition) == other.digest(partition), "the digests differ")
        promise(one.next_offset(partition) == other.next_offset(partition), "an offset was lost")
        promise(one.lead(partition) == other.lead(partition), "an epoch was lost")
        promise(one.retired(partition) == other.retired(partition), "it was forgotten that the log is closed")
    promise(one.cluster_identity == other.cluster_identity, "the cluster was lost")
    promise(list(by_name(one)) == list(by_name(other)), "a namespace was lost")
    promise({e.bundle: e for e in one} == {e.bundle: e for e in other}, "the entries differ")
    promise(all(one.token(e) == other.token(e) for e in other), "the tokens differ")
    promise(set(one.holders()) == set(other.holders()), "the holders differ")
    for broker in BROKERS:
        promise(set(one.held_by(broker)) == set(other.held_by(broker)), "somebody holds something else")
        promise(one.count_held_by(broker) == other.count_held_by(broker), "the count by holder differs")
        promise(
            one.highest_incarnation(broker.name) == other.highest_incarnation(broker.name), "an incarnation was lost"
        )
    promise(one.count_by_state() == other.count_by_state(), "the count by state differs")
    promise(
        all(set(one.in_state(s)) == set(other.in_state(s)) for s in IN_FLIGHT | {State.ASSIGNED}), "in flight differs"
    )
    promise(all(one.moves(entry.bundle) == other.moves(entry.bundle) for entry in other), "a move was lost")


def by_name(table: OwnershipTable):
    for name in NAMESPACES:
        known = table.namespace(name)
        yield name, known and (known.revision, known.bundles, known.exists)


def two_snapshots(ledger) -> Topic:
    """`old` and `new`, both kept, of several chunks each."""
    topic = Topic(chunk_bundles=FEW_BUNDLES)
    x, *_ = ledger.begin(7)
    write(topic, ledger.table.cut(0), "old")
    ledger.assign(x)
    write(topic, ledger.table.cut(0), "new", keep={"old"})
    return topic


def chunks_of(topic: Topic, name: str) -> list[bytes]:
    return [key for key in topic.keys if key.startswith(f"{name}/".encode())]
