"""One broker of the long life, as a process: the counter service on a broker that dies where it is told to.

Ends when its standard input does, so that it never outlives the test; leaves in order on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from loadmanager import Broker, FencedOut, Settings
from loadmanager.broker.node import Node
from loadmanager.demo.counter.ledger import Ledger, _Job, _Made  # pyright: ignore[reportPrivateUsage]
from loadmanager.demo.counter.service import served
from tests.integration.long_life.points import Order, Start, Told
from tests.integration.long_life.traps import MortalCounters, Traps, install, tell

LINGER_S = 0.3
DRAIN_S = 3.0


class WatchedLedger(Ledger):
    """Tells of every write that the store refused because a newer token was raised: nobody should ever try."""

    def _one(self, db: Any, job: _Job, made: _Made) -> object:
        outcome = super()._one(db, job, made)
        if isinstance(outcome, FencedOut) and "handed over" not in str(outcome):
            tell(Told("refused", detail=str(outcome)))
        return outcome


@asynccontextmanager
async def running(start: Start, traps: Traps) -> AsyncGenerator[Broker]:
    """As `loadmanager.demo.counter.__main__.running`, with the fault points."""
    async with WatchedLedger(Path(start.store)) as ledger:
        counters = MortalCounters(ledger)
        counters.traps = traps
        async with served(counters) as url:
            counters.broker = Broker(counters, Settings.model_validate(start.settings), urls={"http": url})
            async with counters.broker:
                ledger.broker = counters.broker.name
                yield counters.broker
            await asyncio.sleep(LINGER_S)


async def _loaded(broker: Broker) -> tuple[int, ...]:
    async def look(node: Node) -> tuple[int, ...]:
        return tuple(-1 if info is None else info.next_offset for info in node.channel.replica.loaded)

    return await broker.ask(look)


async def _obey(traps: Traps, stop: asyncio.Event) -> None:
    """Take orders until standard input ends."""
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        traps.arm(msgspec.json.decode(line, type=Order))
        tell(Told("armed"))
    stop.set()


async def main(start: Start) -> None:
    """Until SIGTERM or the end of standard input; then move everything away and leave."""
    traps, stop = Traps(), asyncio.Event()
    install(traps)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        obeying = tasks.create_task(_obey(traps, stop))
        async with running(start, traps) as broker:
            tell(Told("ready", name=broker.name, loaded=await _loaded(broker)))
            await stop.wait()
            await broker.stop(DRAIN_S)
        tell(Told("left", name=broker.name))
        obeying.cancel()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1].encode(), type=Start)))
