"""Sources of the history: topics on Kafka or in the embedded log's file, read as one schema (`schemas.RAW`).

`Source.read` gives what there is now, `stream` also what comes. Both yield records as in the log, by topic without
prefix, partition and offset; `ingest/records.py` decodes them. A topic that does not exist yet is left out and joins
when it comes, in a running stream too.

Records that were trimmed or replaced before they were read don't stop a job, but the loss must be visible: `missing`
makes quarantine rows of the holes between offsets. Holes follow from the offsets alone, so a batch that is read again
gives the same rows. A hole at the end of a topic shows once a record follows it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.broker.wiring import check_servers, file_of
from loadmanager.cluster.audit_log import AUDIT_TOPIC
from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG_TOPIC
from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import utc
from loadmanager.history.schemas import QUARANTINE
from loadmanager.history.sources.kafka import KafkaSource
from loadmanager.history.sources.sqlite import SqliteSource
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from loadmanager.settings import Settings


class Topic(msgspec.Struct, frozen=True):
    """A topic, and the tables that its records go to.

    A `compacted` topic keeps replaced records for a day (`min.compaction.lag.ms`); a later reader finds only the newest
    value of each key. Other topics keep everything until it is trimmed by age.
    """

    name: str
    tables: tuple[str, ...]
    compacted: bool = False


TOPICS: Mapping[str, Topic] = {
    topic.name: topic
    for topic in (
        Topic(BROKERS_TOPIC, ("broker_load",), compacted=True),
        Topic(BUNDLES_TOPIC, ("bundle_load", "bundle_total"), compacted=True),
        Topic(CHANNEL_TOPIC, ("channel", "transition")),
        Topic(DECISIONS_TOPIC, ("decision", "move")),
        Topic(AUDIT_TOPIC, ("audit",)),
        Topic(GROUP_LAG_TOPIC, ("group_lag",), compacted=True),
    )
}
"""By name. `group-lag` exists once a broker coordinates a group: it is left out, and joins when it exists."""


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
    return holes.where(f.col("offset") > f.col("wanted")).select(*_quarantine_row())


def _quarantine_row() -> list[Column]:
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


Source = KafkaSource | SqliteSource


def source_of(settings: Settings) -> Source:
    """The source for the log of brokers with these settings. Raises ValueError for an invalid address."""
    scheme, _, rest = settings.log.partition(":")
    if scheme == "sqlite":
        return SqliteSource(file_of(settings.log))
    if scheme == "kafka":
        servers = check_servers(settings.log, rest.removeprefix("//"))
        return KafkaSource(servers, settings.topic_prefix, dict(settings.kafka))
    raise ValueError(f"{settings.log!r} is not a log; write sqlite:FILE or kafka://host:port")
