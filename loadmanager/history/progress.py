"""Shows the progress of a running job: how many steps are done, and how many of Spark's tasks.

On a terminal two bars, elsewhere a line per step, on standard error in both cases. Tasks come from the status tracker;
a Spark Connect server reports them itself. Showing progress never fails a job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.25

Counts = tuple[int, int]
"""Tasks that are done, and all tasks of the running stages."""


class Steps:
    """Call `begin(name)` for each step, and `end()` after the last one."""

    def __init__(self, total: int, console: Console, bars: Progress | None) -> None:
        self._total, self._console, self._bars = total, console, bars
        self._overall: TaskID | None = bars.add_task("", total=total) if bars else None
        self._tasks: TaskID | None = bars.add_task("Spark tasks", total=None) if bars else None
        self._name, self._begun_s, self._done = "", 0.0, 0

    def begin(self, name: str) -> None:
        """The step before is done, and this one begins."""
        self.end()
        self._name, self._begun_s = name, time.monotonic()
        if self._bars is not None and self._overall is not None:
            self._bars.update(self._overall, description=name)

    def end(self) -> None:
        """The present step is done."""
        if not self._name:
            return
        self._done += 1
        if self._bars is not None and self._overall is not None:
            self._bars.update(self._overall, completed=self._done)
        else:
            took_s = time.monotonic() - self._begun_s
            self._console.print(f"[{self._done}/{self._total}] {self._name}, {took_s:.1f} s")
        self._name = ""

    def tasks(self, counts: Counts) -> None:
        """How many of Spark's tasks are done."""
        done, total = counts
        if self._bars is not None and self._tasks is not None:
            self._bars.update(self._tasks, completed=done, total=total or None)


@contextmanager
def steps(spark: SparkSession, total: int, *, quiet: bool = False) -> Generator[Steps]:
    """Show the steps of a job in this session; `quiet` shows nothing."""
    console = Console(stderr=True, quiet=quiet, highlight=False, markup=False)
    if not console.is_terminal or quiet:
        shown = Steps(total, console, None)
        yield shown
        shown.end()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        shown = Steps(total, console, bars)
        with following(spark, shown.tasks):
            yield shown
        shown.end()


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Show that a job waits for this: on a terminal while it does, elsewhere as a line when it is done."""
    console = Console(stderr=True, highlight=False, markup=False)
    begun_s = time.monotonic()
    with console.status(what) if console.is_terminal else nullcontext():
        yield
    if not console.is_terminal:
        console.print(f"{what}, {time.monotonic() - begun_s:.1f} s")


@contextmanager
def following(spark: SparkSession, tell: Callable[[Counts], None]) -> Generator[None]:
    """Report tasks as they get done."""
    from pyspark.sql.utils import is_remote

    if is_remote():

        def told(stages: Any, inflight_tasks: int, done: bool, **_: Any) -> None:
            tell((sum(stage.num_completed_tasks for stage in stages), sum(stage.num_tasks for stage in stages)))

        spark.registerProgressHandler(told)
        try:
            yield
        finally:
            spark.removeProgressHandler(told)
        return
    with beside(lambda stop: _look(spark, tell, stop)):
        yield


@contextmanager
def beside(look: Callable[[threading.Event], None]) -> Generator[None]:
    """Run `look` in a thread beside a job. It is given an event that says when to end."""
    stop = threading.Event()
    looking = threading.Thread(target=look, args=(stop,), daemon=True, name="beside a job")
    looking.start()
    try:
        yield
    finally:
        stop.set()
        looking.join(timeout=5)


def _look(spark: SparkSession, tell: Callable[[Counts], None], stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(LOOK_S):
        with suppress(Exception):  # the session may end meanwhile
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                tell((sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)))


@contextmanager
def batches(spark: SparkSession, *, every_s: float = 10.0) -> Generator[None]:
    """Show a streaming query's last batch every `every_s`."""
    console = Console(stderr=True, highlight=False, markup=False)
    with beside(lambda stop: _tell_batches(spark, console, every_s, stop)):
        yield


def _tell_batches(spark: SparkSession, console: Console, every_s: float, stop: threading.Event) -> None:
    told = -1
    while not stop.wait(every_s):
        with suppress(Exception):  # the query may end meanwhile
            for query in spark.streams.active:
                last = query.lastProgress
                if last is not None and last["batchId"] != told:
                    told = last["batchId"]
                    rate = last["processedRowsPerSecond"] or 0.0
                    console.print(f"batch {told}: {last['numInputRows']:,} records, {rate:,.0f}/s", soft_wrap=True)
