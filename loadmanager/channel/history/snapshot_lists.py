"""Which snapshots of a partition are kept, without reading them: the index stands near the topic's end."""

from __future__ import annotations

from contextlib import aclosing

from statechannel.law.snapshot import INDEX_KEY, SNAPSHOTS, Index, SnapshotsReader
from statechannel.ports import Log

FIRST_LOOK = 64
"""Entries from the end: behind the index there are only tombstones of what it dropped."""

WIDER = 8


class SnapshotLists:
    """Remembers what it read as long as nothing was written behind it."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic + SNAPSHOTS
        self._known: dict[int, tuple[int, Index | None]] = {}

    async def all(self) -> list[Index | None]:
        """By partition; None where there are no snapshots. Raises LogUnavailable, NewerRecord."""
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
