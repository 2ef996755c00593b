"""The table views of a broker: load reports, suspicions, readers of the channel's log.

Every broker reads them all, except the hottest bundles (`bundles`): those are the leader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from loadmanager.cluster.readers import READER_TTL_S, ChannelReader
from loadmanager.cluster.readers import TOPIC as READERS_TOPIC
from loadmanager.cluster.suspicion import SuspicionReport
from loadmanager.errors import Unavailable
from loadmanager.model.load import (
    BROKERS_TOPIC,
    BUNDLES_TOPIC,
    BrokerLoadData,
    TopBundlesLoadData,
    decode_broker_load,
    decode_top_bundles,
)
from loadmanager.settings import Settings
from statechannel.ports import Log
from statechannel.runtime.view import TableView, wall_clock_ms
from statechannel.runtime.view_on_demand import OnDemandView

V = TypeVar("V")
SUSPICIONS_TOPIC = "accusations"
READ_S = 5.0
SUSPICION_TTL_S = 3_600.0
"""For suspicions of observers that died; live ones withdraw theirs."""


def broker_loads(
    log: Log, settings: Settings, clock_ms: Callable[[], int] = wall_clock_ms
) -> TableView[BrokerLoadData]:
    """The view of every broker's load, by broker name."""
    return _view(log, BROKERS_TOPIC, decode_broker_load, settings.load_ttl_s, clock_ms, followed=True)


def top_bundles(
    log: Log, settings: Settings, clock_ms: Callable[[], int] = wall_clock_ms
) -> OnDemandView[TopBundlesLoadData]:
    """The view of every broker's hottest bundles, by broker name. The leader needs it; others when they are asked."""
    return OnDemandView(
        log,
        BUNDLES_TOPIC,
        decode=decode_top_bundles,
        encode=msgspec.json.encode,
        ttl_s=settings.load_ttl_s,
        clock_ms=clock_ms,
        partitions=1,
        followed=True,
    )


def readers_view(log: Log, ttl_s: float) -> TableView[ChannelReader]:
    """The view of all registered readers, by name. A registration's age counts from when this process read it."""
    return _view(log, READERS_TOPIC, msgspec.json.Decoder(ChannelReader).decode, ttl_s, lambda: 0)


def _view(
    log: Log,
    topic: str,
    decode: Callable[[bytes], V],
    ttl_s: float,
    clock_ms: Callable[[], int],
    *,
    followed: bool = False,
) -> TableView[V]:
    encode = msgspec.json.encode
    return TableView(
        log, topic, decode=decode, encode=encode, ttl_s=ttl_s, clock_ms=clock_ms, partitions=1, followed=followed
    )


class Views:
    """All views, opened and run together."""

    def __init__(self, log: Log, settings: Settings, wall_ms: Callable[[], int]) -> None:
        self.brokers = broker_loads(log, settings, wall_ms)
        self.bundles = top_bundles(log, settings, wall_ms)
        decode = msgspec.json.Decoder(SuspicionReport).decode
        self.suspicions: TableView[SuspicionReport] = _view(log, SUSPICIONS_TOPIC, decode, SUSPICION_TTL_S, wall_ms)
        self.readers = readers_view(log, READER_TTL_S)
        self._all = (self.brokers, self.bundles, self.suspicions, self.readers)

    @property
    def opening(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Steps that create or check the topics, in any order. Each raises LogUnavailable, TopicMismatch."""
        return [view.start for view in self._all]

    async def run(self) -> None:
        """Read until cancelled; `bundles` only while they are needed."""
        async with asyncio.TaskGroup() as tasks:
            for view in self._all:
                tasks.create_task(view.run())

    def follow(self, settings: Settings) -> None:
        """Take the time to live of load data from these settings, from now on."""
        self.brokers.set_ttl(settings.load_ttl_s)
        self.bundles.set_ttl(settings.load_ttl_s)

    async def sweep(self) -> None:
        """Delete expired keys from the topics; a duty of the leader. Raises LogUnavailable.

        A broker that reports at this moment may lose what it writes. It sees that only in `brokers`, to which it writes
        first: so with a broker's bundles its other report goes too, afterwards, and it writes both again.
        """
        for name in await self.bundles.sweep():
            await self.brokers.delete(name)
        for view in (self.brokers, self.suspicions, self.readers):
            await view.sweep()

    async def read_bundles(self) -> None:
        """Return once `bundles` shows all reports. Use it before the next `await`. Raises Unavailable."""
        if not await self.bundles.read(READ_S):
            raise Unavailable(
                f"the loads of bundles were not read from {self.bundles.topic} within {READ_S:g} s; try again, or ask "
                "the leader, who follows them"
            )
