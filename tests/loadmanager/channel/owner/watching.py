"""An observer at the simulated log server: sees each entry and each trim at the instant at which it takes effect.

It keeps all that was ever in the channel, and complains when a snapshot is not what replaying that from the start
gives, when a list of snapshots covers less than the one before, and when more is trimmed than the oldest one covers.
"""

from __future__ import annotations

from collections import defaultdict

from statechannel.law.snapshot import INDEX_KEY, SnapshotsReader
from statechannel.ports import LogEntry, TopicSpec
from statechannel.runtime.core import ChannelCore
from tests.simulator.world import World

CHANNEL, SNAPSHOTS = "bundle-state", "bundle-state-snapshots"


class Watch:
    """Attach it before anybody writes."""

    def __init__(self, world: World, partitions: int = 1) -> None:
        self.complaints: list[str] = []
        self.lists = 0
        self.trims = 0
        self.readers = [SnapshotsReader(p) for p in range(partitions)]
        self._core = ChannelCore(partitions)
        self._unread: dict[int, list[LogEntry]] = defaultdict(list)
        world.log.open_topic(TopicSpec(CHANNEL, partitions))
        world.log.on_append = self._appended
        world.log.on_trim = self._trimmed

    def _appended(self, topic: str, entry: LogEntry) -> None:
        if topic == CHANNEL:
            self._unread[entry.partition].append(entry)
        elif topic == SNAPSHOTS:
            self.readers[entry.partition].take(entry)
            if entry.key == INDEX_KEY:
                self._listed(entry.partition)

    def _listed(self, partition: int) -> None:
        self.lists += 1
        reader = self.readers[partition]
        assert reader.index is not None
        newest = reader.index.newest
        if newest.next_offset < self._core.table.next_offset(partition):
            self.complaints.append(f"partition {partition}: a snapshot up to {newest.next_offset} replaced a later one")
            return
        unread = self._unread[partition]
        while unread and unread[0].offset < newest.next_offset:
            self._core.apply(unread.pop(0))
        if reader.state(newest.snapshot_id).digest() != self._core.table.cut(partition).digest():
            self.complaints.append(f"partition {partition}: the snapshot up to {newest.next_offset} is not the replay")

    def _trimmed(self, topic: str, partition: int, before: int) -> None:
        if topic != CHANNEL:
            return
        self.trims += 1
        index = self.readers[partition].index
        if index is None or before > index.snapshots[0].next_offset:
            self.complaints.append(f"partition {partition}: trimmed to {before}, beyond the oldest snapshot")
