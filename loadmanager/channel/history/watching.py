"""The watches of one broker: from which revisions one may go on, and when all end.

The stream of a watch is in `watch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadmanager.channel.history.recent import CHANGES_KEPT, RecentChanges
from loadmanager.channel.history.replaying import ReplayQueue
from loadmanager.channel.history.revision import Revision
from loadmanager.channel.history.watch import ANEW, Watch
from loadmanager.errors import Conflict, Gone, Invalid, Unavailable
from statechannel.law.table import OwnershipTable
from statechannel.runtime.replica import Replica

CATCH_UP_S = 3.0


class Watching:
    """The watches of one broker. `close()` ends them all."""

    def __init__(
        self,
        replica: Replica,
        replays: ReplayQueue,
        recent: RecentChanges | None = None,
    ) -> None:
        self.replica = replica
        self.replays = replays
        self.recent = recent or RecentChanges(replica, CHANGES_KEPT)
        self.closing = asyncio.Event()
        """Set when every watch must end at once."""

    def close(self) -> None:
        """End every watch, and stop keeping changes."""
        self.closing.set()
        self.recent.close()

    @property
    def table(self) -> OwnershipTable:
        return self.replica.table

    def revision(self) -> Revision:
        """How far the replica has read."""
        table = self.table
        generation = table.cluster_identity.generation if table.cluster_identity else 0
        return Revision(generation, tuple(table.next_offset(p) for p in range(table.partitions)))

    async def begin(self, namespace: str | None, since: str | None) -> Watch:
        """A new watch. Raises Invalid (bad revision), Conflict (of another log), Gone (trimmed), Unavailable."""
        revision = None if since is None else await self._checked(since, namespace)
        return Watch(self, namespace, revision)

    def from_now(self, namespace: str | None) -> Watch:
        """A new watch of what happens from now on."""
        return Watch(self, namespace, self.revision())

    def partitions_of(self, namespace: str | None) -> Sequence[int]:
        return range(self.table.partitions) if namespace is None else (self.table.partition_of(namespace),)

    async def _checked(self, since: str, namespace: str | None) -> Revision:
        try:
            revision = Revision.parse(since)
        except ValueError as error:
            raise Invalid(f"{error}; or {ANEW}") from None
        table = self.table
        if len(revision.offsets) != table.partitions:
            raise Invalid(
                f"the channel has {table.partitions} partitions, the revision {since[:100]!r} has "
                f"{len(revision.offsets)}: it is another channel's; {ANEW}"
            )
        generation = table.cluster_identity.generation if table.cluster_identity else 0
        if revision.generation != generation:
            raise Conflict(
                f"the revision is of generation {revision.generation} of the log, this is generation {generation}: the "
                f"channel was moved to another log; {ANEW}"
            )
        await self._check_offsets(revision, self.partitions_of(namespace))
        return revision

    async def _check_offsets(self, revision: Revision, partitions: Sequence[int]) -> None:
        begins: Sequence[int] | None = None
        for partition in partitions:
            offset = revision.offsets[partition]
            if offset > self.table.next_offset(partition):
                await self._await_offset(partition, offset)
            if offset < self.recent.known_from(partition):
                begins = begins or await self.replica.log.begins(self.replica.topic)
                if offset < begins[partition]:
                    raise Gone(
                        f"the changes after offset {offset} of partition {partition} were trimmed: the log begins at "
                        f"{begins[partition]} now; {ANEW}"
                    )

    async def _await_offset(self, partition: int, offset: int) -> None:
        """Wait until this replica has read so far; another broker may be ahead. Raises Conflict if beyond the log."""
        end = (await self.replica.log.ends(self.replica.topic))[partition]
        if offset > end:
            raise Conflict(
                f"the revision is beyond the log: partition {partition} ends at {end}, not at {offset}; it is of "
                f"another log, or this one lost its end; {ANEW}"
            )
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while self.table.next_offset(partition) < offset:
                    self.replica.progress.clear()
                    await self.replica.progress.wait()
        except TimeoutError:
            raise Unavailable(f"this broker has not read partition {partition} up to {offset} yet; try again") from None
