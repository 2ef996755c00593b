"""What a broker shows of the channel besides its replica: where the log begins and ends, and its snapshots.

Never fails: while the log does not answer, the caller needs the rest of its answer all the more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from loadmanager.channel.history.snapshot_lists import SnapshotLists
from statechannel.errors import StateChannelError
from statechannel.law.snapshot import Index, SnapshotInfo
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
