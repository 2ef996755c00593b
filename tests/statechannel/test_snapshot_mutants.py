"""Snapshots that forget one thing, or one check: the properties must notice, or they would prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from statechannel.errors import BadSnapshot, InvariantError
from statechannel.law import snapshot
from statechannel.law.indices import Indices
from statechannel.law.partition import Moves, Partition, PartitionState
from statechannel.law.record import NEVER
from statechannel.law.snapshot import INDEX_KEY
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Cutting, Ownership
from statechannel.ports import Payload

from .auditor import Violation, promise
from .mutation import mutate
from .snapshots import FEW_BUNDLES, GENESIS, audit_snapshots, chunks_of, two_snapshots, write

COLUMNS, DECODING = snapshot, snapshot.Decoding
FORGOTTEN = {
    "the offset": (Partition, "of", "partition.next_offset = state.next_offset", "pass"),
    "the epoch": (Partition, "of", "partition.lead = state.lead", "pass"),
    "that the log is closed": (Partition, "of", "partition.retired = state.retired", "pass"),
    "what is agreed on": (Partition, "of", "partition.agreed = state.agreed", "pass"),
    "what is agreed on, in its head": (COLUMNS, "_heads", "agreed=state.agreed", ""),
    "the incarnations": (Partition, "of", "dict(state.incarnations)", "{}"),
    "deleted namespaces": (Partition, "filled", "in state.namespaces", "in (n for n in state.namespaces if n.entries)"),
    "the revision of a namespace": (Partition, "filled", "each.revision", "0"),
    "the moves": (Partition, "of", "state.arrived", "()"),
    "the moves under way": (Partition, "of", "state.leaving", "()"),
    "the cluster": (OwnershipTable, "restoring", "self.cluster_identity = state.cluster_identity", "pass"),
    "what was held before": (Indices, "replacing", "self._count_all(namespace, -1)", "pass"),
    "what is held now": (Indices, "replacing", "self.learn(namespace, partition)", "pass"),
    "to show the namespaces": (OwnershipTable, "restoring", "self._namespaces.update(restored.namespaces)", "pass"),
    "to restore the partition": (OwnershipTable, "restoring", "self._partitions[state.partition] = restored", "pass"),
    "the hand-off": (COLUMNS, "entries", "hand_off=rare.hand_off", "hand_off=None"),
    "the cutting": (COLUMNS, "entries", "cutting=rare.cutting", "cutting=None"),
    "the target": (COLUMNS, "entries", "target=rare.target", "target=None"),
    "whose target": (COLUMNS, "entries", "found[rare.index] = ", "found[0] = "),
    "the token": (COLUMNS, "entries", "section.tokens,\n", "section.revisions,\n"),
    "the revision": (COLUMNS, "entries", "section.revisions,\n", "section.tokens,\n"),
    "the holder": (COLUMNS, "entries", "brokers.__getitem__, section.holders", "brokers.__getitem__, section.bys"),
    "the author": (COLUMNS, "entries", "brokers.__getitem__, section.bys", "brokers.__getitem__, section.holders"),
    "hand-offs when writing": (COLUMNS, "_section", "entry.hand_off is not None or", ""),
    "cuttings when writing": (COLUMNS, "_section", " or entry.cutting is not None", ""),
    "whose numbers the brokers have": (DECODING, "_take", "in chunk.brokers)", "in [*self._brokers, *chunk.brokers])"),
    "the head": (DECODING, "_take", "if chunk.head is not None:", "if chunk.head is not None and self._taken:"),
    "a chunk": (COLUMNS, "packed", "sealed(_pack(chunk), version)", "sealed(_pack(chunk)) if chunk.head else b''"),
    "where a chunk ends": (COLUMNS, "_runs", "begin, size_bytes = index,", "begin, size_bytes = index + 1,"),
}  # fmt: skip
FORGETFUL = (Violation, InvariantError, BadSnapshot, KeyError, IndexError, TypeError)


def complaint(new_ledger) -> int:
    """The first seed whose snapshots come to something else; NEVER if there is none."""
    for seed in range(240):
        try:
            audit_snapshots(new_ledger(partitions=2), seed, 120, 90, FEW_BUNDLES)
        except FORGETFUL:
            return seed
    return NEVER


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_what_a_snapshot_forgets_is_noticed(new_ledger, monkeypatch, forgotten: str):
    mutate(monkeypatch, *FORGOTTEN[forgotten])
    assert complaint(new_ledger) != NEVER


def test_nothing_is_forgotten(new_ledger):
    assert complaint(new_ledger) == NEVER


def test_a_field_that_is_new_must_be_in_the_snapshot():
    """Who adds one puts it into `snapshot` and into FORGOTTEN."""
    assert Ownership.__struct_fields__ == (
        "bundle", "state", "holder", "target", "revision", "token", "action", "by", "hand_off", "cutting",
    )  # fmt: skip
    assert Cutting.__struct_fields__ == ("boundaries", "algorithm", "parts")
    assert set(PartitionState.__struct_fields__) - {"partition", "next_offset", "namespaces"} == set(
        snapshot.Head.__struct_fields__
    )
    assert set(vars(Partition())) == {"next_offset", "lead", "retired", "agreed", "incarnations", "namespaces", "moves"}
    assert set(vars(Moves())) == {"_leaving", "_arrived"}


UNCHECKED = {
    "whether a chunk is missing": (snapshot.SnapshotsReader, "chunks", "if missing:", "if False:"),
    "the checksum": (snapshot._Seal, "check", "self._checksum.hexdigest() != self._info.checksum", "False"),
    "the partition": (snapshot.SnapshotsReader, "_info", "index.partition != self._partition", "False"),
    "whose chunk it is": (snapshot.SnapshotsReader, "take", "setdefault(snapshot_id, {})", "setdefault('new', {})"),
    "whether a chunk was deleted": (snapshot.SnapshotsReader, "take", "pop(int(number), None)", "get(int(number))"),
    "the seal of the index": (COLUMNS, "opened", 'head[:2] != b"LS" or seal !=', "len(seal) !="),
    "whether the new one covers more": (snapshot, "closing", "each.next_offset > info.next_offset", "False"),
    "what is kept": (snapshot, "closing", "if each.snapshot_id in keep", ""),
    "what is dropped": (snapshot, "closing", "if each.snapshot_id not in keep", "if False"),
    "whether it goes back": (OwnershipTable, "restoring", "state.next_offset < part.next_offset", "False"),
}  # fmt: skip


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except (BadSnapshot, InvariantError):
        return True
    return False


def audit_topic(ledger) -> None:
    """Each promise of the reader and of the writer, once. Raises Violation."""
    topic = two_snapshots(ledger)
    whole, keys = list(topic.entries), chunks_of(topic, "new")
    value, other = topic.value(keys[0]), topic.value(chunks_of(topic, "old")[0])
    damages = [None, value[:-1], value[:20] + bytes([value[20] ^ 1]) + value[21:], other]
    for damaged in damages:
        topic.replace(keys[0], damaged)
        promise(refused(lambda: topic.read().state("new")), "a damaged snapshot is used")
        promise(not refused(lambda: topic.read().state("old")), "an intact snapshot is not used")
        topic.entries = list(whole)
    promise(refused(lambda: topic.read(partition=1).state("new")), "a snapshot of another partition is used")
    topic.commit([Payload(keys[-1], None)])
    promise(refused(lambda: topic.read().state("new")), "a deleted chunk is used")
    topic.entries = list(whole)
    known = topic.known()
    older = msgspec.structs.replace(known.newest, snapshot_id="older", next_offset=1)
    promise(refused(lambda: snapshot.closing(known, GENESIS, 0, older, ())), "an older snapshot replaces a newer one")
    write(topic, ledger.table.cut(0), "last", keep={"new"})
    promise([info.snapshot_id for info in topic.known().snapshots] == ["new", "last"], "another is kept")
    topic.compact(with_tombstones=False)
    promise(chunks_of(topic, "old") == [], "what is dropped stays")
    promise(not refused(lambda: topic.read().state("new")), "what is kept is deleted")
    behind = ledger.table.cut(0)
    ledger.lead(9)
    promise(refused(lambda: ledger.table.restore(behind)), "a replica went back")
    index = topic.value(INDEX_KEY)
    topic.entries = []
    topic.commit([Payload(INDEX_KEY, index[:20] + bytes([index[20] ^ 1]) + index[21:])])
    promise(topic.index() is None, "a damaged index is used")


@pytest.mark.parametrize("unchecked", UNCHECKED)
def test_what_is_not_checked_is_noticed(new_ledger, monkeypatch, unchecked: str):
    mutate(monkeypatch, *UNCHECKED[unchecked])
    with pytest.raises((Violation, KeyError)):
        audit_topic(new_ledger())


def test_all_is_checked(new_ledger):
    audit_topic(new_ledger())
