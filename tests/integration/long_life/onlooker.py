"""A replica that reads the log from its first record to its last and never begins anew: what a full replay would say.

Brokers begin with snapshots, again and again; they have to say the same. It also knows what became of every record,
and reads what lies in the log and in the snapshots topic by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from loadmanager.broker.wiring import open_log
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action
from statechannel.law.snapshot import SnapshotInfo
from statechannel.law.verdict import Change
from statechannel.runtime.channel import Replica
from statechannel.runtime.replay import read_snapshots
from tests.integration.long_life.traps import CHANNEL
from tests.integration.long_life.waiting import until

START_S = 60.0


class Onlooker:
    """Use `running()`, from before the first snapshot on. Writes nothing."""

    def __init__(self, settings: dict[str, object]) -> None:
        known = Settings.model_validate(settings)
        self._log, self._partitions = open_log(known), known.partitions
        self.replica = Replica(self._log, CHANNEL)
        self.accepted: Counter[Action] = Counter()
        self._changes: list[Change] = []

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Onlooker]:
        """Read while the context is open."""
        await self._log.start(START_S)
        try:
            await self.replica.open(self._partitions)
            self.replica.listen(self._saw)
            following = asyncio.create_task(self.replica.follow())
            try:
                yield self
            finally:
                following.cancel()
                await asyncio.wait([following])
            assert self.replica.stopped_by is None
        finally:
            await self._log.close()

    def _saw(self, change: Change) -> None:
        self.accepted[change.record.action] += 1
        self._changes.append(change)

    @property
    def read_everything(self) -> bool:
        """Whether it has not once made use of a snapshot."""
        return not self.replica.counts["reloads"] and not any(self.replica.loaded)

    # --- what became of a bundle

    async def now(self) -> int:
        """For `then`: everything that is in the log at this moment is before it."""
        ends, table = await self._log.ends(CHANNEL), self.replica.table
        await until(
            lambda: all(table.next_offset(p) >= end for p, end in enumerate(ends)),
            f"the onlooker has read up to {ends}",
        )
        return len(self._changes)

    def then(self, since: int, where: Bundle) -> list[Action]:
        """What happened to anything in this range since then, in order."""
        return [
            change.record.action
            for change in self._changes[since:]
            if any(_overlap(transition.bundle, where) for transition in change.transitions)
        ]

    async def until_then(self, since: int, where: Bundle, holds: Callable[[list[Action]], bool], what: str) -> None:
        """Return when what happened there since then is so."""
        await until(lambda: holds(self.then(since, where)), what)

    async def owners(self, namespace: str) -> dict[str, str]:
        """Who has which bundle, by name, as the log says at this moment."""
        await self.now()
        entries = (entry for entry in self.replica.table if entry.bundle.namespace == namespace)
        return {str(entry.bundle): entry.holder.name for entry in entries if entry.holder is not None}

    # --- what lies there

    async def begin(self, partition: int) -> int:
        """Where the log begins."""
        return (await self._log.begins(CHANNEL))[partition]

    async def snapshots(self, partition: int) -> tuple[SnapshotInfo, ...]:
        """Those that are listed, oldest first, all their pieces there and intact (else raises BadSnapshot)."""
        reader = await read_snapshots(self._log, self.replica.snapshots_topic, partition)
        listed = reader.index.snapshots if reader.index is not None else ()
        for info in listed:
            reader.chunks(info.snapshot_id)
        return listed


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi
