"""What an audit says of the facts about a Kafka: each wrong setting has its finding, and a right one has none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from statechannel.adapters.kafka.audit import ClusterFacts, Judge, TopicFacts
from statechannel.adapters.kafka.topics import TopicPolicy
from statechannel.audit import Finding, Severity
from statechannel.ports import TopicSpec

BROKER = {
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "true",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
}
PLAIN = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "86400000",
}
COMPACTED = {**PLAIN, "cleanup.policy": "compact", "retention.ms": "604800000"}
FOLLOWED = {**COMPACTED, "min.compaction.lag.ms": "86400000"}


def judge(*, development: bool = False) -> Judge:
    return Judge("k:9092", TopicPolicy(16, 1 if development else 3, 1 if development else 2, development))


def cluster(*, brokers: int = 3, replication: int | None = 3, broken: Mapping[str, str] | None = None) -> ClusterFacts:
    settings = {number: dict(BROKER) for number in range(1, brokers + 1)}
    settings[brokers].update(broken or {})
    return ClusterFacts("id", dict(settings), replication)


def topic(spec: TopicSpec, settings: Mapping[str, str] | None, **facts: tuple[int, ...]) -> TopicFacts:
    return TopicFacts(
        f"p.{spec.name}",
        spec,
        facts.get("replicas", (3, 3)),
        facts.get("in_sync", (3, 3)),
        facts.get("leaderless", ()),
        settings,
    )


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is not Severity.OK]


# --- nothing wrong
def test_a_sound_cluster_has_no_bad_finding():
    assert not bad([*judge().cluster(cluster())])


@pytest.mark.parametrize(("compacted", "settings"), [(False, PLAIN), (True, COMPACTED)])
def test_a_sound_topic_has_one_finding_that_says_how_it_is(compacted, settings):
    [found] = judge().topic(topic(TopicSpec("t", 2, compacted=compacted), settings))
    assert found.severity is Severity.OK
    assert "2 partitions, replication 3" in found.found


def test_a_topic_that_is_not_there_yet_is_fine():
    assert judge().missing("p.t", TopicSpec("t")).severity is Severity.OK


# --- brokers
@pytest.mark.parametrize(
    ("broken", "severity", "subject", "advice"),
    [
        ({"auto.create.topics.enable": "true"}, Severity.WARNING, "kafka: creation of topics", "false"),
        ({"log.cleaner.enable": "false"}, Severity.WARNING, "kafka: cleaner", "grow"),
        ({"transaction.max.timeout.ms": "60000"}, Severity.ERROR, "kafka: transactions", "at least 120000"),
        ({"inter.broker.protocol.version": "2.8-IV1"}, Severity.WARNING, "kafka: version", "upgrade"),
    ],
)
def test_a_setting_that_one_broker_has_wrong_is_named(broken, severity, subject, advice):
    [found] = bad([*judge().cluster(cluster(broken=broken))])
    assert (found.severity, found.subject) == (severity, subject)
    assert advice in found.advice
    assert "3" in found.found or "version" in found.subject


def test_the_version_of_brokers_that_still_tell_it_is_shown():
    findings = [*judge().cluster(cluster(broken={"inter.broker.protocol.version": "3.9-IV0"}))]
    assert any("3.9" in finding.found for finding in findings)
    assert not bad(findings)


def test_too_few_brokers_for_new_topics_are_an_error_except_in_development():
    [found] = [f for f in judge().cluster(cluster(brokers=1)) if f.subject == "kafka: cluster"]
    assert found.severity is Severity.ERROR
    [found] = [f for f in judge(development=True).cluster(cluster(brokers=1)) if f.subject == "kafka: cluster"]
    assert found.severity is Severity.WARNING


def test_a_transaction_topic_that_cannot_be_made_is_told_beside_too_few_brokers():
    facts = cluster(brokers=2, replication=None)
    [few, found] = bad([*judge(development=True).cluster(facts)])
    assert (few.subject, few.severity) == ("kafka: cluster", Severity.WARNING)
    assert (found.subject, found.severity) == ("kafka: transactions", Severity.ERROR)
    assert found.found == "transaction.state.log.replication.factor=3 with 2 brokers"
    assert "until then no snapshot is written" in found.advice


def test_a_transaction_topic_with_one_replica_is_told():
    [found] = bad([*judge().cluster(cluster(replication=1))])
    assert (found.subject, found.severity) == ("kafka: transactions", Severity.WARNING)
    assert found.found == "the transaction coordinator's topic has replication 1"


def test_brokers_whose_settings_are_hidden_are_told():
    [found] = bad([*judge().cluster(ClusterFacts("id", {1: BROKER, 2: None, 3: None}, 3))])
    assert found.severity is Severity.WARNING
    assert "2, 3" in found.found


# --- topics
@pytest.mark.parametrize(
    ("compacted", "name", "value", "severity"),
    [
        (False, "cleanup.policy", "compact", Severity.ERROR),
        (False, "cleanup.policy", "compact,delete", Severity.ERROR),
        (False, "retention.ms", "604800000", Severity.ERROR),
        (False, "retention.bytes", "1000000", Severity.ERROR),
        (False, "message.timestamp.type", "CreateTime", Severity.WARNING),
        (False, "max.message.bytes", "1000", Severity.ERROR),
        (False, "min.insync.replicas", "1", Severity.ERROR),
        (False, "min.insync.replicas", "3", Severity.WARNING),
        (False, "min.insync.replicas", "4", Severity.ERROR),
        (False, "unclean.leader.election.enable", "true", Severity.ERROR),
        (True, "cleanup.policy", "delete", Severity.ERROR),
        (True, "cleanup.policy", "compact,delete", Severity.ERROR),
        (True, "min.compaction.lag.ms", "864000000", Severity.WARNING),
        (True, "delete.retention.ms", "1000", Severity.WARNING),
    ],
)
def test_wrong_topic_setting_has_one_finding_with_the_mending_command(compacted, name, value, severity):
    settings = {**(COMPACTED if compacted else PLAIN), name: value}
    [found] = judge().topic(topic(TopicSpec("t", compacted=compacted), settings))
    assert found.severity is severity
    assert found.found == f"{name}={value}"
    assert "kafka-configs.sh --bootstrap-server k:9092 --alter --entity-type topics" in found.advice
    assert f"--entity-name p.t --add-config {name}=" in found.advice


@pytest.mark.parametrize("lag_ms", ["0", "86399999", "864000000"])
def test_wrong_retention_of_replaced_entries_in_a_followed_topic_is_told(lag_ms):
    spec = TopicSpec("load-brokers", compacted=True, followed=True)
    assert not bad([*judge().topic(topic(spec, FOLLOWED))])
    [found] = bad([*judge().topic(topic(spec, {**FOLLOWED, "min.compaction.lag.ms": lag_ms}))])
    assert found.severity is Severity.WARNING
    assert "--add-config min.compaction.lag.ms=86400000" in found.advice


def test_one_replica_is_an_error_and_in_development_nothing():
    facts = topic(TopicSpec("t"), {**PLAIN, "min.insync.replicas": "1"}, replicas=(1, 1), in_sync=(1, 1))
    assert {found.severity for found in judge().topic(facts)} == {Severity.ERROR}
    assert not bad([*judge(development=True).topic(facts)])


def test_replicas_that_lag_are_a_warning_until_writes_stop():
    [found] = judge().topic(topic(TopicSpec("t"), PLAIN, in_sync=(3, 2)))
    assert (found.severity, "partition 1 " in found.found) == (Severity.WARNING, True)
    [found] = judge().topic(topic(TopicSpec("t"), PLAIN, in_sync=(1, 2)))
    assert (found.severity, "partition 0 " in found.found) == (Severity.ERROR, True)
    assert "takes no writes" in found.found


def test_missing_leader_other_count_and_hidden_settings_are_errors():
    for facts in (
        topic(TopicSpec("t"), PLAIN, leaderless=(1,)),
        topic(TopicSpec("t", 3), PLAIN),
        topic(TopicSpec("t"), None),
    ):
        [found] = judge().topic(facts)
        assert found.severity is Severity.ERROR


def test_snapshots_need_as_many_partitions_as_what_they_are_of():
    channel, few = topic(TopicSpec("t"), PLAIN), topic(TopicSpec("t-snapshots"), COMPACTED, replicas=(3,))
    [found] = judge().pairs([channel, few])
    assert (found.subject, found.severity) == ("kafka: topic p.t-snapshots", Severity.ERROR)
    assert not [*judge().pairs([channel, topic(TopicSpec("t-snapshots"), COMPACTED)])]
