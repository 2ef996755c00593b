"""Lists the kept snapshots of a partition without reading them: the index is near the topic's end."""

from __future__ import annotations

from contextlib import aclosing

from statechannel.law.snapshot import INDEX_KEY, SNAPSHOTS, Index, SnapshotsReader
from statechannel.ports import Log

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
