"""Runs one broker with the counter service until SIGTERM or Ctrl-C, then moves its bundles away and leaves."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from loadmanager import Broker, Settings
from loadmanager.demo.counter.ledger import Ledger
from loadmanager.demo.counter.service import Counters, served
from statechannel.errors import StateChannelError

NAMESPACE = "demo/counters"
LINGER_S = 0.5
"""For this time after it has left, a broker still tells clients where their counters are now."""


@asynccontextmanager
async def running(settings: Settings, store: Path, linger_s: float = LINGER_S) -> AsyncGenerator[Broker]:
    """One broker with its counters and its HTTP interface; leaves gracefully at the end."""
    async with Ledger(store) as ledger:
        counters = Counters(ledger)
        async with served(counters) as url:
            counters.broker = Broker(counters, settings, urls={"http": url})
            async with counters.broker:
                ledger.broker = counters.broker.name
                yield counters.broker
            await asyncio.sleep(linger_s)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", default="sqlite:cluster.db")
    parser.add_argument("--coordination")
    parser.add_argument("--advertised", default="127.0.0.1:0", help="this broker's name; port 0 takes a free one")
    parser.add_argument("--store", type=Path, default=Path("counters.db"))
    parser.add_argument("--bundles", type=int, default=16)
    given = parser.parse_args()
    settings = Settings.model_validate(
        {"log": given.log, "coordination": given.coordination, "advertised": given.advertised}
    )
    async with running(settings, given.store) as broker:
        await broker.ensure_namespace(NAMESPACE, given.bundles)
        await broker.run_until_signal(lambda: print(f"http://{broker.name}", flush=True))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except StateChannelError as error:
        sys.exit(str(error))
