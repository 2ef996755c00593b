"""Fault points inside a broker's process: the log and the service pass through here, and stop for ever where told.

Knows the insides of the log's adapters: the middle of a transaction is nowhere to be seen from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import loadmanager.embedding.control as control
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.demo.counter.service import Counters
from loadmanager.model.host import Destination
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token
from statechannel.ports import ExclusiveWriter, Log, Payload
from tests.integration.long_life.points import Order, Point, Told

CHANNEL = "bundle-state"


def tell(told: Told) -> None:
    """One line; short enough to be written whole."""
    os.write(1, msgspec.json.encode(told) + b"\n")


class Traps:
    """What this process was told to die of. Any thread."""

    def __init__(self) -> None:
        self._orders: dict[Point, Order] = {}
        self._lit: Point | None = None

    def arm(self, order: Order) -> None:
        self._orders[order.point] = order

    def reach(self, point: Point, bundle: Bundle | None = None, partition: int = -1) -> None:
        """Returns unless it is the end."""
        if self._is_meant(point, bundle, partition):
            self._die(point)

    def light(self, point: Point, partition: int) -> None:
        """From now on the next thread that comes to this point dies there."""
        if self._is_meant(point, None, partition):
            self._lit = point

    def reach_lit(self, point: Point) -> None:
        """As `reach`, where nobody knows the partition."""
        if self._lit is point:
            self._die(point)

    def _is_meant(self, point: Point, bundle: Bundle | None, partition: int) -> bool:
        order = self._orders.get(point)
        if order is None:
            return False
        if bundle is None:
            return order.partition == partition
        meant = Bundle.parse(order.bundle)
        return bundle.namespace == meant.namespace and bundle.lo < meant.hi and meant.lo < bundle.hi

    def _die(self, point: Point) -> None:
        order, self._lit = self._orders.pop(point), None
        tell(Told("hit", detail=point))
        os.kill(os.getpid(), signal.SIGSTOP if order.pause else signal.SIGKILL)


class MortalCounters(Counters):
    """The counter service, with its fault points."""

    traps: Traps

    async def positions(self, bundle: Bundle) -> list[int]:
        self.traps.reach(Point.ASK_KEYS, bundle)
        return await super().positions(bundle)

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.traps.reach(Point.ACQUIRE, bundle)
        await super().acquire(bundle, token, hand_off)

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        if to is None:
            self.traps.reach(Point.RELEASE, bundle)
        return await super().release(bundle, to)


class MortalLog:
    """A log, with its fault points."""

    def __init__(self, log: Log, traps: Traps) -> None:
        self._log = log
        self._traps = traps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def exclusive(self, writer_id: str) -> ExclusiveWriter:
        return _MortalWriter(await self._log.exclusive(writer_id), self._traps)

    async def trim(self, topic: str, partition: int, before: int) -> None:
        if topic == CHANNEL:
            self._traps.reach(Point.TRIM_ASKED, partition=partition)
            self._traps.light(Point.TRIM_UNSWEPT, partition)
        await self._log.trim(topic, partition, before)


class _MortalWriter:
    def __init__(self, writer: ExclusiveWriter, traps: Traps) -> None:
        self._writer = writer
        self._traps = traps

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        self._traps.light(Point.SNAPSHOT_OPEN, partition)
        await self._writer.commit(topic, partition, payloads)
        self._traps.reach(Point.SNAPSHOT_COMMITTED, partition=partition)

    async def close(self) -> None:
        await self._writer.close()


def install(traps: Traps) -> None:
    """Brokers that this process starts from now on have the fault points of the log."""
    original = control.dependencies

    def mortal(settings: Settings) -> Dependencies:
        world = original(settings)
        return msgspec.structs.replace(world, log=MortalLog(world.log, traps))

    control.dependencies = mortal
    _into_sqlite(traps)
    _into_kafka(traps)


def _into_sqlite(traps: Traps) -> None:
    from statechannel.adapters.sqlite.log_writer import Group, Sweeper

    _after(Group, "write", lambda: traps.reach_lit(Point.SNAPSHOT_OPEN))
    _before(Sweeper, "_sweep", lambda: traps.reach_lit(Point.TRIM_UNSWEPT))


def _into_kafka(traps: Traps) -> None:
    from statechannel.adapters.kafka.transactions import Transactions

    _before(Transactions, "_end", lambda: traps.reach_lit(Point.SNAPSHOT_OPEN))


def _before(owner: type[object], method: str, reach: Callable[[], None]) -> None:
    original = getattr(owner, method)

    def reaching(*arguments: Any) -> Any:
        reach()
        return original(*arguments)

    setattr(owner, method, reaching)


def _after(owner: type[object], method: str, reach: Callable[[], None]) -> None:
    original = getattr(owner, method)

    def reaching(*arguments: Any) -> Any:
        answer = original(*arguments)
        reach()
        return answer

    setattr(owner, method, reaching)
