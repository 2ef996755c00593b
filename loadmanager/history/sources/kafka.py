"""Topics on Kafka, with Spark's own Kafka source. Topics are named by a pattern, so that later ones join by themselves.

Lost records (trimmed, or a topic that was made anew) stop nothing: Spark goes on behind them (`failOnDataLoss` off),
and `gaps.missing` reports from the offsets which records never came. It reports offsets that compaction left out in the
same way. Records of aborted transactions are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.schemas import RAW
from loadmanager.history.sources.kafka_settings import java_settings, librdkafka_settings

RECORDS_PER_TASK = 100_000
LONGEST_TOPIC_NAME = 249
ANSWER_TIMEOUT_S = 30.0


class KafkaSource(msgspec.Struct, frozen=True):
    """The topics behind `prefix` on the cluster at `bootstrap` (`host:port[,host:port…]`).

    `options` are as the brokers' setting `kafka` (librdkafka's names: security.protocol, sasl.…, ssl.…); names that
    begin with `kafka.` are the Java client's, are given to Spark as they are, and go over the others.
    """

    bootstrap: str
    prefix: str = "loadmanager."
    options: Mapping[str, str] = {}

    @property
    def until_now(self) -> Mapping[str, Any]:
        """The trigger of a query that `processAllAvailable` drains."""
        return {"availableNow": True}

    def available(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that are topics now. Raises Invalid where Kafka does not answer."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": self.bootstrap, "log_level": 2}
        settings |= librdkafka_settings(self.options)
        try:
            there = AdminClient(settings).list_topics(timeout=ANSWER_TIMEOUT_S).topics
        except KafkaException as error:
            why = error.args[0].str()
            raise Invalid(f"no answer from Kafka at {self.bootstrap}: {why}; correct the address or `kafka`") from error
        return tuple(name for name in names if self.prefix + name in there)

    def read(self, spark: SparkSession, names: Iterable[str]) -> DataFrame:
        """All that those topics hold now, as RAW."""
        return self._rows(spark.read.format("kafka").options(**self._spark_options(names)).load())

    def stream(
        self,
        spark: SparkSession,
        names: Iterable[str],
        max_per_trigger: int | None,
        *,
        until_now: bool = False,  # noqa: ARG002 - Spark's own source keeps to it by the trigger
    ) -> DataFrame:
        """All that those topics hold and will get, as a stream of RAW; at most `max_per_trigger` offsets at once."""
        bound = {} if max_per_trigger is None else {"maxOffsetsPerTrigger": str(max_per_trigger)}
        return self._rows(spark.readStream.format("kafka").options(**self._spark_options(names), **bound).load())

    def _spark_options(self, names: Iterable[str]) -> dict[str, str]:
        return {
            "maxRecordsPerPartition": str(RECORDS_PER_TASK),
            **java_settings(self.options),
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.isolation.level": "read_committed",
            "subscribePattern": "|".join(re.escape(self.prefix + name) for name in names),
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }

    def _rows(self, records: DataFrame) -> DataFrame:
        name = f.substring("topic", len(self.prefix) + 1, LONGEST_TOPIC_NAME).alias("topic")
        rows = records.withColumnRenamed("timestamp", "appended_at")
        return rows.select(name, *(f.col(column) for column in RAW.names if column != "topic"))
