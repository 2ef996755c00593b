"""Delta, Iceberg and plain Parquet under the two things that the ingest does: many rows in one commit, and few.

Iceberg is not among the product's jars: Maven brings it for this bench alone. Formats take turns, so that a machine
that is slower for a while is slower for all of them; of each the fastest round counts.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.figures import emit
from loadmanager.errors import Invalid
from loadmanager.history import jars
from loadmanager.history.session import CATALOG, EXTENSION, Spark, configuration, session

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
MANY, FEW = 1_000_000, 100
ROUNDS = 5


def run(kind: str) -> None:
    """All figures of this bench; which log carries a cluster does not matter to it."""
    jars.bring()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        root = Path(directory)
        spark = _session(root, _iceberg(root / "jars"))
        try:
            spark.sparkContext.setLogLevel("ERROR")
            _compare(spark, root)
        finally:
            spark.stop()


def _compare(spark: SparkSession, root: Path) -> None:
    source = root / "source"
    spark.range(MANY).select(
        f.concat(f.lit("broker-"), f.col("id") % 100).alias("broker"),
        f.col("id").alias("offset"),
        f.timestamp_seconds(f.col("id") / 100).alias("at"),
        f.rand(1).alias("cpu_percent"),
    ).write.parquet(str(source))
    many = spark.read.parquet(str(source))
    few = many.where(f.col("offset") < FEW).coalesce(1)
    writes = _writes(root)
    for rows, count in ((many, MANY), (few, FEW)):
        times: dict[str, list[float]] = {name: [] for name in writes}
        for number in range(-1, ROUNDS):  # the first one compiles everything, and makes the tables
            for name, write in writes.items():
                took_s = _timed(partial(write, rows))
                if number >= 0:
                    times[name].append(took_s)
        floor = min(times["Parquet"])
        for name, took_s in times.items():
            emit("lake_format", f"{name}: a commit of {count:,} rows", min(took_s), "s", floor=floor)


def _writes(root: Path) -> dict[str, Callable[[DataFrame], None]]:
    def parquet(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(str(root / "parquet"))

    def delta(rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(str(root / "delta"))

    def delta_plain(rows: DataFrame) -> None:
        spark = rows.sparkSession
        spark.conf.set("spark.databricks.delta.stats.collect", "false")
        rows.write.format("delta").mode("append").save(str(root / "delta-plain"))
        spark.conf.set("spark.databricks.delta.stats.collect", "true")

    def iceberg(rows: DataFrame) -> None:
        if rows.sparkSession.catalog.tableExists("ice.lake.load"):
            rows.writeTo("ice.lake.load").append()
        else:
            rows.writeTo("ice.lake.load").using("iceberg").create()

    return {"Parquet": parquet, "Delta": delta, "Delta without statistics": delta_plain, "Iceberg": iceberg}


def _session(root: Path, iceberg: Path) -> SparkSession:
    return session(
        Spark(
            name="bench lake_format",
            conf={
                "spark.jars": f"{configuration()['spark.jars']},{iceberg}",
                "spark.sql.extensions": f"{EXTENSION},"
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                "spark.sql.catalog.spark_catalog": CATALOG,
                "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.ice.type": "hadoop",
                "spark.sql.catalog.ice.warehouse": str(root / "iceberg"),
            },
        )
    )


def _iceberg(where: Path) -> Path:
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ICEBERG}", f"-DoutputDirectory={where}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=jars.TIMEOUT_S)
    if run.returncode != 0:
        raise Invalid(f"Maven could not bring {ICEBERG}:\n{run.stdout[-2000:]}")
    return next(where.glob("*.jar"))


def _timed(work: Callable[[], None]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
