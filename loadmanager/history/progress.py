"""What people see while a job runs: its steps and Spark's tasks, what it waits for, and one line of an error. No Spark.

On a terminal two bars, elsewhere a line per step, on standard error in both cases. Tasks come from the status tracker;
a Spark Connect server reports them itself. Showing progress never fails a job.

`telling` warns when a cluster gives a job no executors: Spark then waits forever, and says so only in a log that is
off. A busy cluster may still give executors later, so a waiting job is reported, not ended.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
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


PATIENCE_S = 30.0
"""A cluster that has room starts an executor in a few seconds; one that fetches an image first takes about so long."""
AGAIN_S = 300.0
EXECUTORS_LOOK_S = 1.0


@contextmanager
def telling(spark: SparkSession, tell: Callable[[str], None], patience_s: float = PATIENCE_S) -> Generator[None]:
    """Call `tell` if the session has work but no executor for so long, and then every five minutes.

    A session on this machine needs none: nothing is looked at.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        yield
        return
    said = _no_executor(str(context.master), dict(context.getConf().getAll()))
    with beside(lambda stop: _look_for_executors(context, tell, said, patience_s, stop)):
        yield


def _look_for_executors(
    context: Any, tell: Callable[[str], None], said: str, patience_s: float, stop: threading.Event
) -> None:
    waited_s, due_s = 0.0, patience_s
    with suppress(Exception):  # the session has ended, or its JVM: the code that uses it reports that
        while not stop.wait(EXECUTORS_LOOK_S):
            if not is_waiting(context):
                waited_s, due_s = 0.0, patience_s
                continue
            waited_s += EXECUTORS_LOOK_S
            if waited_s >= due_s:
                tell(f"waiting for {waited_s:.0f} s: {said}")
                due_s = waited_s + AGAIN_S


def is_waiting(context: Any) -> bool:
    """Whether stages are active and no executor is there to run them."""
    if not context.statusTracker().getActiveStageIds():
        return False
    holders = context._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 # no other way; the driver is one of them
    return int(holders.size()) <= 1


def _no_executor(master: str, conf: Mapping[str, str]) -> str:
    memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", "")
    needs = f"{f'{cores} free cores' if cores else 'a free core'} and {memory} of free memory"
    return (
        f"{master} gives this job no executor. An executor needs a worker with {needs}. "
        "Ask for less (spark.executor.cores, spark.executor.memory, with --conf or in the properties file of "
        "spark-submit), add workers, or wait for other applications to end"
    )


_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
_STATE = re.compile(r"(?<! ) *SQLSTATE: \w+")
_CALLING = "An error occurred while calling"


def gist(said: str) -> str:
    """Spark's named error condition if there is one, else the first line that says anything."""
    named = _CONDITION.search(said)
    lines = (line.strip().removeprefix(": ") for line in said.splitlines())
    words = named[0] if named else next((line for line in lines if line and not line.startswith(_CALLING)), "no reason")
    return _STATE.sub("", words).strip()
