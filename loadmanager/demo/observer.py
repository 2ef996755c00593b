"""An observer: follows the cluster by reading its log, as every broker does, and writes nothing.

So ownership, moves, their reasons and leaders are those that the log accepted, not those that a process claims. Loads
come from the brokers' reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from loadmanager.broker.wiring import open_log
from loadmanager.cluster.views import broker_loads
from loadmanager.model.load import BrokerLoadData
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Transition
from statechannel.runtime.channel import Channel, ChannelSettings
from statechannel.runtime.view import TableView, wall_clock_ms

MOVES_KEPT = 100
START_TIMEOUT_S = 60.0


class Move(msgspec.Struct):
    """A move of a bundle: in the log at `begun_s`, arrived at `arrived_s` (monotonic; None on its way)."""

    bundle: Bundle
    source: str
    destination: str
    reason: str
    planned: bool
    begun_s: float
    arrived_s: float | None = None


class Observer:
    """The cluster by its log. Calls `on_lead` with a broker that takes the lead, and its epoch."""

    def __init__(self, settings: Settings, on_lead: Callable[[BrokerId, int], None]) -> None:
        self._log = open_log(settings)
        self._on_lead = on_lead
        self._partitions = settings.partitions
        self._channel = Channel(
            self._log, ChannelSettings(partitions=settings.partitions), nonce="onlooker", wall_ms=wall_clock_ms
        )
        self._loads: TableView[BrokerLoadData] = broker_loads(self._log, settings)
        self._epoch = 0
        self.leader: BrokerId | None = None
        self.moves: deque[Move] = deque(maxlen=MOVES_KEPT)
        self._under_way: dict[Bundle, Move] = {}
        self._news = asyncio.Event()
        self.transfers = 0
        """Planned moves that arrived."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Observer]:
        """Follow while the context is open. Raises LogUnavailable."""
        await self._log.start(START_TIMEOUT_S)
        try:
            await self._channel.open()
            await self._loads.start()
            self._channel.listen(self._changed)
            async with self._channel.running(), _beside(self._loads):
                yield self
        finally:
            await self._log.close()

    @property
    def table(self) -> OwnershipTable:
        """Who owns what."""
        return self._channel.table

    def load(self, broker: str) -> BrokerLoadData | None:
        """What the broker last reported."""
        return self._loads.get(broker)

    def bundles(self, namespace: str) -> tuple[Bundle, ...]:
        """The bundles of a namespace, lowest first; none before it exists."""
        known = self.table.namespace(namespace)
        return known.bundles if known is not None else ()

    async def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds; checks it after each change. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def held_by_name(self, name: str) -> list[Bundle]:
        """What any incarnation of this broker holds."""
        return [
            bundle for holder in self.table.holders() if holder.name == name for bundle in self.table.held_by(holder)
        ]

    def _changed(self, change: Change) -> None:
        record = change.record
        if record.action is Action.LEAD and record.epoch > self._epoch:
            self._epoch, self.leader = record.epoch, record.actor
            self._on_lead(record.actor, record.epoch)
        for transition in () if change.whole is not None else change.transitions:
            self._follow(transition, record.action, record.reason)
        self._news.set()

    def _follow(self, transition: Transition, action: Action, reason: str) -> None:
        before, after = transition.before, transition.after
        if before is None or after is None or before.holder is None:
            return
        if action in (Action.TRANSFER, Action.REVOKE, Action.UNLOAD):
            target = after.target.name if after.target else ""
            self._begin(transition.bundle, before.holder.name, target, action, reason)
        move = self._under_way.get(transition.bundle)
        if move is None:
            return
        if action is Action.CANCEL:
            self.moves.remove(self._under_way.pop(transition.bundle))
        elif after.holder is not None and after.holder.name != move.source:
            move.destination = after.holder.name
            if after.state is State.ASSIGNED:
                move.arrived_s = time.monotonic()
                self.transfers += move.planned
                del self._under_way[transition.bundle]

    def _begin(self, bundle: Bundle, source: str, destination: str, action: Action, reason: str) -> None:
        planned = action is not Action.REVOKE
        move = Move(bundle, source, destination, reason, planned, time.monotonic())
        earlier = self._under_way.get(bundle)
        if earlier is not None and earlier in self.moves:
            self.moves.remove(earlier)
        self._under_way[bundle] = move
        self.moves.append(move)


@asynccontextmanager
async def _beside(view: TableView[BrokerLoadData]) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(view.run())
        try:
            yield
        finally:
            reading.cancel()
