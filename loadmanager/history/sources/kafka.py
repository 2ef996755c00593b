"""Topics on Kafka, with Spark's own Kafka source. Topics are named by a pattern, so that later ones join by themselves.

Lost records (trimmed, or of a recreated topic) stop nothing. Spark continues after them (`failOnDataLoss` off), and
`missing` finds by the offsets which records never came. It reports offsets that compaction left out in the same
way. Records of aborted transactions are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import Invalid, Unavailable
from loadmanager.history.schemas import RAW

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from statechannel.adapters.kafka.ownership import Owned


RECORDS_PER_TASK = 25_000
"""Reports of ten bundles each take longest, and come from one partition: with more of them in a task the others wait.
"""
LONGEST_TOPIC_NAME = 249
ANSWER_TIMEOUT_S = 30.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What Kafka before 2.8 says: 16 zeros in base 64."""


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

        try:
            with self._admin().lent() as client:
                there = client.list_topics(timeout=ANSWER_TIMEOUT_S).topics
        except KafkaException as error:
            why = error.args[0].str()
            raise Invalid(f"no answer from Kafka at {self.bootstrap}: {why}; correct the address or `kafka`") from error
        return tuple(name for name in names if self.prefix + name in there)

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of those of `names` that are topics now; one that was created again has another id.

        Kafka before 2.8 has none. Raises Unavailable where Kafka does not answer.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        wanted = {self.prefix + name: name for name in names}
        absent = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        ids: dict[str, str] = {}
        with self._admin().lent() as client:
            described = client.describe_topics(TopicCollection(list(wanted)), request_timeout=ANSWER_TIMEOUT_S)
        for topic, answer in described.items():
            try:
                found = str(answer.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() in absent:
                    continue
                why = error.args[0].str()
                where = f"Kafka at {self.bootstrap}"
                raise Unavailable(f"no answer about {topic} from {where}: {why}; start the job again") from error
            if found != _NO_ID:
                ids[wanted[topic]] = found
        return ids

    def file_id(self) -> tuple[int, int] | None:
        """None, because there is no file."""
        return None

    def left(self, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, int]]:  # noqa: ARG002
        """Nothing: topics on Kafka have ids."""
        return {}

    def _admin(self) -> Owned[AdminClient]:
        return _admin_client(self.bootstrap, tuple(sorted(librdkafka_settings(self.options).items())))

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


@lru_cache(maxsize=4)
def _admin_client(bootstrap: str, settings: tuple[tuple[str, str], ...]) -> Owned[AdminClient]:
    """One for all checks of a run: to connect takes longer than to ask."""
    from statechannel.adapters.kafka.ownership import own_admin

    return own_admin({"bootstrap.servers": bootstrap, "log_level": 2, **dict(settings)})


JAVA = "kafka."
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_STORES = {
    "ssl.ca": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key": ("ssl.keystore.type", "ssl.keystore.key"),
}
"""Each is given as `….location`, a file, or `….pem`, its content. Spark gets the content: executors lack the file."""
_NAMES = {"security.protocol": "security.protocol", "ssl.key.password": "ssl.key.password", "client.id": "client.id"}
_MECHANISM, _MECHANISMS = "sasl.mechanism", "sasl.mechanisms"
_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
_SECURITY = ("sasl.", "ssl.", "security.", "enable.ssl", "enable.sasl", "oauthbearer")


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that are librdkafka's own."""
    return {name: value for name, value in settings.items() if not name.startswith(JAVA)}


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The Java client's, each with `kafka.` before it. Raises Invalid for what has no counterpart there."""
    given = {name: value for name, value in settings.items() if name.startswith(JAVA)}
    ours = librdkafka_settings(settings)
    found: dict[str, str] = {}
    for name, value in ours.items():
        found |= _translated(name, value)
    if _MECHANISM in found and f"{JAVA}sasl.jaas.config" not in given:
        found["sasl.jaas.config"] = _login(found[_MECHANISM], ours)
    return {JAVA + name: value for name, value in found.items()} | given


def _translated(name: str, value: str) -> dict[str, str]:
    store, _, kind = name.rpartition(".")
    if name in _NAMES:
        return {_NAMES[name]: value.upper() if name == "security.protocol" else value}
    if name in (_MECHANISM, _MECHANISMS):
        return {_MECHANISM: value}
    if name == _IDENTIFICATION:
        return {name: "" if value == "none" else value}
    if store in _STORES and kind in ("location", "pem"):
        type_name, content_name = _STORES[store]
        return {type_name: "PEM", content_name: _content(value) if kind == "location" else value}
    if name.startswith(_SECURITY) and name not in ("sasl.username", "sasl.password"):
        instead = f"give the Java client's own setting as well, as `{JAVA}…`"
        raise Invalid(f"librdkafka's setting {name} has no counterpart in Spark's Kafka client: {instead}")
    return {}


def _login(mechanism: str, settings: Mapping[str, str]) -> str:
    if mechanism not in _LOGIN_MODULES:
        raise Invalid(
            f"Spark's Kafka client needs a Java setting to log in by {mechanism}: give {JAVA}sasl.jaas.config too"
        )
    user, password = (_quoted(settings.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"the setting `kafka` names a file that cannot be read: {error}") from error
