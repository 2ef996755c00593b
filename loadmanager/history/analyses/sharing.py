"""What several analyses of one window are made of, worked out once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from loadmanager.history.analyses import imbalance, ownership, transfers
from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.analyses.cluster import bundle_hours, cluster
from loadmanager.history.analyses.hours import hourly
from loadmanager.history.analyses.once import Once
from loadmanager.history.lake import Window


@contextmanager
def common(every: Tables, window: Window, options: Options) -> Generator[Tables]:
    """The tables to give to analyses of this window within it: what these have in common is planned once, and worked
    out once, when the first of them needs it. Spark knows by itself which part of a plan it keeps.
    """
    tables = Once(every)
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> None:
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(rows.unpersist)

        def keep_made(make: Callable[[Tables, Window, Options], DataFrame]) -> None:
            keep(make(tables, window, options))

        keep(bundle_hours(tables, window))  # these two before what is made of them
        keep(cluster(tables, window, options))
        with ThreadPoolExecutor() as planning:  # one thread plans, and leaves the other cores idle
            made_of_them = (hourly, imbalance.run, transfers.run, ownership.run)
            list(planning.map(keep_made, made_of_them))
        yield tables
