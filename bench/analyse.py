"""All analyses over generated histories: time, memory, growth, and DuckDB's time for the same on the same Parquet.

`ANALYSE_ROWS` has the sizes, in rows of `bundle_minute` (default `1000000,10000000,100000000`), a week each, in which
bundles grow with the rows; `ANALYSE_DIR` keeps the Parquet for the next run. `--log` means nothing here. Each size runs
on a Spark of its own with two threads and 2 GB, after a first round that is not counted; DuckDB gets two threads too.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import psutil
from pyspark.sql import DataFrame, SparkSession

from bench.analyse_duckdb import ANSWERS
from bench.figures import emit
from loadmanager.history.analyses import ANALYSES, Tables
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.generating import World, generated
from loadmanager.history.lake import ALWAYS
from loadmanager.history.schemas import TABLES
from loadmanager.history.session import Spark, session

SIZES = "1000000,10000000,100000000"
DAYS = 7
COMPARED_UP_TO = 20_000_000
"""Rows; beyond, DuckDB is not asked."""
TIMES_DUCKDB = 4.0
MOST_GB = 4.0
NEEDED = sorted({name for analysis in ANALYSES.values() for name in analysis.needs})


def run(kind: str) -> None:
    """All figures of this bench."""
    sizes = [int(size) for size in os.environ.get("ANALYSE_ROWS", SIZES).split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(os.environ.get("ANALYSE_DIR") or scratch)
        totals = {rows: one_size(rows, root / str(rows)) for rows in sizes}
    for small, large in itertools.pairwise(sizes):
        growth = totals[large] / totals[small]
        emit("analyse", f"growth, {small:,} to {large:,} rows", growth, "times", rows=round(large / small, 1))


def world_of(rows: int) -> World:
    """A week with about so many rows of `bundle_minute`."""
    bundles = max(10, round(rows / (DAYS * 1440)))
    return World(brokers=max(4, bundles // 50), bundles=bundles, days=DAYS)


def one_size(rows: int, root: Path) -> float:
    """The figures of one size; returns the seconds of all analyses."""
    spark = session(Spark(conf={"spark.sql.shuffle.partitions": "4"}))
    try:
        make(spark, world_of(rows), root)
        tables = reading(spark, root)
        count = tables("bundle_minute").count()
        for name in ANALYSES:
            answered(tables, name)
        took: dict[str, float] = {}
        with watched() as peak:
            for name in ANALYSES:
                begin = time.perf_counter()
                answered(tables, name)
                took[name] = time.perf_counter() - begin
                emit("analyse", f"{name}, {count:,} rows", took[name], "s")
        gigabytes = peak[0] / 2**30
        emit("analyse", f"peak memory, {count:,} rows", gigabytes, "GB", target=f"≤ {MOST_GB:g}",
             met=gigabytes <= MOST_GB)  # fmt: skip
        total = sum(took.values())
        emit("analyse", f"all analyses, {count:,} rows", total, "s", rows_s=round(count / total))
        if count <= COMPARED_UP_TO:
            compare(tables, root, count, took)
        return total
    finally:
        spark.stop()


def make(spark: SparkSession, world: World, root: Path) -> None:
    """Writes the tables as Parquet, unless they are there."""
    tables = generated(spark, world)
    for name in NEEDED:
        if not (root / name / "_SUCCESS").exists():
            begin = time.perf_counter()
            tables(name).write.mode("overwrite").parquet(str(root / name))
            emit("analyse", f"generating {name}", time.perf_counter() - begin, "s")


def reading(spark: SparkSession, root: Path) -> Tables:
    """The tables as they were written."""

    def table(name: str) -> DataFrame:
        return spark.read.schema(TABLES[name]).parquet(str(root / name))

    return table


def answered(tables: Tables, name: str) -> None:
    """Works out the whole answer, and keeps nothing of it."""
    ANALYSES[name].run(tables, ALWAYS, DEFAULTS).write.format("noop").mode("overwrite").save()


def compare(tables: Tables, root: Path, count: int, took: dict[str, float]) -> None:
    """DuckDB's time for each, held against Spark's; both must give as many rows."""
    with duckdb.connect() as db:
        db.sql("SET threads = 2")
        for name in NEEDED:
            db.sql(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{root / name}/*.parquet')")
        theirs: dict[str, float] = {}
        for name, answer in ANSWERS.items():
            answer(db)
            begin = time.perf_counter()
            rows = answer(db)
            theirs[name] = time.perf_counter() - begin
            same = rows == ANALYSES[name].run(tables, ALWAYS, DEFAULTS).count()
            emit("analyse", f"{name} ÷ DuckDB, {count:,} rows", took[name], "s", floor=theirs[name], same_rows=same)
    ours = sum(took[name] for name in theirs)
    ratio = ours / sum(theirs.values())
    emit("analyse", f"all of these ÷ DuckDB, {count:,} rows", ours, "s", floor=sum(theirs.values()),
         target=f"≤ {TIMES_DUCKDB:g}", met=ratio <= TIMES_DUCKDB)  # fmt: skip


@contextmanager
def watched() -> Generator[list[float]]:
    """The most bytes that this process and its children, the JVM and Python workers, had resident at once."""
    peak, stop = [0.0], threading.Event()
    me = psutil.Process()

    def watch() -> None:
        while not stop.wait(0.2):
            sizes = []
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
