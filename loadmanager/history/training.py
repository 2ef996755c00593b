"""A program that does something of what jobs do, for the JVM to archive the classes that it takes: `archive.make()`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from loadmanager.history.archive import SILENT
from loadmanager.history.session import JAVA_OPTIONS, Spark, session


def _train(part: str) -> None:
    spark = session(Spark(conf={JAVA_OPTIONS: f'"-XX:ArchiveClassesAtExit={part}" {SILENT}'}))
    with tempfile.TemporaryDirectory(prefix="loadmanager-classes-") as folder:
        _work(spark, folder)
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # no other way
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which the JVM ends in order, and writes the archive
    gateway.proc.wait()


def _work(spark: SparkSession, folder: str) -> None:
    def same(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches

    rows = spark.range(1_000).select(
        (f.col("id") % 7).cast("string").alias("name"), f.rand(1).alias("value"), f.array("id").alias("all"),
        f.timestamp_seconds("id").alias("at"), f.to_date(f.timestamp_seconds("id")).alias("day"),
    )  # fmt: skip
    for _ in range(2):
        rows.write.format("delta").partitionBy("day").mode("append").save(folder)
    table = spark.read.format("delta").load(folder).where(f.col("at") >= f.lit("1970-01-01").cast("timestamp"))
    by_name = Window.partitionBy("name").orderBy("at")
    steps = table.withColumn("last", f.lag("value").over(by_name)).withColumn("rank", f.row_number().over(by_name))
    summed = steps.groupBy("name", f.window("at", "1 minute")).agg(
        f.sum("value"), f.avg("last"), f.max_by("value", "at"), f.percentile_approx("value", 0.99),
        f.collect_list("value"), f.count_distinct("rank"), f.stddev_pop("value"),
    )  # fmt: skip
    joined = summed.join(f.broadcast(table.groupBy("name").count()), "name").join(table.select("name"), "name", "left")
    joined.orderBy(f.desc("count"), "name").limit(100).toArrow()
    table.mapInArrow(same, table.schema).groupBy("day").count().unionByName(table.groupBy("day").count()).collect()
    table.select(f.explode("all"), f.to_json(f.struct("name"))).distinct().count()


if __name__ == "__main__":
    _train(sys.argv[1])
