"""The table views that every broker reads: load reports, suspicions, readers of the channel's log. One place for their
topics and life times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from loadmanager.cluster.load_reports import broker_loads, top_bundles
from loadmanager.cluster.readers import readers_view
from loadmanager.cluster.suspicion import SuspicionReport
from loadmanager.settings import Settings
from statechannel.ports import Log
from statechannel.runtime.view import TableView

SUSPICIONS_TOPIC = "accusations"
SUSPICION_TTL_S = 3_600.0
"""Observers withdraw what does not hold any more; this is for observers that died."""


class Views:
    """Opened and run together."""

    def __init__(self, log: Log, settings: Settings, wall_ms: Callable[[], int]) -> None:
        self.brokers = broker_loads(log, settings, wall_ms)
        self.bundles = top_bundles(log, settings, wall_ms)
        self.suspicions: TableView[SuspicionReport] = TableView(
            log,
            SUSPICIONS_TOPIC,
            decode=msgspec.json.Decoder(SuspicionReport).decode,
            encode=msgspec.json.encode,
            ttl_s=SUSPICION_TTL_S,
            clock_ms=wall_ms,
            partitions=1,
        )
        self.readers = readers_view(log, settings.reader_ttl_s, wall_ms)
        self._all = (self.brokers, self.bundles, self.suspicions, self.readers)

    async def open(self) -> None:
        """Create or check the topics. Raises LogUnavailable, TopicMismatch."""
        for view in self._all:
            await view.start()

    async def run(self) -> None:
        """Read for ever."""
        async with asyncio.TaskGroup() as tasks:
            for view in self._all:
                tasks.create_task(view.run())

    def follow(self, settings: Settings) -> None:
        """Let load data live as long as these settings say, from now on."""
        self.brokers.set_ttl(settings.load_ttl_s)
        self.bundles.set_ttl(settings.load_ttl_s)

    async def sweep(self) -> None:
        """Tombstone what is too old; the leader's duty."""
        for view in self._all:
            await view.sweep()
