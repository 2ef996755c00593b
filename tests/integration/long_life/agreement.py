"""Whether all brokers fold the same log into the same table, looked at all the time: one digest for each partition and
offset, whoever is asked, before and after any restart. The onlooker, which replays everything, is asked as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.integration.long_life.cluster import Cluster, Member
from tests.integration.long_life.onlooker import Onlooker
from tests.integration.long_life.waiting import until_told

Where = tuple[int, int, int]
"""Generation of the log, partition, next offset."""


class Agreement:
    """What was said so far. `disagreements` must stay empty."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.onlooker: Onlooker | None = None
        self._digests: dict[Where, tuple[str, set[str]]] = {}
        self.disagreements: list[str] = []

    @property
    def compared(self) -> int:
        """Places about which more than one broker was asked."""
        return sum(len(brokers) > 1 for _, brokers in self._digests.values())

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[Agreement]:
        """Look while the context is open."""
        watching = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.5)

    async def look(self) -> bool:
        """Ask all; whether they stand at the same place now."""
        said = await asyncio.gather(*(self._ask(member) for member in self._cluster.up()))
        if self.onlooker is not None:
            said.append(self._from_onlooker(self.onlooker))
        return bool(said) and all(each == said[0] for each in said) and bool(said[0])

    async def until_equal(self) -> None:
        """Return when all have read as far and have the same. Raises AssertionError where somebody never will."""

        async def are_equal_or_never_will_be() -> bool:
            return await self.look() or bool(self.disagreements)

        await until_told(are_equal_or_never_will_be, "all brokers have read as far")
        self.assert_whole()

    async def _ask(self, member: Member) -> dict[Where, str]:
        answer = await self._cluster.ask(member, "GET", "/v1/channel", digest="true")
        if answer.status != 200:
            return {}
        said: dict[Where, str] = {}
        for shown in answer.body["partitions"]:
            where = (answer.body["generation"] or 0, shown["partition"], shown["next_offset"])
            said[where] = shown["digest"]
            self._take(where, shown["digest"], answer.body["broker"])
        return said

    def _from_onlooker(self, onlooker: Onlooker) -> dict[Where, str]:
        table, said = onlooker.replica.table, dict[Where, str]()
        for partition in range(table.partitions):
            where = (
                table.cluster_identity.generation if table.cluster_identity else 0,
                partition,
                table.next_offset(partition),
            )
            said[where] = table.digest(partition)
            self._take(where, said[where], "the onlooker")
        return said

    def _take(self, where: Where, digest: str, broker: str) -> None:
        known, brokers = self._digests.setdefault(where, (digest, set()))
        if known != digest:
            self.disagreements.append(f"{broker} at {where}: {digest}, {brokers} had {known}")
        brokers.add(broker)

    def assert_whole(self) -> None:
        """Nobody ever said anything else than the others."""
        assert not self.disagreements, self.disagreements[:10]
        assert self.compared, "nothing was ever compared"
