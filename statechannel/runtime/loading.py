"""Loads a partition's newest usable snapshot into a table.

Refuses a snapshot that is foreign or reaches beyond the log. If the newest is damaged, an older one and the log after
it give the same state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from statechannel.errors import BadSnapshot, CorruptRecord, NewerRecord, Trimmed
from statechannel.law import codec
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action
from statechannel.law.snapshot import Index, SnapshotInfo, SnapshotsReader
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log
from statechannel.runtime.racing import all_or_first_failure

_log = logging.getLogger(__name__)

RESTORED_AT_ONCE = 2
"""Namespaces, or holders, restored in one turn of the loop."""

ATTEMPTS = 5
"""More than one, because the log may be trimmed behind a newer snapshot while we read the older ones."""

Restored = tuple[SnapshotInfo | None, list[str]]


class Found(msgspec.Struct, frozen=True):
    """The snapshots of a partition, and where its log began and ended after they were read."""

    snapshots: SnapshotsReader
    begin: int
    end: int


class Loading:
    """Loads snapshots for one replica; all its partitions must come from one log."""

    def __init__(self, log: Log, topic: str, snapshots_topic: str, table: OwnershipTable) -> None:
        self._log = log
        self._topic = topic
        self._snapshots_topic = snapshots_topic
        self._table = table
        self._snapshots_of: ClusterIdentity | None = None

    def check_identity(self, cluster_identity: ClusterIdentity) -> None:
        """Raises BadSnapshot if a snapshot that was loaded belongs to another log than this genesis record."""
        if self._snapshots_of is not None and self._snapshots_of != cluster_identity:
            raise BadSnapshot(
                f"the snapshots belong to {self._snapshots_of}, the log to {cluster_identity}: one of the two topics "
                "was replaced; restore both from one backup"
            )

    async def find(self, partitions: Sequence[int]) -> dict[int, Found]:
        """What the log has of these partitions, read side by side. Raises LogUnavailable, NewerRecord."""
        read = dict[int, SnapshotsReader]()

        async def read_one(partition: int) -> None:
            read[partition] = await read_snapshots(self._log, self._snapshots_topic, partition)

        await all_or_first_failure(read_one(partition) for partition in partitions)
        begins, ends = await self._log.begins(self._topic), await self._log.ends(self._topic)
        return {partition: Found(read[partition], begins[partition], ends[partition]) for partition in partitions}

    async def load(self, partition: int, found: Found | None = None) -> SnapshotInfo | None:
        """Restore the newest usable snapshot that covers more than the table; None if the log alone suffices.

        `found` is what `find` has found just now. Raises LogUnavailable, NewerRecord, or BadSnapshot: neither a
        snapshot nor the log has what the table lacks, or the snapshots are of another log.
        """
        begin, problems = 0, list[str]()
        for _ in range(ATTEMPTS):
            present, found = found or (await self.find((partition,)))[partition], None
            reader, begin = present.snapshots, present.begin
            if reader.index is not None:
                self._check_index(partition, reader.index, present.end)
                if partition == 0 and begin == 0 and self._table.next_offset(0) == 0:
                    await self._check_beginning(reader.index.cluster_identity)
            info, problems = await self._restore_newest(partition, reader, begin)
            if info is not None:
                return info
            if begin <= self._table.next_offset(partition):
                for problem in problems:  # nothing was lost: the log has it all
                    _log.warning("%s", problem)
                return None
        raise BadSnapshot(
            f"partition {partition} of {self._topic} begins at offset {begin}, and no snapshot says what came before: "
            f"{'; '.join(problems) or 'there is none'}. Restore the topic {self._snapshots_topic} from a backup"
        )

    def _check_index(self, partition: int, index: Index, end: int) -> None:
        known = self._table.cluster_identity or self._snapshots_of
        if known is not None and known != index.cluster_identity:
            raise BadSnapshot(
                f"the snapshots of partition {partition} belong to {index.cluster_identity}, the channel to {known}: "
                "one of the two topics was replaced; restore both from one backup"
            )
        self._snapshots_of = index.cluster_identity
        if index.newest.next_offset > end:
            raise BadSnapshot(
                f"a snapshot covers partition {partition} of {self._topic} up to {index.newest.next_offset}, but the "
                f"log ends at {end}: it is another log or lost its end; restore it before anybody writes to it"
            )

    async def _check_beginning(self, cluster_identity: ClusterIdentity) -> None:
        """A log that still begins with its genesis record must begin with that of the snapshots.

        Nothing else would detect a foreign snapshot: the replica reads the log only behind it.
        """
        batches = self._log.read(self._topic, 0, 0)
        try:
            async with aclosing(batches):
                first = await anext(batches, None)
            record = codec.decode(first[0].value) if first else None
        except (Trimmed, CorruptRecord, NewerRecord):
            return
        if record is not None and record.action is Action.GENESIS and record.id != cluster_identity.identity:
            raise BadSnapshot(
                f"the snapshots of {self._topic} belong to {cluster_identity}, the log begins as {record.id!r} of "
                f"cluster {record.cluster!r}: one of the two topics was replaced; restore both from one backup"
            )

    async def _restore_newest(self, partition: int, reader: SnapshotsReader, begin: int) -> Restored:
        """The snapshot that was restored, and why newer ones were not."""
        problems: list[str] = []
        for info in reversed(reader.index.snapshots if reader.index else ()):
            if info.next_offset < begin or info.next_offset <= self._table.next_offset(partition):
                break
            try:
                decoding = reader.decoding(info.snapshot_id)
                for _ in decoding:
                    await asyncio.sleep(0)
                state = decoding.state()
            except BadSnapshot as error:
                problems.append(str(error))
                continue
            for at, _ in enumerate(self._table.restoring(state), 1):
                if at % RESTORED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            return info, problems
        return None, problems


async def read_snapshots(log: Log, topic: str, partition: int) -> SnapshotsReader:
    """Read all of one partition of a snapshots topic. Raises LogUnavailable, NewerRecord."""
    reader = SnapshotsReader(partition)
    async for batch in log.read(topic, partition, 0):
        for entry in batch:
            reader.take(entry)
    return reader
