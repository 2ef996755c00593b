"""Reads and writes a log without a broker: replays it to its present end, even if it was closed for good.

Not for following a log (see `statechannel.runtime.channel`). It also remembers if another process has written to it.
An idempotent step of a move is retried a few times, before the whole command has to be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import TypeVar

from statechannel.errors import LogUnavailable, Trimmed
from statechannel.law import codec
from statechannel.law.record import Record
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log, Payload, TopicSpec
from statechannel.runtime.channel import ChannelSettings
from statechannel.runtime.core import ChannelCore
from statechannel.runtime.replay import Loading
from statechannel.runtime.tasks import retried

ATTEMPTS = 5
PAUSE_S = 0.5

T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """The step's result. Raises LogUnavailable if the log answers none of ATTEMPTS."""
    attempts = count(1)

    def failed(error: Exception, _: float) -> None:
        if next(attempts) == ATTEMPTS:
            raise error

    return await retried(step, (LogUnavailable,), first_s=PAUSE_S, last_s=PAUSE_S, failed=failed)


TOPIC = ChannelSettings().topic
APPEND_BYTES = 4 << 20
APPEND_RECORDS = 1_000
"""More than one, because running brokers may trim the log behind a newer snapshot while it is read."""


class FoldedLog:
    """One channel. Records with this `cause` are ours; all others are `foreign`."""

    def __init__(self, log: Log, address: str, cause: str = "") -> None:
        self.log = log
        self.address = address
        self.cause = cause
        self.foreign = 0
        """The number of entries with another cause; a loaded snapshot counts as one."""
        self._core: ChannelCore | None = None
        self._loading: Loading | None = None

    @property
    def table(self) -> OwnershipTable:
        """The table as of the last `read_on`."""
        assert self._core is not None, "open() comes first"
        return self._core.table

    @property
    def is_empty(self) -> bool:
        """Whether the log never had an entry."""
        return not any(self.table.next_offset(partition) for partition in range(self.table.partitions))

    async def open(self, partitions: int | None = None) -> None:
        """Create or check the topics, and read to the present end.

        Raises LogUnavailable, TopicMismatch, BadSnapshot, NewerRecord.
        """
        count = await self.log.open_topic(TopicSpec(TOPIC, partitions))
        await self.log.open_topic(TopicSpec(TOPIC + SNAPSHOTS, count, compacted=True))
        self._core = ChannelCore(count, codec.NEWEST_VERSION)
        self._loading = Loading(self.log, TOPIC, TOPIC + SNAPSHOTS, self.table)
        for partition in range(count):
            await self._load(partition)
        await self.read_on()
        if self.table.cluster_identity is not None:
            self._loading.check_identity(self.table.cluster_identity)

    async def _load(self, partition: int) -> None:
        assert self._loading is not None, "open() comes first"
        if await self._loading.load(partition) is not None:
            self.foreign += 1

    async def read_on(self) -> None:
        """Apply the entries appended since. Raises LogUnavailable, BadSnapshot, NewerRecord."""
        for partition in range(self.table.partitions):
            for _ in range(ATTEMPTS):
                try:
                    await self._read(partition)
                    break
                except Trimmed:
                    await self._load(partition)
            else:
                raise LogUnavailable(
                    f"partition {partition} of {self.address} is trimmed faster than it can be read: try again"
                )

    async def _read(self, partition: int) -> None:
        assert self._core is not None, "open() comes first"
        batches = self.log.read(TOPIC, partition, self.table.next_offset(partition))
        async with aclosing(batches):
            async for batch in batches:
                for entry in batch:
                    record = self._core.apply(entry).record
                    self.foreign += record is None or record.cause != self.cause
                await asyncio.sleep(0)

    async def append(self, partition: int, records: Sequence[Record]) -> None:
        """Append in order, each in the oldest format that can carry it. Raises LogUnavailable: some may be written."""
        waiting: list[Payload] = []
        size_bytes = 0
        for record in records:
            value = codec.encode(record, codec.version_of(record))
            if waiting and (size_bytes + len(value) > APPEND_BYTES or len(waiting) == APPEND_RECORDS):
                await self.log.append(TOPIC, partition, waiting)
                waiting, size_bytes = [], 0
            waiting.append(Payload(None, value))
            size_bytes += len(value)
        if waiting:
            await self.log.append(TOPIC, partition, waiting)
