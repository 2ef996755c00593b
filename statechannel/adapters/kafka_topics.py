"""Creates topics as this system needs them, and refuses existing ones whose settings would break the protocol.

Never alters or deletes a topic: the message of a refusal holds the command with which an operator can.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import msgspec
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from statechannel.adapters.kafka_clients import ALL_DOWN, LOGGER, MAX_MESSAGE_BYTES, Trouble
from statechannel.errors import LogUnavailable, TopicMismatch
from statechannel.ports import TopicSpec

PRODUCTION_REPLICATION = 3
PRODUCTION_MIN_INSYNC = 2
OPEN_TIMEOUT_S = 15.0
RETRY_PAUSE_S = 0.1
CONNECT_PAUSE_S = 2.0
"""How long the pause between two attempts gets while no server has answered at all."""
TELL_S = 1.0
GRACE_S = 0.5
MOVED = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
UNANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, ALL_DOWN})  # noqa: SLF001 (as in ALL_DOWN)

T = TypeVar("T")


class TopicPolicy(msgspec.Struct, frozen=True):
    """What new topics get. In development one node will do: numbers are lowered to what the cluster has."""

    default_partitions: int
    replication: int
    min_insync: int
    development: bool

    def check(self) -> None:
        """Raises TopicMismatch if topics made by this policy would not be safe in production."""
        unsafe = self.replication < PRODUCTION_REPLICATION or self.min_insync < PRODUCTION_MIN_INSYNC
        if unsafe and not self.development:
            raise TopicMismatch(
                f"topics with replication {self.replication} and min.insync.replicas {self.min_insync} can lose "
                f"acknowledged records: set at least {PRODUCTION_REPLICATION} and {PRODUCTION_MIN_INSYNC}, "
                "or say that this is a development set-up"
            )


class Topics:
    """The administrative side of one Kafka cluster."""

    def __init__(
        self, settings: Mapping[str, Any], bootstrap: str, policy: TopicPolicy, request_timeout_s: float
    ) -> None:
        self._trouble = Trouble()
        watched: dict[str, Any] = {**settings, "error_cb": self._trouble.note}
        self._admin = AdminClient(watched)
        self._bootstrap = bootstrap
        self._policy = policy
        self._timeout_s = request_timeout_s

    async def connect(self, timeout_s: float) -> None:
        """Wait for an answer, and log what keeps it away. Raises LogUnavailable after `timeout_s`."""
        telling = asyncio.create_task(self._tell_trouble(timeout_s))
        try:
            await self._until_answered(self._nodes, timeout_s, CONNECT_PAUSE_S)
        finally:
            telling.cancel()

    async def open(self, topic: str, spec: TopicSpec) -> int:
        """As `Log.open_topic`, with the topic's full name."""
        self._policy.check()
        return await self._until_answered(lambda: self._open(topic, spec), OPEN_TIMEOUT_S)

    async def ends(self, topic: str, partitions: int) -> tuple[int, ...]:
        """The high watermarks. Raises LogUnavailable after the request time-out."""
        return await self._until_answered(lambda: self._ends(topic, partitions), self._timeout_s)

    async def partitions(self, topic: str) -> int:
        """How many partitions an existing topic has. Raises LogUnavailable."""
        try:
            description = await self._describe(topic)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"Kafka at {self._bootstrap}: {topic}: {_text(error)}") from error
        if description is None:
            raise LogUnavailable(f"topic {topic} does not exist on Kafka at {self._bootstrap}; open it first")
        return len(description.partitions)

    async def _tell_trouble(self, timeout_s: float) -> None:
        """Say why there is no answer yet; the logger lets one such line pass in ten seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            await asyncio.sleep(TELL_S)
            left_s = max(0.0, deadline - loop.time())
            why = self._latest_trouble() or "no answer"
            LOGGER.warning("no Kafka at %s yet: %s; trying for %.0f s more", self._bootstrap, why, left_s)

    def _latest_trouble(self) -> str:
        """Why the client has no connection, as it last said; a client tells only when it is polled."""
        self._admin.poll(0)
        return self._trouble.latest

    def _why(self, error: BaseException) -> str:
        silent = isinstance(error, TimeoutError) or (
            isinstance(error, KafkaException) and error.args[0].code() in UNANSWERED
        )
        return (self._latest_trouble() if silent else "") or _text(error)

    async def _until_answered(
        self, ask: Callable[[], Awaitable[T]], timeout_s: float, longest_pause_s: float = RETRY_PAUSE_S
    ) -> T:
        """Repeat what fails for a while: elections, a controller that starts, a topic that spreads."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        pause_s = RETRY_PAUSE_S
        self._latest_trouble()
        self._trouble.latest = ""  # what is over explains nothing
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await ask()
            except (KafkaException, LogUnavailable, TimeoutError) as error:
                if asyncio.get_running_loop().time() + RETRY_PAUSE_S >= deadline:
                    raise LogUnavailable(
                        f"Kafka at {self._bootstrap} is not available after {timeout_s:g} s: {self._why(error)}"
                    ) from error
                LOGGER.debug("Kafka at %s: %s; asking again", self._bootstrap, error)
                left_s = deadline - asyncio.get_running_loop().time()
                await asyncio.sleep(min(pause_s, left_s - RETRY_PAUSE_S / 2))
                pause_s = min(2 * pause_s, longest_pause_s)

    async def _ends(self, topic: str, partitions: int) -> tuple[int, ...]:
        latest = cast(OffsetSpec, OffsetSpec.latest())
        wanted = {TopicPartition(topic, partition): latest for partition in range(partitions)}
        answers = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._timeout_s
        )
        try:
            found = await asyncio.gather(*(self._answer(future) for future in answers.values()))
        except KafkaException as error:
            if error.args[0].code() in MOVED:  # the client keeps asking in the old epoch until told to look again
                await asyncio.to_thread(self._admin.list_topics, topic, timeout=self._timeout_s)
            raise
        by_partition = {where.partition: result.offset for where, result in zip(answers, found, strict=True)}
        if min(by_partition.values()) < 0:  # what the client returns, without any error, when it got no answer
            raise LogUnavailable(f"where {topic} ends was not answered")
        return tuple(by_partition[partition] for partition in range(partitions))

    async def _open(self, topic: str, spec: TopicSpec) -> int:
        description = await self._describe(topic)
        if description is None:
            await self._create(topic, spec)
            raise LogUnavailable(f"topic {topic} was created and is not visible yet")
        if any(cast(object, partition.leader) is None for partition in description.partitions):
            raise LogUnavailable(f"topic {topic} has partitions without a leader")
        settings = await self._settings(topic)
        _Check(self._bootstrap, topic, spec, self._policy).accept(description, settings)
        return len(description.partitions)

    async def _describe(self, topic: str) -> TopicDescription | None:
        answers = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
        try:
            return cast(TopicDescription, await self._answer(answers[topic]))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    async def _settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
        entries = await self._answer(answers[resource])
        return {name: str(entry.value) for name, entry in entries.items()}

    async def _nodes(self) -> int:
        description = await self._answer(self._admin.describe_cluster(request_timeout=self._timeout_s))
        return len(description.nodes)

    async def _create(self, topic: str, spec: TopicSpec) -> None:
        replication, min_insync = self._policy.replication, self._policy.min_insync
        if self._policy.development:
            replication = min(replication, await self._nodes())
            min_insync = min(min_insync, replication)
        new = NewTopic(
            topic,
            num_partitions=spec.partitions or self._policy.default_partitions,
            replication_factor=replication,
            config=_new_settings(spec, min_insync),
        )
        try:
            await self._answer(self._admin.create_topics([new], request_timeout=self._timeout_s)[topic])
        except KafkaException as error:
            match error.args[0].code():
                case KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                case KafkaError.INVALID_REPLICATION_FACTOR:
                    raise TopicMismatch(
                        f"Kafka at {self._bootstrap} cannot hold {topic} with replication {replication}: "
                        f"{_text(error)} Add brokers, or say that this is a development set-up"
                    ) from error
                case _:
                    raise

    async def _answer(self, future: Future[T]) -> T:
        async with asyncio.timeout(self._timeout_s + GRACE_S):
            return await asyncio.wrap_future(future)


class _Check:
    """Judges one existing topic; each refusal says how to mend it."""

    def __init__(self, bootstrap: str, topic: str, spec: TopicSpec, policy: TopicPolicy) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._spec = spec
        self._policy = policy

    def accept(self, description: TopicDescription, settings: Mapping[str, str]) -> None:
        """Raises TopicMismatch."""
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
                f"topic {self._topic} has {found}, with which this system would lose records. Mend it with: "
                f"kafka-configs.sh --bootstrap-server {self._bootstrap} --alter --entity-type topics "
                f"--entity-name {self._topic} --add-config {mend}"
            )

    def _check_partitions(self, found: int) -> None:
        wanted = self._spec.partitions
        if wanted is not None and wanted != found:
            raise TopicMismatch(
                f"topic {self._topic} has {found} partitions, not {wanted}, and their number is fixed at creation: "
                f"set the partitions to {found} or choose another topic prefix; if nothing in the topic is needed: "
                f"kafka-topics.sh --bootstrap-server {self._bootstrap} --delete --topic {self._topic}"
            )

    def _check_replication(self, found: int) -> None:
        if found < PRODUCTION_REPLICATION:
            raise TopicMismatch(
                f"topic {self._topic} has replication {found}, less than {PRODUCTION_REPLICATION}: a failed disk can "
                "lose acknowledged records. Say that this is a development set-up, or add replicas with: "
                f"kafka-reassign-partitions.sh --bootstrap-server {self._bootstrap} --execute "
                "--reassignment-json-file FILE (what is there now: "
                f"kafka-topics.sh --bootstrap-server {self._bootstrap} --describe --topic {self._topic})"
            )


def _required_settings(spec: TopicSpec) -> Mapping[str, str]:
    if spec.compacted:
        return {"cleanup.policy": "compact"}
    return {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def _new_settings(spec: TopicSpec, min_insync: int) -> dict[str, str]:
    settings = {
        **_required_settings(spec),
        "min.insync.replicas": str(min_insync),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_MESSAGE_BYTES + 12),
        # Kafka sets up a segment's whole index file at its first 4 KiB: 40-60 ms of silence with the default of 10 MiB
        "segment.bytes": str(64 << 20),
        "segment.index.bytes": str(128 << 10),
    }
    if spec.compacted:
        # load data is small and rewritten for ever: with the defaults (a week, a gigabyte) it would hardly be compacted
        settings |= {"segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.2"}
    return settings


def _bracketed(value: str) -> str:
    return f"[{value}]" if "," in value else value


def _text(error: BaseException) -> str:
    if isinstance(error, KafkaException):
        cause: KafkaError = error.args[0]
        return cause.str()
    return str(error) or "no answer in time"
