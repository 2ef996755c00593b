"""Where the log begins and ends, and its snapshots: what a broker shows of the channel besides its replica.

Never fails: while the log does not answer, the caller needs the rest of its answer all the more. The kept snapshots
of a partition are listed without reading them: the index is near the topic's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from statechannel.errors import StateChannelError
from statechannel.law.snapshot import INDEX_KEY, SNAPSHOTS, Index, SnapshotInfo, SnapshotsReader
from statechannel.ports import Log

TIMEOUT_S = 3.0


class Outlook(msgspec.Struct, frozen=True):
    """All by partition, as far as the log answered; `problem` says why it did not."""

    begins: Sequence[int] | None = None
    ends: Sequence[int] | None = None
    indexes: Sequence[Index | None] | None = None
    problem: str = ""

    def snapshots(self, partition: int) -> Sequence[SnapshotInfo] | None:
        """The kept snapshots of a partition, the one that covers most last; None if unknown."""
        if self.indexes is None:
            return None
        index = self.indexes[partition]
        return index.snapshots if index is not None else ()


async def look(log: Log, topic: str, lists: SnapshotLists, timeout_s: float = TIMEOUT_S) -> Outlook:
    """Ask the log."""
    found = Outlook()
    try:
        async with asyncio.timeout(timeout_s):
            found = Outlook(begins=await log.begins(topic), ends=await log.ends(topic))
            return msgspec.structs.replace(found, indexes=await lists.all())
    except TimeoutError:
        return msgspec.structs.replace(found, problem=f"the log did not answer within {timeout_s:g} s")
    except StateChannelError as error:
        return msgspec.structs.replace(found, problem=str(error))


FIRST_LOOK = 64
"""Entries from the end to read first: only tombstones of dropped chunks come after the index."""

WIDER = 8


class SnapshotLists:
    """Reads the indexes, and remembers each until something is appended."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic + SNAPSHOTS
        self._known: dict[int, tuple[int, Index | None]] = {}

    async def all(self) -> list[Index | None]:
        """The index of each partition, None if it has no snapshots. Raises LogUnavailable, NewerRecord."""
        return [await self._of(partition, end) for partition, end in enumerate(await self._log.ends(self._topic))]

    async def _of(self, partition: int, end: int) -> Index | None:
        known = self._known.get(partition)
        if known is None or known[0] != end:
            known = self._known[partition] = (end, await self._read(partition, end))
        return known[1]

    async def _read(self, partition: int, end: int) -> Index | None:
        look = FIRST_LOOK
        while True:
            start = max(0, end - look)
            index = await self._read_from(partition, start)
            if index is not None or start == 0:
                return index
            look *= WIDER

    async def _read_from(self, partition: int, start: int) -> Index | None:
        reader = SnapshotsReader(partition)
        batches = self._log.read(self._topic, partition, start)
        async with aclosing(batches):
            async for batch in batches:
                for entry in batch:
                    if entry.key == INDEX_KEY:
                        reader.take(entry)
        return reader.index
