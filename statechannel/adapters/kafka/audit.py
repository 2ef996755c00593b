"""Reads the facts about an existing Kafka, for `loadmanager check`, and makes findings of them. Changes nothing.

In development a topic may have one replica and lose what its disk loses. All else is judged as in production. Judging
the facts is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import RIGHTS, Admin, is_forbidden, text_of
from statechannel.adapters.kafka.clients import (
    MAX_MESSAGE_BYTES,
    TRANSACTION_TIMEOUT_S,
    admin_settings,
    check_client_settings,
    connection_settings,
)
from statechannel.adapters.kafka.topics import PRODUCTION_MIN_INSYNC, PRODUCTION_REPLICATION, TopicPolicy
from statechannel.audit import Finding, Severity
from statechannel.errors import LogError, LogUnavailable
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.ports import TopicSpec

OLDEST = (3, 0)
VERSION_SETTING = "inter.broker.protocol.version"
"""Brokers had this setting until 4.0; no other setting tells clients Kafka's version."""
LONGEST_LAG_MS = 24 * 3600 * 1000
SHORTEST_TOMBSTONE_MS = 3600 * 1000

Settings = Mapping[str, str]


class ClusterFacts(msgspec.Struct, frozen=True):
    """A cluster as found; settings are None where we may not see them."""

    cluster_id: str
    settings: Mapping[int, Settings | None]
    """The settings of each broker, by its number."""
    transactions_replication: int | None
    """The replication of the transaction coordinator's topic; None if there is none yet, or it is hidden."""


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic as found, under its full name."""

    name: str
    spec: TopicSpec
    replicas: tuple[int, ...]
    """The number of replicas of each partition."""
    in_sync: tuple[int, ...]
    leaderless: tuple[int, ...]
    """The partitions that have no leader."""
    settings: Settings | None


class Judge:
    """Judges by the policy that topics are created with. `bootstrap` is the address in the operator's commands."""

    def __init__(self, bootstrap: str, policy: TopicPolicy) -> None:
        self._bootstrap = bootstrap
        self._policy = policy

    # --- the cluster
    def cluster(self, facts: ClusterFacts) -> Iterator[Finding]:
        """Findings about the brokers."""
        subject, count = "kafka: cluster", len(facts.settings)
        named = f"cluster {facts.cluster_id} at {self._bootstrap}, {count} broker{'s' * (count != 1)}"
        if count < self._policy.replication and not self._policy.development:
            advice = f"topics need replication {self._policy.replication}: add brokers, or give --development"
            yield Finding(subject, Severity.ERROR, named, advice)
        elif count < PRODUCTION_REPLICATION:
            advice = "run at least 3 in production, so that one may fail"
            yield Finding(subject, Severity.WARNING, named, advice)
        else:
            yield Finding(subject, Severity.OK, named)
        seen = {number: settings for number, settings in facts.settings.items() if settings is not None}
        if len(seen) < count:
            advice = "allow this user DescribeConfigs on the cluster, then the check reads them"
            hidden = _listed(number for number in facts.settings if number not in seen)
            text = f"this user cannot read the settings of broker {hidden}"
            yield Finding("kafka: brokers", Severity.WARNING, text, advice)
        if seen:
            yield from _version(seen)
            yield from _creation(seen)
            yield from self._transactions(seen, facts)
            yield from _cleaner(seen)

    def _transactions(self, seen: Mapping[int, Settings], facts: ClusterFacts) -> Iterator[Finding]:
        subject, brokers = "kafka: transactions", len(facts.settings)
        needed_ms = TRANSACTION_TIMEOUT_S * 1000
        short = [
            number for number, settings in seen.items() if _int(settings, "transaction.max.timeout.ms") < needed_ms
        ]
        if short:
            advice = (
                f"set transaction.max.timeout.ms to at least {needed_ms} there: snapshots are written in transactions"
            )
            found = f"transaction.max.timeout.ms is less than {needed_ms} on broker {_listed(short)}"
            yield Finding(subject, Severity.ERROR, found, advice)
        replication = facts.transactions_replication
        if replication is None:
            replication = max(_int(settings, "transaction.state.log.replication.factor") for settings in seen.values())
            if replication > brokers:
                advice = f"set it to at most {brokers}, or add brokers: until then no snapshot is written"
                found = f"transaction.state.log.replication.factor={replication} with {brokers} brokers"
                yield Finding(subject, Severity.ERROR, found, advice)
                return
        found = f"the transaction coordinator's topic has replication {replication}"
        if replication < PRODUCTION_REPLICATION and not self._policy.development:
            advice = "raise it to 3 (kafka-reassign-partitions.sh, topic __transaction_state): otherwise one "
            yield Finding(subject, Severity.WARNING, found, advice + "failed broker stops all snapshots")
        elif not short:
            yield Finding(subject, Severity.OK, found)

    # --- topics
    def missing(self, name: str, spec: TopicSpec) -> Finding:
        """The finding for a topic that does not exist yet."""
        count = spec.partitions or self._policy.default_partitions
        return Finding(
            f"kafka: topic {name}",
            Severity.OK,
            f"it does not exist yet; the first broker creates it with {count} partitions",
        )

    def hidden(self, name: str) -> Finding:
        """The finding for a topic that this user may not see."""
        return Finding(f"kafka: topic {name}", Severity.ERROR, "this user may not see it", RIGHTS)

    def topic(self, facts: TopicFacts) -> Iterator[Finding]:
        """Findings about one topic: what is wrong, or one that nothing is."""
        wrong = [*self._spread(facts), *(self._settings(facts, facts.settings) if facts.settings is not None else ())]
        if facts.settings is None:
            advice = "allow this user DescribeConfigs on the topic: a broker does not start without this right"
            text = "this user cannot read its settings"
            wrong.append(Finding(f"kafka: topic {facts.name}", Severity.ERROR, text, advice))
        if not wrong:
            found = f"{len(facts.replicas)} partitions, replication {min(facts.replicas)}"
            if facts.settings is not None:
                policy, insync = facts.settings["cleanup.policy"], facts.settings["min.insync.replicas"]
                found += f", cleanup.policy={policy}, min.insync.replicas={insync}"
            wrong.append(Finding(f"kafka: topic {facts.name}", Severity.OK, found))
        yield from wrong

    def pairs(self, topics: Sequence[TopicFacts]) -> Iterator[Finding]:
        """Findings about snapshot topics: each needs as many partitions as its topic."""
        counts = {facts.spec.name: (facts.name, len(facts.replicas)) for facts in topics}
        for name, (full, count) in counts.items():
            other, found = counts.get(name + SNAPSHOTS, (full, count))
            if found != count:
                text = f"{found} partitions, {full} has {count}"
                advice = (
                    f"delete {other}, a broker creates it again: kafka-topics.sh --bootstrap-server {self._bootstrap} "
                )
                advice += f"--delete --topic {other} (but if {full} was trimmed, restore {other} from a backup)"
                yield Finding(f"kafka: topic {other}", Severity.ERROR, text, advice)

    def _spread(self, facts: TopicFacts) -> Iterator[Finding]:
        subject, production = f"kafka: topic {facts.name}", not self._policy.development
        wanted, found = facts.spec.partitions, len(facts.replicas)
        if wanted is not None and wanted != found:
            advice = f"set the partitions to {found}, or choose another topic prefix: their number is fixed at creation"
            yield Finding(subject, Severity.ERROR, f"{found} partitions, not {wanted}", advice)
        if production and min(facts.replicas) < PRODUCTION_REPLICATION:
            advice = f"add replicas with kafka-reassign-partitions.sh --bootstrap-server {self._bootstrap}; "
            advice += "a broker does not start with fewer than 3, except with --development"
            yield Finding(subject, Severity.ERROR, f"replication {min(facts.replicas)}", advice)
        if facts.leaderless:
            text = f"partition {_listed(facts.leaderless)} has no leader"
            yield Finding(subject, Severity.ERROR, text, "start the brokers that hold it")
        behind = [n for n, (held, live) in enumerate(zip(facts.replicas, facts.in_sync, strict=True)) if live < held]
        if behind:
            least = 1 if facts.settings is None else _int(facts.settings, "min.insync.replicas")
            stopped = [number for number in behind if facts.in_sync[number] < least]
            text = f"replicas of partition {_listed(stopped or behind)} are not in sync"
            text += "; it takes no writes" if stopped else ""
            advice = "find the broker that is down or slow: kafka-topics.sh --describe --under-replicated-partitions"
            yield Finding(subject, Severity.ERROR if stopped else Severity.WARNING, text, advice)

    def _settings(self, facts: TopicFacts, settings: Settings) -> Iterator[Finding]:
        judged = [*self._keeping(facts.spec, settings), *self._safety(settings, min(facts.replicas))]
        for severity, name, wanted, why in judged:
            advice = (
                f"{why}: kafka-configs.sh --bootstrap-server {self._bootstrap} --alter --entity-type topics "
                f"--entity-name {facts.name} --add-config {name}={wanted}"
            )
            yield Finding(f"kafka: topic {facts.name}", severity, f"{name}={settings.get(name)}", advice)

    def _keeping(self, spec: TopicSpec, settings: Settings) -> Iterator[tuple[Severity, str, str, str]]:
        """For each wrong setting: severity, name, right value, and why."""
        policy = "compact" if spec.compacted else "delete"
        if settings["cleanup.policy"] != policy:
            why = "under another policy old keys vanish" if spec.compacted else "compaction drops records that decide"
            yield Severity.ERROR, "cleanup.policy", policy, why
        if not spec.compacted:
            for name in ("retention.ms", "retention.bytes"):
                if settings[name] != "-1":
                    yield Severity.ERROR, name, "-1", "Kafka must delete nothing by itself, we trim behind snapshots"
            if settings["message.timestamp.type"] != "LogAppendTime":
                why = "otherwise the history shows the times of the writers' clocks"
                yield Severity.WARNING, "message.timestamp.type", "LogAppendTime", why
        if _int(settings, "max.message.bytes") < MAX_MESSAGE_BYTES:
            yield Severity.ERROR, "max.message.bytes", str(MAX_MESSAGE_BYTES + 12), "Kafka refuses our largest records"
        if spec.compacted:
            yield from self._lag(spec, _int(settings, "min.compaction.lag.ms"))
        if spec.compacted and _int(settings, "delete.retention.ms") < SHORTEST_TOMBSTONE_MS:
            why = "a reader that is slower than this never sees that a key was deleted"
            yield Severity.WARNING, "delete.retention.ms", "86400000", why

    def _lag(self, spec: TopicSpec, found_ms: int) -> Iterator[tuple[Severity, str, str, str]]:
        wanted_ms = round(self._policy.compaction_lag_s * 1000) if spec.followed else 0
        if found_ms < wanted_ms:
            why = "a job of the load history that is behind, though by less than that, misses replaced records"
            yield Severity.WARNING, "min.compaction.lag.ms", str(wanted_ms), why
        elif found_ms > max(wanted_ms, LONGEST_LAG_MS):
            why = "records that were replaced within that time take space, and every start reads them"
            yield Severity.WARNING, "min.compaction.lag.ms", str(wanted_ms), why

    def _safety(self, settings: Settings, replication: int) -> Iterator[tuple[Severity, str, str, str]]:
        insync, production = _int(settings, "min.insync.replicas"), not self._policy.development
        if production and insync < PRODUCTION_MIN_INSYNC:
            wanted = str(max(self._policy.min_insync, PRODUCTION_MIN_INSYNC))
            yield Severity.ERROR, "min.insync.replicas", wanted, "one failed disk can lose acknowledged records"
        elif insync > replication:
            yield Severity.ERROR, "min.insync.replicas", str(max(1, replication - 1)), "no write can succeed"
        elif production and insync >= replication:
            why = "one broker that is down, even for an upgrade, stops all writes"
            yield Severity.WARNING, "min.insync.replicas", str(replication - 1), why
        if settings["unclean.leader.election.enable"] != "false":
            severity = Severity.ERROR if production else Severity.WARNING
            yield severity, "unclean.leader.election.enable", "false", "a replica that lags may lead, and lose records"


def _version(seen: Mapping[int, Settings]) -> Iterator[Finding]:
    told = sorted({settings.get(VERSION_SETTING, "") for settings in seen.values()})
    if told == [""]:
        yield Finding("kafka: version", Severity.OK, "4.0 or newer")
        return
    oldest = next(version for version in told if version)
    known = tuple(int(part) for part in oldest.partition("-")[0].split(".")[:2] if part.isdigit())
    if known < OLDEST:
        advice = "upgrade Kafka: this release is tested with 4.1"
        yield Finding("kafka: version", Severity.WARNING, f"{VERSION_SETTING}={oldest}", advice)
    else:
        yield Finding("kafka: version", Severity.OK, f"{VERSION_SETTING}={oldest}")


def _creation(seen: Mapping[int, Settings]) -> Iterator[Finding]:
    found = [number for number, settings in seen.items() if settings.get("auto.create.topics.enable") == "true"]
    if found:
        advice = "set it to false: otherwise any client can create a topic with settings that lose records"
        text = f"auto.create.topics.enable=true on broker {_listed(found)}"
        yield Finding("kafka: creation of topics", Severity.WARNING, text, advice)
    else:
        yield Finding("kafka: creation of topics", Severity.OK, "auto.create.topics.enable=false")


def _cleaner(seen: Mapping[int, Settings]) -> Iterator[Finding]:
    found = [number for number, settings in seen.items() if settings.get("log.cleaner.enable") == "false"]
    if found:
        advice = "set it to true: otherwise compacted topics grow without bound"
        yield Finding(
            "kafka: cleaner", Severity.WARNING, f"log.cleaner.enable=false on broker {_listed(found)}", advice
        )


def _int(settings: Settings, name: str) -> int:
    """A setting as a number; 0 if the broker does not have it."""
    text = settings.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else 0


def _listed(numbers: Sequence[int] | Iterator[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)


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
