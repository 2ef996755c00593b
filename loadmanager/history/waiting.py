"""Warns when a cluster gives a job no executors. Spark then waits forever, and says so only in a log that is off.

It watches the session from a thread of its own. A busy cluster may still give executors later, so a waiting job is
reported, not ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from loadmanager.history.progress import beside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 30.0
"""A cluster that has room starts an executor in a few seconds; one that fetches an image first takes about so long."""
AGAIN_S = 300.0
LOOK_S = 1.0


@contextmanager
def telling(spark: SparkSession, tell: Callable[[str], None], patience_s: float = PATIENCE_S) -> Generator[None]:
    """Call `tell` if the session has work but no executor for so long, and then every five minutes.

    A session on this machine needs none: nothing is looked at.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        yield
        return
    said = _told(str(context.master), dict(context.getConf().getAll()))
    with beside(lambda stop: _look(context, tell, said, patience_s, stop)):
        yield


def _look(context: Any, tell: Callable[[str], None], said: str, patience_s: float, stop: threading.Event) -> None:
    waited_s, due_s = 0.0, patience_s
    with suppress(Exception):  # the session has ended, or its JVM: the code that uses it reports that
        while not stop.wait(LOOK_S):
            if not is_waiting(context):
                waited_s, due_s = 0.0, patience_s
                continue
            waited_s += LOOK_S
            if waited_s >= due_s:
                tell(f"waiting for {waited_s:.0f} s: {said}")
                due_s = waited_s + AGAIN_S


def is_waiting(context: Any) -> bool:
    """Whether stages are active and no executor is there to run them."""
    if not context.statusTracker().getActiveStageIds():
        return False
    holders = context._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 # no other way; the driver is one of them
    return int(holders.size()) <= 1


def _told(master: str, conf: Mapping[str, str]) -> str:
    memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "")
    needs = f"{f'{cores} free cores' if cores else 'a free core'} and {memory} of free memory"
    return (
        f"{master} gives this job no executor. An executor needs a worker with {needs}. "
        "Ask for less (spark.executor.cores, spark.executor.memory, with --conf or in the properties file of "
        "spark-submit), add workers, or wait for other applications to end"
    )
