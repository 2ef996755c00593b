"""The demo's stage for a bench: counters on brokers of their own processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.backends import Carrier
from loadmanager.demo.options import Options
from loadmanager.demo.stage import Stage


@asynccontextmanager
async def staged(
    where: Carrier,
    directory: Path,
    *,
    brokers: int,
    rate_s: float,
    balancing_interval_s: float | None = None,
    reads: int | None = None,
) -> AsyncGenerator[Stage]:
    """Ready brokers that own all bundles; `start_load()` sends `rate_s` increments a second. Cleared afterwards.

    Without an interval nothing is moved automatically. `reads` is `Stage.reads`.
    """
    options = Options(brokers=brokers, rate_s=rate_s, log=where.log, coordination=where.coordination)
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(options, directory, tasks)
        stage.reads = reads
        stage.settings["balancing"] = balancing_interval_s is not None
        stage.settings["balancing_interval_s"] = balancing_interval_s or 60.0
        try:
            async with stage.observer.running():
                await stage.start_brokers(brokers)
                await stage.first_owners()
                yield stage
        finally:
            await stage.clear()
