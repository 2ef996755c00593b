"""Records that were lost before they were read: holes between offsets, as quarantine rows of kind `missing`.

A log that was trimmed, or a topic that was compacted, before a job read it does not stop the job, but the loss must be
visible. Holes follow from the offsets alone, so a batch that is read again gives the same rows. A hole at the end of a
topic shows once a record follows it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.history import utc
from loadmanager.history.schemas import QUARANTINE
from loadmanager.history.sources.topics import TOPICS

MISSING = "missing"


def missing(raw: DataFrame, positions: DataFrame) -> DataFrame:
    """One row of QUARANTINE per hole, under its first offset, with the time of the record behind it.

    `raw` is a batch; `positions` (topic, partition, next_offset) says how far each partition was read before it. A
    partition without a row there is new: offsets missing at its beginning are a hole too.
    """
    order = Window.partitionBy("topic", "partition").orderBy("offset")
    rows = raw.select("topic", "partition", "offset", "appended_at")
    follows = rows.withColumn("before", f.lag("offset").over(order))
    firsts = positions.select("topic", "partition", "next_offset")
    wanted = f.coalesce(f.col("before") + 1, f.col("next_offset"), f.lit(0).cast("long"))
    holes = follows.join(f.broadcast(firsts), ["topic", "partition"], "left").withColumn("wanted", wanted)
    return holes.where(f.col("offset") > f.col("wanted")).select(*_row())


def _row() -> list[Column]:
    compacted = [topic.name for topic in TOPICS.values() if topic.compacted]
    why = f.when(f.col("topic").isin(compacted), "replaced by newer ones of their keys").otherwise("trimmed")
    last = (f.col("offset") - 1).cast("string")
    reason = f.concat(f.lit("offsets "), f.col("wanted"), f.lit(" to "), last, f.lit(" were "), why)
    values = {
        "topic": f.col("topic"),
        "partition": f.col("partition"),
        "offset": f.col("wanted"),
        "appended_at": f.col("appended_at"),
        "kind": f.lit(MISSING),
        "reason": f.concat(reason, f.lit(" before they were read")),
        "day": utc.day_of(f.col("appended_at")),
    }
    nothing = f.lit(None)
    return [values.get(field.name, nothing).cast(field.dataType).alias(field.name) for field in QUARANTINE.fields]
