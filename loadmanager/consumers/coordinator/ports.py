"""What the coordinator needs of its broker and of Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.coordinator.records import Partition
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


class Admitted(Protocol):
    """What admission gives: `loadmanager.Claim`."""

    @property
    def bundle(self) -> Bundle: ...

    @property
    def token(self) -> Token: ...


class Admits(Protocol):
    """What is needed of the broker: `loadmanager.Broker`."""

    def admit(self, topic: str, timeout_s: float = ...) -> AbstractAsyncContextManager[Admitted]: ...

    def claim(self, topic: str) -> Admitted | None: ...

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool: ...


class Committed(NamedTuple):
    """Where a group goes on in a partition, and the first offset that it has not pulled, as far as known."""

    offset: int
    pulled: int | None = None


class Topics(Protocol):
    """Where the partitions are."""

    @property
    def offsets(self) -> GroupOffsets:
        """What Kafka knows of its groups and topics."""
        ...

    def writer(self, group: str) -> str:
        """The name under which commits of the group are made now. It changes when another coordinator fences it. A
        fault of one group may delay only groups of the same writer."""
        ...

    async def fence(self, writers: Collection[str]) -> None:
        """From now on refuse every commit under one of these names, from any sender, also one already sent.
        Raises LogUnavailable; LogError for lack of rights."""
        ...

    async def sizes(self, topics: Iterable[str]) -> Mapping[str, int]:
        """The numbers of partitions of those topics that exist. Raises LogUnavailable."""
        ...

    async def commits(self, group: str, partitions: Collection[Partition]) -> Mapping[Partition, Committed]:
        """What the group has committed; partitions without a commit are left out. Raises as `commit`."""
        ...

    async def retention_s(self) -> float | None:
        """How long Kafka keeps a committed offset; None if this user may not know. Raises LogUnavailable."""
        ...

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        """Store where the group goes on, and the first offsets that it has not pulled, as far as known. Later calls
        are stored later.

        Raises WriterFenced if the group's `writer` of the time of the call was fenced; LogUnavailable; Conflict if the
        group has members of another kind.
        """
        ...

    async def delete(self, group: str) -> bool:
        """Delete all that the group has committed, after commits that were begun here. Returns False if Kafka knows no
        such group. Raises LogUnavailable; LogError for lack of rights; Conflict as `commit`."""
        ...
