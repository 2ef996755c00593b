"""The audit of a real Kafka: that its facts are read where Kafka has them. What they mean: `test_kafka_judgement`."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from stack.servers import KafkaServer, free_port
from statechannel.adapters.kafka.audit import audit_kafka
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.audit import Finding, Severity
from statechannel.errors import LogError
from statechannel.ports import TopicSpec
from tests.servers import shared_kafka, topic_prefix

pytestmark = pytest.mark.kafka

CHANNEL, SNAPSHOTS = TopicSpec("channel"), TopicSpec("channel-snapshots", compacted=True)
LOADS = TopicSpec("load-brokers", 1, compacted=True, followed=True)


@pytest.fixture
def kafka_server(pytestconfig: pytest.Config) -> KafkaServer:
    return shared_kafka(pytestconfig)


@pytest.fixture
def prefix() -> str:
    return topic_prefix("kafka-audit")


async def created(server: KafkaServer, topic: NewTopic) -> None:
    """Return when the server shows it: it answers once the controller has it, and hears of it a moment later."""
    client = AdminClient({"bootstrap.servers": server.address})
    client.create_topics([topic])[topic.topic].result(30)
    async with asyncio.timeout(30):
        while topic.topic not in client.list_topics(timeout=30).topics:
            await asyncio.sleep(0.05)


def about(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


async def test_topics_that_a_broker_made_are_fine_and_so_are_those_not_made_yet(kafka_server, prefix):
    log = KafkaLog(kafka_server.address, topic_prefix=prefix, development=True)
    await log.start(timeout_s=60)
    for spec in (CHANNEL, SNAPSHOTS, LOADS):
        await log.open_topic(spec)
    await log.close()
    specs = [CHANNEL, SNAPSHOTS, LOADS, TopicSpec("later")]
    findings = await audit_kafka(kafka_server.address, specs, topic_prefix=prefix, development=True)
    topics = [finding for finding in findings if finding.subject.startswith("kafka: topic")]
    assert [(finding.subject, finding.severity) for finding in topics] == [
        (f"kafka: topic {prefix}{spec.name}", Severity.OK) for spec in specs
    ]
    assert "16 partitions" in topics[0].found
    assert "does not exist yet" in topics[3].found
    assert {finding.severity for finding in findings} == {Severity.OK, Severity.WARNING}
    [only_one_node] = [finding for finding in findings if finding.severity is Severity.WARNING]
    assert "1 broker" in only_one_node.found


async def test_a_followed_topic_of_an_older_release_that_forgets_at_once_is_told(kafka_server, prefix):
    settings = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
    name = prefix + LOADS.name
    await created(kafka_server, NewTopic(name, 1, 1, config=settings))
    findings = await audit_kafka(
        kafka_server.address, [LOADS], topic_prefix=prefix, development=True, compaction_lag_s=600.0
    )
    [found] = [finding for finding in findings if finding.subject == f"kafka: topic {name}"]
    assert (found.severity, found.found) == (Severity.WARNING, "min.compaction.lag.ms=0")
    assert "--add-config min.compaction.lag.ms=600000" in found.advice


async def test_each_thing_that_is_wrong_has_its_finding(kafka_server, prefix):
    settings = {"cleanup.policy": "compact", "unclean.leader.election.enable": "true", "max.message.bytes": "1000"}
    name = f"{prefix}channel"
    await created(kafka_server, NewTopic(name, 3, 1, config=settings))
    findings = await audit_kafka(kafka_server.address, [TopicSpec("channel", 4)], topic_prefix=prefix)
    found = {finding.found for finding in about(findings, f"kafka: topic {name}")}
    assert found >= {
        "3 partitions, not 4",
        "replication 1",
        "cleanup.policy=compact",
        "retention.ms=604800000",
        "max.message.bytes=1000",
        "min.insync.replicas=1",
        "unclean.leader.election.enable=true",
        "message.timestamp.type=CreateTime",
    }
    assert about(findings, "kafka: cluster")[0].severity is Severity.ERROR
    assert about(findings, "kafka: version") == [Finding("kafka: version", Severity.OK, "4.0 or newer")]
    assert about(findings, "kafka: creation of topics")[0].severity is Severity.OK


async def test_nothing_is_created_by_looking(kafka_server, prefix):
    await audit_kafka(kafka_server.address, [CHANNEL, SNAPSHOTS], topic_prefix=prefix)
    topics = AdminClient({"bootstrap.servers": kafka_server.address}).list_topics(timeout=60).topics
    assert not [name for name in topics if name.startswith(prefix)]


async def test_a_kafka_that_is_not_there_is_a_finding_with_its_address(monkeypatch):
    monkeypatch.setattr("statechannel.adapters.kafka.audit.CONNECT_TIMEOUT_S", 3.0)
    address = f"127.0.0.1:{free_port()}"
    async with asyncio.timeout(60):
        [found] = await audit_kafka(address, [CHANNEL])
    assert found.severity is Severity.ERROR
    assert address in found.found
    assert "refused" in found.found


async def test_client_settings_that_are_no_good_are_told(kafka_server):
    with pytest.raises(LogError, match=r"no\.such\.setting"):
        await audit_kafka(kafka_server.address, [], client_settings={"no.such.setting": "1"})
    with pytest.raises(LogError, match="acks"):
        await audit_kafka(kafka_server.address, [], client_settings={"acks": "1"})
