"""What several analyses of one window are made of, worked out once for all of them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pyspark import StorageLevel

from loadmanager.history.analyses import imbalance, ownership, transfers
from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.analyses.cluster import bundle_hours, cluster
from loadmanager.history.analyses.hours import hourly
from loadmanager.history.lake import Window


@contextmanager
def common(tables: Tables, window: Window, options: Options) -> Generator[None]:
    """Within it what analyses of this window have in common is worked out once, when the first of them needs it.

    Spark knows by itself which part of a plan is kept: analyses run within it need not be told.
    """
    kept = [
        bundle_hours(tables, window),
        cluster(tables, window, options),
        hourly(tables, window, options),
        *(each.run(tables, window, options) for each in (imbalance, transfers, ownership)),
    ]
    for rows in kept:
        rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        for rows in reversed(kept):
            rows.unpersist()
