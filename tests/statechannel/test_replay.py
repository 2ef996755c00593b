"""A partition folded once more says of each record what it said then; from wherever it begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.errors import BadSnapshot, CorruptRecord, Trimmed
from statechannel.law import codec
from statechannel.law.bundle import even_boundaries
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action, Record
from statechannel.law.snapshot import SNAPSHOTS, SnapshotInfo, SnapshotsReader, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from statechannel.ports import Log, LogEntry, Payload
from statechannel.runtime import replay
from statechannel.runtime.replay import Folded, Replay

from .auditor import NAMESPACES, History

TOPIC = "state"
GENESIS = ClusterIdentity("north", "g-1", 0)


class PaperLog:
    """What a log holds of a channel and its snapshots; only what is read of it. Offsets may have gaps."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.entries: dict[str, list[list[LogEntry]]] = {
            topic: [[] for _ in range(partitions)] for topic in (TOPIC, TOPIC + SNAPSHOTS)
        }
        self.begun = [0] * partitions
        self.read_from: list[int] = []

    def append(self, partition: int, payload: Payload, topic: str = TOPIC, offset: int | None = None) -> None:
        entries = self.entries[topic][partition]
        if offset is None:
            offset = entries[-1].offset + 1 if entries else 0
        entries.append(LogEntry(partition, offset, payload.key, payload.value, 1_000 + offset))

    def snapshot(self, table: OwnershipTable, partition: int, name: str, keep: Collection[str] = ()) -> SnapshotInfo:
        known = self.snapshots(partition).index
        *chunks, info = encode(table.cut(partition), name, 0)
        assert isinstance(info, SnapshotInfo)
        for payload in (*chunks, *closing(known, GENESIS, partition, info, keep)):
            assert isinstance(payload, Payload)
            self.append(partition, payload, TOPIC + SNAPSHOTS)
        return info

    def snapshots(self, partition: int) -> SnapshotsReader:
        reader = SnapshotsReader(partition)
        for entry in self.entries[TOPIC + SNAPSHOTS][partition]:
            reader.take(entry)
        return reader

    def covered(self, partition: int) -> int:
        """By the newest snapshot."""
        index = self.snapshots(partition).index
        return index.newest.next_offset if index is not None else 0

    async def begins(self, topic: str) -> tuple[int, ...]:
        return tuple(self.begun)

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        if topic == TOPIC:
            self.read_from.append(start)
            if start < self.begun[partition]:
                raise Trimmed(f"begins at {self.begun[partition]}")
        there = [entry for entry in self.entries[topic][partition] if entry.offset >= start]
        for begin in range(0, len(there), 7):
            yield there[begin : begin + 7]


def logged(ledger, log: PaperLog) -> None:
    """All that the ledger replayed."""
    for partition, offset, record in ledger.log:
        log.append(partition, Payload(None, codec.encode(record)), offset=offset)


def replay_of(log: PaperLog, partition: int = 0, namespace: str | None = None) -> Replay:
    return Replay(log, TOPIC, partition, log.partitions, namespace)  # type: ignore[arg-type]


async def folded(fold: Replay, until: int | None = None) -> dict[int, Folded]:
    return {each.entry.offset: each async for each in fold.run(until)}


@given(seed=st.integers(0, 10_000), cut=st.integers(0, 120), steps=st.integers(1, 120))
@settings(max_examples=60, deadline=None)
def test_each_record_gets_the_same_verdict_whatever_the_fold_begins_with(new_ledger, seed, cut, steps):
    ledger, log = new_ledger(2), PaperLog(2)
    verdicts: dict[tuple[int, int], object] = {}
    for number, (record, home) in enumerate(History(ledger, seed).steps(steps)):
        if number == cut:
            for partition in range(2):
                log.snapshot(ledger.table, partition, "base")
        if _can_be_written(record):
            offset = ledger.table.next_offset(home)
            verdicts[home, offset] = ledger.replay(record, home)
    logged(ledger, log)
    trims = Random(seed).random() < 0.7 and cut < steps
    for partition in range(2):
        if trims:
            log.begun[partition] = log.covered(partition)
        for namespace in (None, *NAMESPACES):
            _check(log, ledger.table, partition, namespace, verdicts)


def _can_be_written(record: Record) -> bool:
    try:
        return codec.decode(codec.encode(record)) == record
    except (CorruptRecord, OverflowError):
        return False


def _check(log: PaperLog, table: OwnershipTable, partition: int, namespace: str | None, verdicts) -> None:
    async def play() -> None:
        fold = replay_of(log, partition, namespace)
        await fold.open()
        assert fold.begin == log.begun[partition]
        found = await folded(fold)
        for offset, each in found.items():
            verdict = verdicts[partition, offset]
            if namespace is None or _is_about(each.applied.record, namespace):
                assert each.applied.verdict == verdict
        if namespace is None:
            assert fold.table.digest(partition) == table.digest(partition)
            assert len(found) == sum(at >= fold.begin for home, at in verdicts if home == partition)
        elif table.partition_of(namespace) == partition:
            known, made = table.namespace(namespace), fold.table.namespace(namespace)
            assert (made and (made.revision, made.entries)) == (known and (known.revision, known.entries))

    asyncio.run(play())


def _is_about(record: Record | None, namespace: str) -> bool:
    """Alone: the verdict on a bundle of another namespace is nobody's business who folds only this one."""
    if record is None:
        return False
    return {record.namespace or namespace, *(s.bundle.namespace for s in record.subjects)} == {namespace}


async def test_a_fold_goes_on_where_it_stopped(ledger):
    ledger.begin(4)
    for bundle in ledger.bundles():
        ledger.assign(bundle)
    log = PaperLog(1)
    logged(ledger, log)
    fold = replay_of(log)
    await fold.open()
    assert list(await folded(fold, until=3)) == [0, 1, 2]
    assert list(await folded(fold, until=3)) == []
    assert list(await folded(fold, until=5)) == [3, 4]
    async for _ in fold.run():
        break
    assert fold.table.next_offset(0) == 6
    await folded(fold)
    assert fold.table.digest(0) == ledger.table.digest(0)
    assert log.read_from == [0, 3, 5, 6]


async def test_it_begins_with_the_oldest_state_or_the_newest_before_an_offset(ledger):
    ledger.begin(4)
    log = PaperLog(1)
    for name, bundle in zip(("one", "two", "three"), ledger.bundles(), strict=False):
        ledger.assign(bundle)
        log.snapshot(ledger.table, 0, name, keep=("one", "two"))
    logged(ledger, log)
    began = []
    for begin, before in ((0, None), (0, 3), (0, 4), (0, 7), (0, 99), (4, None), (4, 3), (4, 6), (5, None)):
        log.begun[0] = begin
        fold = replay_of(log)
        await fold.open(before)
        await folded(fold)
        assert fold.table.digest(0) == ledger.table.digest(0)
        began.append(fold.snapshot and fold.snapshot.snapshot_id)
    assert began == [None, None, "one", "two", "three", "one", "one", "two", "two"]


async def test_a_damaged_snapshot_is_passed_over_for_a_later_one(ledger):
    ledger.begin(4)
    log = PaperLog(1)
    log.snapshot(ledger.table, 0, "one")
    ledger.assign(ledger.bundles()[0])
    two = log.snapshot(ledger.table, 0, "two", keep=("one",))
    logged(ledger, log)
    entries = log.entries[TOPIC + SNAPSHOTS][0]
    entries[0] = msgspec.structs.replace(entries[0], value=b"rubbish")
    log.begun[0] = 1
    fold = replay_of(log)
    await fold.open()
    assert (fold.begin, fold.log_begin) == (two.next_offset, 1)
    entries[:] = [entry for entry in entries if b"two" not in (entry.key or b"")]
    with pytest.raises(BadSnapshot, match=r"begins at offset 1, and no snapshot says .*not an intact piece.*lacks"):
        await replay_of(log).open()


async def test_a_log_that_is_trimmed_while_it_opens_is_looked_at_again(ledger):
    ledger.begin(4)
    log = PaperLog(1)
    log.snapshot(ledger.table, 0, "one")
    reads = 0

    class Trimming(PaperLog):
        async def begins(self, topic: str) -> tuple[int, ...]:
            nonlocal reads
            reads += 1
            if reads == 1:
                ledger.assign(ledger.bundles()[0])
                log.begun[0] = log.snapshot(ledger.table, 0, "two").next_offset
            return await PaperLog.begins(log, topic)

    log.__class__ = Trimming
    fold = replay_of(log)
    await fold.open()
    assert fold.snapshot is not None
    assert (fold.snapshot.snapshot_id, reads) == ("two", 2)


async def test_a_name_in_another_spelling_is_not_passed_over(ledger):
    ledger.begin(2)
    log = PaperLog(1)
    logged(ledger, log)
    own = ledger.record(Action.OWN, ledger.bundles()[0], ledger.A, to=ledger.A)
    value = codec.encode(own).replace(b"shop/orders", rb"shop\/orders")
    head, body = value[:4], value[14:]
    log.append(0, Payload(None, head + codec._seal(head, body) + body))
    fold = replay_of(log, namespace="shop/orders")
    await fold.open()
    found = await folded(fold)
    assert isinstance(found[max(found)].applied.verdict, Change)


async def test_what_is_heavy_is_done_elsewhere_and_the_rest_is_not(ledger, monkeypatch):
    monkeypatch.setattr(replay, "HEAVY_BUNDLES", 16)
    ledger.begin(2)
    ledger.create_namespace("u/n", even_boundaries(4_096))
    ledger.assign(ledger.bundles()[0])
    ledger.delete_namespace("u/n")
    log = PaperLog(1)
    logged(ledger, log)
    moved = 0

    async def elsewhere(work: Callable[[], object]) -> object:
        nonlocal moved
        moved += 1
        return await asyncio.to_thread(work)

    fold = Replay(as_log(log), TOPIC, 0, 1, None, elsewhere)
    await fold.open()
    await folded(fold)
    assert moved == 2
    assert fold.table.digest(0) == ledger.table.digest(0)


def as_log(log: PaperLog) -> Log:
    return log  # type: ignore[return-value]


async def test_the_loop_is_not_held_up(ledger):
    ledger.begin(2)
    bundle = ledger.bundles()[0]
    for _ in range(3_000):
        ledger.write(Action.OWN, bundle, ledger.A, to=ledger.A)
        ledger.write(Action.RELEASE, bundle, ledger.A)
    log = PaperLog(1)
    logged(ledger, log)
    fold = replay_of(log)
    await fold.open()
    loop = asyncio.get_running_loop()
    turns, last_s, longest_s = 0, loop.time(), 0.0

    async def beat() -> None:
        nonlocal turns, last_s, longest_s
        while True:
            await asyncio.sleep(0)
            turns += 1
            now_s = loop.time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    beating = asyncio.create_task(beat())
    await folded(fold)
    beating.cancel()
    assert turns >= 3
    assert longest_s < 1.0  # on an idle machine it is 5 ms
