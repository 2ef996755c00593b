"""Creates topics as this system needs them, and refuses existing ones whose settings would break the protocol.

A topic of many partitions is created with the first of them, and grows while it has no records. Otherwise it never
alters or deletes a topic: the message of a refusal has the command for the operator.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewPartitions, NewTopic, ResourceType, TopicDescription

from statechannel.adapters.kafka.admin import Admin, text_of
from statechannel.adapters.kafka.clients import MAX_MESSAGE_BYTES
from statechannel.adapters.kafka.offsets import Offsets
from statechannel.errors import LogUnavailable, TopicMismatch
from statechannel.ports import TopicSpec

PRODUCTION_REPLICATION = 3
PRODUCTION_MIN_INSYNC = 2
OPEN_TIMEOUT_S = 15.0
"""For each request that its partitions take."""

PARTITIONS_A_REQUEST = 5_000
"""Kafka writes at most 10,000 records of metadata for one request: one for a partition, and a few for the topic."""


class TopicPolicy(msgspec.Struct, frozen=True):
    """The settings of new topics. In development one node suffices: numbers are lowered to what the cluster has.

    Compacted topics keep tombstones for `tombstone_s`, and followed ones also replaced entries for `compaction_lag_s`.
    """

    default_partitions: int
    replication: int
    min_insync: int
    development: bool
    tombstone_s: float = 86_400.0
    compaction_lag_s: float = 86_400.0

    def check(self) -> None:
        """Raises TopicMismatch if topics made by this policy would not be safe in production."""
        unsafe = self.replication < PRODUCTION_REPLICATION or self.min_insync < PRODUCTION_MIN_INSYNC
        if unsafe and not self.development:
            raise TopicMismatch(
                f"topics with replication {self.replication} and min.insync.replicas {self.min_insync} can lose "
                f"acknowledged records: set at least {PRODUCTION_REPLICATION} and {PRODUCTION_MIN_INSYNC}, "
                "or set development=true"
            )


class Topics:
    """Creates and checks the topics of one Kafka cluster."""

    def __init__(self, admin: Admin, policy: TopicPolicy, offsets: Offsets) -> None:
        self._admin = admin
        self._policy = policy
        self._offsets = offsets

    async def open(self, topic: str, spec: TopicSpec) -> int:
        """As `Log.open_topic`, with the topic's full name."""
        self._policy.check()
        requests = -(-self._wanted(spec) // PARTITIONS_A_REQUEST)
        return await self._admin.until_answered(lambda: self._open(topic, spec), OPEN_TIMEOUT_S * requests)

    async def exists(self, topic: str) -> bool:
        """As `Log.has_topic`, with the topic's full name."""
        return await self._admin.until_answered(lambda: self._admin.describe(topic), OPEN_TIMEOUT_S) is not None

    async def _open(self, topic: str, spec: TopicSpec) -> int:
        description = await self._admin.describe(topic)
        if description is None:
            await self._create(topic, spec)
            raise LogUnavailable(f"topic {topic} was created and is not visible yet")
        if any(cast(object, partition.leader) is None for partition in description.partitions):
            raise LogUnavailable(f"topic {topic} has partitions without a leader")
        if await self._is_unfinished(topic, len(description.partitions), self._wanted(spec)):
            await self._grow(topic, len(description.partitions), self._wanted(spec))
            raise LogUnavailable(f"topic {topic} does not have all of its partitions yet")
        settings = await self._admin.settings(ResourceType.TOPIC, topic)
        _Check(self._admin.bootstrap, topic, spec, self._policy).accept(description, settings)
        return len(description.partitions)

    async def _create(self, topic: str, spec: TopicSpec) -> None:
        replication, min_insync = self._policy.replication, self._policy.min_insync
        if self._policy.development:
            replication = min(replication, len((await self._admin.cluster()).nodes))
            min_insync = min(min_insync, replication)
        new = NewTopic(
            topic,
            num_partitions=min(self._wanted(spec), PARTITIONS_A_REQUEST),
            replication_factor=replication,
            config=_new_settings(spec, min_insync, self._policy),
        )
        with self._admin.lent() as client:
            answers = client.create_topics([new], request_timeout=self._admin.timeout_s)
        try:
            await self._admin.answer(answers[topic])
        except KafkaException as error:
            match error.args[0].code():
                case KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                case KafkaError.INVALID_REPLICATION_FACTOR:
                    raise TopicMismatch(
                        f"Kafka at {self._admin.bootstrap} cannot hold {topic} with replication {replication}: "
                        f"{text_of(error)} Add brokers, or set development=true"
                    ) from error
                case KafkaError.POLICY_VIOLATION:
                    raise TopicMismatch(
                        f"Kafka at {self._admin.bootstrap} refuses to create {topic}: {text_of(error)}"
                    ) from error
                case _:
                    raise

    def _wanted(self, spec: TopicSpec) -> int:
        return spec.partitions or self._policy.default_partitions

    async def _is_unfinished(self, topic: str, found: int, wanted: int) -> bool:
        """Whether the topic is being created: no client writes to it before it has all partitions."""
        begun = found < wanted and found % PARTITIONS_A_REQUEST == 0
        return begun and await self._offsets.are_none(topic, found)

    async def _grow(self, topic: str, found: int, wanted: int) -> None:
        new = NewPartitions(topic, min(wanted, found + PARTITIONS_A_REQUEST))
        with self._admin.lent() as client:
            answers = client.create_partitions([new], request_timeout=self._admin.timeout_s)
        try:
            await self._admin.answer(answers[topic])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_PARTITIONS:  # else another broker was faster
                raise


class _Check:
    """Judges one existing topic; each refusal says how to correct it."""

    def __init__(self, bootstrap: str, topic: str, spec: TopicSpec, policy: TopicPolicy) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._spec = spec
        self._policy = policy

    def accept(self, description: TopicDescription, settings: Mapping[str, str]) -> None:
        """Raises TopicMismatch unless the topic is safe to use."""
        self._check_settings(settings)
        self._check_partitions(len(description.partitions))
        if not self._policy.development:
            self._check_replication(min(len(partition.replicas) for partition in description.partitions))

    def _check_settings(self, settings: Mapping[str, str]) -> None:
        wanted = dict(_required_settings(self._spec))
        if not self._policy.development:
            wanted["unclean.leader.election.enable"] = "false"
        wrong = {name: value for name, value in wanted.items() if settings.get(name) != value}
        if int(settings.get("max.message.bytes", "0")) < MAX_MESSAGE_BYTES:
            wrong["max.message.bytes"] = str(MAX_MESSAGE_BYTES + 12)
        if not self._policy.development and int(settings["min.insync.replicas"]) < PRODUCTION_MIN_INSYNC:
            wrong["min.insync.replicas"] = str(max(self._policy.min_insync, PRODUCTION_MIN_INSYNC))
        if wrong:
            found = ", ".join(f"{name}={settings.get(name)}" for name in wrong)
            mend = ",".join(f"{name}={_bracketed(value)}" for name, value in wrong.items())
            raise TopicMismatch(
                f"topic {self._topic} has {found}, so records could be lost. Correct it with: "
                f"kafka-configs.sh --bootstrap-server {self._bootstrap} --alter --entity-type topics "
                f"--entity-name {self._topic} --add-config {mend}"
            )

    def _check_partitions(self, found: int) -> None:
        wanted = self._spec.partitions
        if wanted is not None and wanted != found:
            raise TopicMismatch(
                f"topic {self._topic} has {found} partitions, not {wanted}, and their number is fixed at creation: "
                f"set the partitions to {found} or choose another topic prefix; if you need nothing in the topic, "
                f"delete it: kafka-topics.sh --bootstrap-server {self._bootstrap} --delete --topic {self._topic}"
            )

    def _check_replication(self, found: int) -> None:
        if found < PRODUCTION_REPLICATION:
            raise TopicMismatch(
                f"topic {self._topic} has replication {found}, less than {PRODUCTION_REPLICATION}: a failed disk can "
                "lose acknowledged records. Set development=true, or add replicas with: "
                f"kafka-reassign-partitions.sh --bootstrap-server {self._bootstrap} --execute "
                "--reassignment-json-file FILE (to see the present replicas: "
                f"kafka-topics.sh --bootstrap-server {self._bootstrap} --describe --topic {self._topic})"
            )


def _required_settings(spec: TopicSpec) -> Mapping[str, str]:
    if spec.compacted:
        return {"cleanup.policy": "compact"}
    return {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def _new_settings(spec: TopicSpec, min_insync: int, policy: TopicPolicy) -> dict[str, str]:
    settings = {
        **_required_settings(spec),
        "min.insync.replicas": str(min_insync),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_MESSAGE_BYTES + 12),
        # Kafka allocates a segment's whole index file at its first 4 KiB: with the default of 10 MiB it stalls 40-60 ms
        "segment.bytes": str(64 << 20),
        "segment.index.bytes": str(128 << 10),
    }
    if spec.compacted:
        # load data is small and always rewritten: with the defaults (a week, a gigabyte) it would hardly be compacted
        settings |= {"segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
        settings["delete.retention.ms"] = str(round(policy.tombstone_s * 1000))
    if spec.compacted and spec.followed:
        settings["min.compaction.lag.ms"] = str(round(policy.compaction_lag_s * 1000))
    return settings


def _bracketed(value: str) -> str:
    return f"[{value}]" if "," in value else value
