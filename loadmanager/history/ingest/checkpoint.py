"""What Spark's checkpoint of the query says: how far Spark has given each partition. It may be lost at any time."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loadmanager.history.ingest.progress import Partition, Reached
from loadmanager.history.sources import TOPICS


def passed(spark: SparkSession, checkpoint: str, at: Reached) -> frozenset[Partition]:
    """The partitions that Spark has given up to the lake's position, `at`, or further; none without a checkpoint.

    Of a batch that was begun and not finished the end counts: the next run begins with it.
    """
    given = _offsets(spark, checkpoint)
    return frozenset(key for key, offset in at.next_offsets.items() if given.get(key, -1) >= offset)


def _offsets(spark: SparkSession, checkpoint: str) -> dict[Partition, int]:
    """The last file of the folder `offsets`: a version, Spark's metadata, and the source's offsets as JSON."""
    try:
        files = spark.read.text(f"{checkpoint}/offsets", wholetext=True)
        found = files.select(f.input_file_name().alias("name"), "value").collect()
    except AnalysisException:
        return {}
    numbered = {int(name): row["value"] for row in found if (name := PurePosixPath(row["name"]).name).isdecimal()}
    if not numbered:
        return {}
    *_, last = numbered[max(numbered)].splitlines()
    offsets = msgspec.json.decode(last, type=dict[str, dict[int, int]])
    names = {full: next((name for name in TOPICS if full.endswith(name)), full) for full in offsets}
    return {(names[full], number): offset for full, each in offsets.items() for number, offset in each.items()}
