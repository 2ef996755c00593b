"""Sources of the history: topics on Kafka or in the embedded log's file, read as one schema (`schemas.RAW`).

`read` gives what there is now, `stream` also what comes. Both yield records as in the log, by topic without prefix,
partition and offset; `decoding/` decodes them. Records that were trimmed or replaced before they were read don't stop a
job: `missing` makes quarantine rows of them. A topic that does not exist yet is left out and joins when it comes, in a
running stream too.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from loadmanager.broker.wiring import check_servers, file_of
from loadmanager.history.sources.gaps import MISSING, missing
from loadmanager.history.sources.kafka import KafkaSource
from loadmanager.history.sources.sqlite import SqliteSource
from loadmanager.history.sources.topics import TOPICS, Topic
from loadmanager.settings import Settings

__all__ = [
    "MISSING",
    "TOPICS",
    "KafkaSource",
    "Source",
    "SqliteSource",
    "Topic",
    "available",
    "missing",
    "read",
    "source_of",
    "stream",
]

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


def available(source: Source) -> tuple[str, ...]:
    """Those of TOPICS that exist. Raises Invalid where the source does not answer."""
    return source.available(TOPICS)


def read(spark: SparkSession, source: Source, topics: Iterable[str] = TOPICS) -> DataFrame:
    """What the topics hold now, as RAW; of those that do not exist, nothing."""
    return source.read(spark, topics)


def stream(
    spark: SparkSession,
    source: Source,
    topics: Iterable[str] = TOPICS,
    *,
    max_per_trigger: int | None,
    until_now: bool = False,
) -> DataFrame:
    """What the topics hold and will get, as a streaming DataFrame of RAW, from the beginning or from its checkpoint.

    At most `max_per_trigger` offsets per batch; None for no bound. With `until_now`, and the trigger
    `source.until_now`, it ends where the topics ended when it began: `processAllAvailable` returns then, however much
    brokers go on to write.
    """
    return source.stream(spark, topics, max_per_trigger, until_now=until_now)
