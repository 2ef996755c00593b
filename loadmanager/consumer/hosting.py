"""Hosts the coordinator of consumer groups in a broker, on the Kafka of the cluster's log.

    loadmanager broker --log kafka://kafka:9092 … --host loadmanager.consumer.hosting:make_host

Members ask at the broker's admin endpoint. The groups' state is in a compacted topic beside the channel's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from loadmanager.broker.wiring import open_group_offsets, open_log
from loadmanager.cluster.clocks import boot_clock_s
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.coordinator.ports import Admits, Committed
from loadmanager.consumers.coordinator.records import Partition
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.settings import Settings
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


class KafkaTopics:
    """The topics and the groups' offsets of one Kafka cluster."""

    def __init__(self, offsets: GroupOffsets, commits: GroupCommits) -> None:
        self._offsets = offsets
        self._commits = commits

    @property
    def offsets(self) -> GroupOffsets:
        """As `Topics` says."""
        return self._offsets

    def writer(self, group: str) -> str:
        """As `Topics` says."""
        return self._commits.writer(group.partition("://")[2])

    async def fence(self, writers: Collection[str]) -> None:
        """As `Topics` says."""
        await self._commits.fence(writers)

    async def sizes(self, topics: Iterable[str]) -> Mapping[str, int]:
        """As `Topics` says."""
        return await self._offsets.queues(frozenset(topics))

    async def commits(self, group: str, partitions: Collection[Partition]) -> Mapping[Partition, Committed]:
        """As `Topics` says."""
        found = await self._commits.committed(group.partition("://")[2], partitions)
        return {each: Committed(*its) for each, its in found.items()}

    async def retention_s(self) -> float | None:
        """As `Topics` says."""
        return await self._commits.retention_s()

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        """As `Topics` says. Raises GroupInUse if the group has members of Kafka's own protocols."""
        await self._commits.commit(group.partition("://")[2], offsets, pulled)

    async def delete(self, group: str) -> bool:
        """As `Topics` says. Raises GroupInUse as `commit`."""
        return await self._commits.delete(group.partition("://")[2])


class GroupHost(Coordinator):
    """A coordinator that opens its store and its Kafka clients when it is attached to a broker."""

    def __init__(self, settings: Settings) -> None:
        """Raises Invalid if the log is not on Kafka."""
        offsets = open_group_offsets(settings)
        self._log = open_log(settings)
        topics = KafkaTopics(
            offsets, GroupCommits(settings.log.partition("//")[2], settings.kafka, prefix=settings.topic_prefix)
        )
        super().__init__(GroupStore(self._log), topics, boot_clock_s, retention_s=settings.group_retention_s)
        self._start_timeout_s = settings.start_timeout_s
        self._begun: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    def attached(self, broker: Admits) -> None:
        """Called on the service's loop before the broker starts."""
        super().attached(broker)
        self._begun = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        await self._log.start(self._start_timeout_s)
        await self.start()
        self._running = asyncio.create_task(self.run())

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """Not before the store is open; declined if that failed."""
        assert self._begun is not None, "attached comes first"
        await asyncio.shield(self._begun)
        await super().acquire(bundle, token, hand_off)


def make_host(settings: Settings) -> GroupHost:
    """The factory for `--host`; the settings are the broker's."""
    return GroupHost(settings)
