"""Audits snapshots: compares written, loaded and trimmed data with the replay of the whole log from offset 0.

*Snapshot + tail = full replay*: a snapshot at an offset equals the replay of everything below it. It is checked as the
server takes it, and again as a replica loads it, because a correct snapshot may still be read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadmanager.channel.audit.auditor import compared
from statechannel.errors import StateChannelError
from statechannel.law.partition import PartitionState
from statechannel.law.snapshot import INDEX_KEY, Decoding, Index, SnapshotInfo, SnapshotsReader, chunk_key
from statechannel.law.table import OwnershipTable
from statechannel.ports import LogEntry


class _Stood(msgspec.Struct, frozen=True):
    """The state below an offset: the replay's, how many records were accepted, and when the last one came."""

    state: PartitionState
    accepted: int
    at_ms: int


class SnapshotAudit:
    """Remembers the state at each offset. Calls `complain` with violations, `write` with events.

    `wall_ms` is the log's clock; records younger than `retention_s` must not be trimmed.
    """

    def __init__(
        self,
        table: OwnershipTable,
        wall_ms: Callable[[], int],
        retention_s: float,
        complain: Callable[[str], None],
        write: Callable[[str], None],
    ) -> None:
        self.written = 0
        """How many snapshots the log took."""
        self.trims = 0
        self._table = table
        self._wall_ms = wall_ms
        self._retention_ms = round(retention_s * 1000)
        self._complain = complain
        self._write = write
        self._states: dict[tuple[int, int], _Stood] = {}
        self._indices: list[Index | None] = [None] * table.partitions
        self._begins = [0] * table.partitions
        self._chunks: list[dict[bytes, bytes]] = [{} for _ in range(table.partitions)]
        for partition in range(table.partitions):
            self.folded(partition, 0)

    def folded(self, partition: int, accepted: int) -> None:
        """The table of `AppendAudit` has taken one more entry of a partition; so many of them were accepted so far."""
        state = self._table.cut(partition)
        self._states[partition, state.next_offset] = _Stood(state, accepted, self._wall_ms())

    def accepted_below(self, partition: int, offset: int) -> int:
        """How many records below an offset were accepted."""
        return self._states[partition, offset].accepted

    # --- written

    def appended(self, entry: LogEntry) -> None:
        """The log took an entry of the snapshots topic."""
        partition, key = entry.partition, entry.key or b""
        if entry.key == INDEX_KEY:
            self._check_index(entry)
        elif entry.value is None:
            self._chunks[partition].pop(key, None)
        else:
            if key.endswith(b"/0"):  # the first of a new transaction
                self._check_chunks(partition)
            self._chunks[partition][key] = entry.value

    def _check_index(self, entry: LogEntry) -> None:
        partition, reader = entry.partition, SnapshotsReader(entry.partition)
        reader.take(entry)
        index, before = reader.index, self._indices[partition]
        if index is None:
            self._complain(f"the snapshots of partition {partition} got an index that does not read")
            return
        self._indices[partition] = index
        if before is not None and index.newest.next_offset < before.newest.next_offset:
            self._complain(
                f"the snapshots of partition {partition} went back: the newest covered {before.newest.next_offset}, "
                f"and now {index.newest.next_offset}"
            )
        if index.snapshots[0].next_offset < self._begins[partition]:
            self._complain(
                f"the snapshots of partition {partition} list one of {index.snapshots[0].next_offset}, though the log "
                f"begins at {self._begins[partition]}"
            )
        known = {info.snapshot_id for info in before.snapshots} if before is not None else set[str]()
        for info in index.snapshots:
            if info.snapshot_id not in known:
                self._check_written(partition, info)

    def _check_written(self, partition: int, info: SnapshotInfo) -> None:
        self.written += 1
        self._write(f"takes snapshot {info.snapshot_id} of {partition}/{info.next_offset}, {info.chunks} chunks")
        try:
            chunks = [self._chunks[partition][chunk_key(info.snapshot_id, number)] for number in range(info.chunks)]
            decoding = Decoding(partition, info, chunks)
            for _ in decoding:
                pass
            state = decoding.state()
        except (StateChannelError, KeyError) as error:
            self._complain(f"a snapshot of partition {partition} was written that does not read: {error!r}")
            return
        self._compare(f"snapshot {info.snapshot_id}", state)

    def check_chunks(self) -> None:
        """Between two transactions: exactly the listed chunks are there."""
        for partition in range(self._table.partitions):
            self._check_chunks(partition)

    def _check_chunks(self, partition: int) -> None:
        index, there = self._indices[partition], self._chunks[partition].keys()
        infos = index.snapshots if index is not None else ()
        listed = {chunk_key(info.snapshot_id, number) for info in infos for number in range(info.chunks)}
        if there != listed:
            self._complain(
                f"the snapshots of partition {partition} are not those that are listed: too many are "
                f"{sorted(there - listed)}, too few {sorted(listed - there)}"
            )

    # --- loaded

    def loaded(self, who: str, info: SnapshotInfo, state: PartitionState) -> None:
        """A replica was loaded from a snapshot, and has applied nothing after it yet."""
        if state.next_offset != info.next_offset:
            self._complain(f"the replica of {who} loaded {info.next_offset} and stands at {state.next_offset}")
        self._compare(f"the replica that {who} loaded from {info.snapshot_id}", state)

    def _compare(self, what: str, state: PartitionState) -> None:
        truth = self._states.get((state.partition, state.next_offset))
        where = f"{state.partition}/{state.next_offset}"
        if truth is None:
            self._complain(f"{what} covers up to {where}, where the log has not been")
        elif state.digest() != truth.state.digest():
            [broken] = compared(what, truth.state, state)
            self._complain(f"SNAPSHOT AND REPLAY DIFFER: {broken.detail} (at {where})")

    # --- trimmed

    def trimmed(self, partition: int, before: int) -> None:
        """The log is about to drop entries below an offset: each listed snapshot must cover them."""
        index = self._indices[partition]
        covered = index.snapshots[0].next_offset if index is not None else 0
        self.trims += 1
        self._begins[partition] = before
        self._write(f"forgets what lies below {partition}/{before}")
        if covered < before:
            self._complain(f"partition {partition} is trimmed to {before}, its oldest snapshot covers only {covered}")
        age_ms = self._wall_ms() - self._states[partition, before].at_ms
        if age_ms < self._retention_ms:
            self._complain(f"partition {partition} is trimmed to {before}, of which the last is only {age_ms} ms old")
