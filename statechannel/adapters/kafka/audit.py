"""Reads the facts about an existing Kafka, for `loadmanager check`. Changes nothing; `judgement.py` judges them."""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import Admin, is_forbidden, text_of
from statechannel.adapters.kafka.clients import admin_settings, check_client_settings, connection_settings
from statechannel.adapters.kafka.judgement import ClusterFacts, Judge, Settings, TopicFacts
from statechannel.adapters.kafka.topics import TopicPolicy
from statechannel.audit import Finding, Severity
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import TopicSpec

COORDINATORS_TOPIC = "__transaction_state"
CONNECT_TIMEOUT_S = 10.0


async def audit_kafka(
    bootstrap: str,
    topics: Sequence[TopicSpec],
    *,
    topic_prefix: str = "loadmanager.",
    default_partitions: int = 16,
    replication: int = 3,
    min_insync: int = 2,
    development: bool = False,
    compaction_lag_s: float = 86_400.0,
    client_settings: Mapping[str, str] | None = None,
    request_timeout_s: float = 5.0,
) -> list[Finding]:
    """Findings about a cluster and these topics, which need not exist. The settings are those of `KafkaLog`.

    A cluster that cannot be reached is a finding too. Raises LogError for client settings that Kafka's client refuses.
    """
    check_client_settings(client_settings or {})
    connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
    try:
        admin = Admin(admin_settings(connection), bootstrap, request_timeout_s)
    except KafkaException as error:
        raise LogError(f"Kafka's client refuses its settings: {text_of(error)}; correct client_settings") from error
    policy = TopicPolicy(default_partitions, replication, min_insync, development, compaction_lag_s=compaction_lag_s)
    judge = Judge(bootstrap, policy)
    try:
        await admin.connect(CONNECT_TIMEOUT_S)
        return await _Audit(admin, judge, topic_prefix).findings(topics)
    except (LogUnavailable, KafkaException, TimeoutError) as error:
        advice = "check that Kafka runs, is reachable from here and accepts these credentials; then run the check again"
        return [Finding("kafka: cluster", Severity.ERROR, text_of(error), advice)]
    finally:
        await asyncio.to_thread(admin.close)


class _Audit:
    """Asks for the facts, and passes them to the judge."""

    def __init__(self, admin: Admin, judge: Judge, topic_prefix: str) -> None:
        self._admin = admin
        self._judge = judge
        self._prefix = topic_prefix

    async def findings(self, topics: Sequence[TopicSpec]) -> list[Finding]:
        cluster, there = await asyncio.gather(self._cluster(), asyncio.gather(*map(self._topic, topics)))
        found = [*self._judge.cluster(cluster)]
        for judged, _ in there:
            found += judged
        return [*found, *self._judge.pairs([facts for _, facts in there if facts is not None])]

    async def _cluster(self) -> ClusterFacts:
        description = await self._admin.cluster()
        numbers = sorted(node.id for node in description.nodes)
        settings = await asyncio.gather(*(self._settings(ResourceType.BROKER, str(number)) for number in numbers))
        replication = await self._coordinators_replication()
        return ClusterFacts(str(description.cluster_id), dict(zip(numbers, settings, strict=True)), replication)

    async def _topic(self, spec: TopicSpec) -> tuple[list[Finding], TopicFacts | None]:
        name = self._prefix + spec.name
        try:
            description = await self._admin.describe(name)
        except KafkaException as error:
            if is_forbidden(error):
                return [self._judge.hidden(name)], None
            raise
        if description is None:
            return [self._judge.missing(name, spec)], None
        partitions = description.partitions
        facts = TopicFacts(
            name=name,
            spec=spec,
            replicas=tuple(len(partition.replicas) for partition in partitions),
            in_sync=tuple(len(partition.isr) for partition in partitions),
            leaderless=tuple(p.id for p in partitions if cast(object, p.leader) is None),
            settings=await self._settings(ResourceType.TOPIC, name),
        )
        return [*self._judge.topic(facts)], facts

    async def _coordinators_replication(self) -> int | None:
        """The replication of the transaction coordinator's topic; None if it does not exist or we may not see it."""
        try:
            description = await self._admin.describe(COORDINATORS_TOPIC)
        except KafkaException as error:
            if is_forbidden(error):
                return None
            raise
        return None if description is None else min(len(partition.replicas) for partition in description.partitions)

    async def _settings(self, kind: ResourceType, name: str) -> Settings | None:
        """The settings, None if we may not see them."""
        try:
            return await self._admin.settings(kind, name)
        except KafkaException as error:
            if is_forbidden(error):
                return None
            raise
