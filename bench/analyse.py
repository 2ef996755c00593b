"""All analyses over generated histories: time, memory, growth, and DuckDB's time for the same on the same Parquet.

`ANALYSE_ROWS` has the sizes, in rows of `bundle_minute` (default `1000000,10000000,100000000`), a week each, in which
bundles grow with the rows; `ANALYSE_DIR` keeps the Parquet: the next run takes what is there of the same world, and
makes only what is missing. `--log` means nothing here. Each size has a process with a Spark of its own, two threads and
2 GB. Analyses run as the command line runs them: some at a time, with what they have in common made once. Up to
COMPARED_UP_TO rows a first round that is not timed takes the answers; DuckDB, with two threads too, must give the same
ones, and has an untimed round as well. Then each is run alone, and all together again. Beyond, all together is the only
run. DuckDB answers one after the other. Memory is that of this process, its JVM and all Python workers at once.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.figures import emit
from bench.generating import World, generated
from loadmanager.history.analyses import ANALYSES, Tables
from loadmanager.history.analyses.analysis import DEFAULTS, Table, answers
from loadmanager.history.duck import speak_spark
from loadmanager.history.engine import answered
from loadmanager.history.lake import ALWAYS
from loadmanager.history.schemas import TABLES
from loadmanager.history.session import Spark, session

SIZES = "1000000,10000000,100000000"
DAYS = 7
COMPARED_UP_TO = 20_000_000
"""Rows; beyond, DuckDB is not asked, and nothing is done twice."""
TIMES_DUCKDB = 2.0
MOST_GB = 4.0
NEEDED = sorted({name for analysis in ANALYSES.values() for name in analysis.needs})
WORLD = "world.txt"
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""How far figures may be apart: sums in another order; the second as a part of the column's largest."""


def run(kind: str) -> None:
    """All figures of this bench. Raises AssertionError where an answer is not DuckDB's."""
    sizes = [int(size) for size in os.environ.get("ANALYSE_ROWS", SIZES).split(",")]
    totals: dict[int, float] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(os.environ.get("ANALYSE_DIR") or scratch)
        for rows in sizes:
            alone(make, rows, root / str(rows))
            totals[rows], found = alone(one_size, root / str(rows))
            wrong += found
    for small, large in itertools.pairwise(sizes):
        growth = totals[large] / totals[small]
        emit("analyse", f"growth, {small:,} to {large:,} rows", growth, "times", rows=round(large / small, 1))
    assert not wrong, "; ".join(wrong)


def alone(work: Any, *arguments: Any) -> Any:
    """The result of a function in a process of its own: what others left in memory does not count."""
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(work, *arguments).result()


def world_of(rows: int) -> World:
    """A week with about so many rows of `bundle_minute`."""
    bundles = max(10, round(rows / (DAYS * 1440)))
    return World(brokers=max(4, bundles // 50), bundles=bundles, days=DAYS, top=bundles)


def make(rows: int, root: Path) -> None:
    """Writes the tables as Parquet, unless they are there, of the same world."""
    world = world_of(rows)
    same = (root / WORLD).exists() and (root / WORLD).read_text() == repr(world)
    missing = [name for name in NEEDED if not (same and (root / name / "_SUCCESS").exists())]
    if not missing:
        return
    spark = session(Spark())
    try:
        tables = generated(spark, world)
        root.mkdir(parents=True, exist_ok=True)
        for name in missing:
            (root / name / "_SUCCESS").unlink(missing_ok=True)
        (root / WORLD).write_text(repr(world))
        for name in missing:
            begin = time.perf_counter()
            tables(name).write.mode("overwrite").parquet(str(root / name))
            emit("analyse", f"generating {name} for {rows:,} rows", time.perf_counter() - begin, "s")
    finally:
        spark.stop()


def one_size(root: Path) -> tuple[float, list[str]]:
    """The figures of one size; returns the seconds of all analyses, and what is not as DuckDB has it."""
    spark = session(Spark())
    try:
        tables = reading(spark, root)
        count = tables("bundle_minute").count()
        compared = count <= COMPARED_UP_TO
        found = dict(zip(ANALYSES, together(tables, DataFrame.toArrow), strict=True)) if compared else {}
        took: dict[str, float] = {}
        peaks = [0.0]
        for name in ANALYSES if compared else ():
            with watched() as peak:
                begin = time.perf_counter()
                worked_out(ANALYSES[name].run(tables, ALWAYS, DEFAULTS))
                took[name] = time.perf_counter() - begin
            peaks.append(peak[0] / 2**30)
            emit("analyse", f"{name} alone, {count:,} rows", took[name], "s", peak_gb=round(peaks[-1], 2))
        with watched() as peak:
            begin = time.perf_counter()
            together(tables, worked_out)
            total = time.perf_counter() - begin
        peaks.append(peak[0] / 2**30)
    finally:
        spark.stop()
    emit("analyse", f"peak memory, {count:,} rows", max(peaks), "GB", target=f"≤ {MOST_GB:g}",
         met=max(peaks) <= MOST_GB)  # fmt: skip
    emit("analyse", f"all analyses, {count:,} rows", total, "s", rows_s=round(count / total))
    return total, compare(root, count, took, total, found) if compared else []


def reading(spark: SparkSession, root: Path) -> Tables:
    """The tables as they were written."""

    def table(name: str) -> DataFrame:
        return spark.read.schema(TABLES[name]).parquet(str(root / name))

    return table


def together(tables: Tables, take: Callable[[DataFrame], Any]) -> list[Any]:
    """What `take` makes of each of ANALYSES."""
    return list(answers(list(ANALYSES.values()), tables, ALWAYS, DEFAULTS, take))


def worked_out(answer: DataFrame) -> None:
    """All of it, and nothing of it is kept."""
    answer.write.format("noop").mode("overwrite").save()


def connected(root: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with a view of each table."""
    db = duckdb.connect()
    db.sql("SET threads = 2")
    speak_spark(db)
    for name in NEEDED:
        db.sql(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{root / name}/*.parquet')")
    return db


def compare(root: Path, count: int, took: dict[str, float], total: float, answers: dict[str, Any]) -> list[str]:
    """DuckDB's time for each, held against Spark's; what is not equal comes back."""
    theirs: dict[str, float] = {}
    wrong: dict[str, str] = {}
    with connected(root) as db:
        for name in ANALYSES:
            answered(db, name, ALWAYS, DEFAULTS).to_arrow_table()
            begin = time.perf_counter()
            rows = answered(db, name, ALWAYS, DEFAULTS).to_arrow_table()
            theirs[name] = time.perf_counter() - begin
            apart = difference(answers[name], rows, ANALYSES[name].order)
            if apart:
                wrong[name] = apart
            emit("analyse", f"{name} ÷ DuckDB, {count:,} rows", took[name], "s", floor=theirs[name],
                 equal=not apart, apart=apart)  # fmt: skip
    ratio = total / sum(theirs.values())
    emit("analyse", f"all ÷ DuckDB, {count:,} rows", total, "s", floor=sum(theirs.values()),
         target=f"≤ {TIMES_DUCKDB:g}", met=ratio <= TIMES_DUCKDB)  # fmt: skip
    return [f"{name} of {count:,} rows is not DuckDB's: {text}" for name, text in wrong.items()]


@contextmanager
def watched() -> Generator[list[float]]:
    """The most bytes that this process and its children, the JVM and Python workers, had resident at once."""
    peak, stop = [0.0], threading.Event()
    me = psutil.Process()

    def watch() -> None:
        while not stop.wait(0.2):
            sizes: list[int] = []
            for process in (me, *me.children(recursive=True)):
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], float(sum(sizes)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def difference(ours: Table, theirs: Table, order: tuple[str, ...]) -> str:
    """What is not equal, in words; empty where all is."""
    if ours.num_rows != theirs.num_rows:
        return f"{ours.num_rows} rows and {theirs.num_rows}"
    if set(ours.column_names) != set(theirs.column_names):
        return f"columns {sorted(set(ours.column_names) ^ set(theirs.column_names))}"
    ours, theirs = (_sorted(table, order) for table in (ours, theirs))
    wrong = [
        text for name in ours.column_names if (text := _run_blocking(name, ours.column(name), theirs.column(name)))
    ]
    return "; ".join(wrong)


def _sorted(table: Table, order: tuple[str, ...]) -> Table:
    exact = [name for name in table.column_names if name not in order and _is_exact(table.column(name).type)]
    return table.sort_by([(name, "ascending") for name in (*order, *sorted(exact))])


def _is_exact(kind: Any) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _run_blocking(name: str, ours: Any, theirs: Any) -> str:
    if pa.types.is_nested(ours.type):
        ours, theirs = (pa.chunked_array([each.combine_chunks().flatten()]) for each in (ours, theirs))
    if pa.types.is_floating(ours.type):
        one, other = (each.cast(pa.float64()).to_numpy() for each in (ours, theirs))
        if len(one) != len(other):
            return f"{name}: {len(one)} values and {len(other)}"
        scale = np.nanmax(np.abs(other), initial=0.0)
        same = np.isclose(one, other, RELATIVE, ABSOLUTE * scale, equal_nan=True)
    else:
        one, other = (np.array(_plain(each).to_pylist(), object) for each in (ours, theirs))
        same = one == other
    if same.all():
        return ""
    at = int(np.flatnonzero(~same)[0])
    return f"{name}: {int((~same).sum())} differ, as {one[at]} and {other[at]}"


def _plain(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column
