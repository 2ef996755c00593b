"""The user and the topics of Strimzi are those that brokers need."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadmanager.diagnostics.check.topics import topics_of
from loadmanager.settings import Settings
from statechannel.adapters.kafka.admin import RIGHTS
from statechannel.adapters.kafka.clients import check_client_settings
from statechannel.adapters.kafka.topics import TopicPolicy, _new_settings
from tests.helm.rendering import containers, of_example, of_kind, pods

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return of_example("strimzi")


def topics(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in manifests if each["kind"] == "KafkaTopic"]


@pytest.mark.parametrize("given", [(), ("replication=5", "min_insync_replicas=3", "compaction_lag_s=3600")])
def test_topics_are_those_that_a_broker_would_create(given: tuple[str, ...]):
    found = topics(of_example("strimzi", *(f"--set=settings.{each}" for each in given)))
    values = dict(each.split("=") for each in given)
    settings = Settings(partitions=8, **values)  # pyright: ignore[reportArgumentType]
    insync, lag_s = settings.min_insync_replicas, settings.compaction_lag_s
    policy = TopicPolicy(16, settings.replication, insync, development=False, compaction_lag_s=lag_s)
    assert {each["spec"]["topicName"]: each["spec"] for each in found} == {
        f"shop.{spec.name}": {
            "topicName": f"shop.{spec.name}",
            "partitions": spec.partitions,
            "replicas": settings.replication,
            "config": _new_settings(spec, insync, policy),
        }
        for spec in topics_of(settings)
    }


def test_channel_has_as_many_partitions_as_kafka_gets_by_default():
    found = topics(of_example("strimzi", "--set", "settings.partitions=null"))
    counts = {each["spec"]["topicName"]: each["spec"]["partitions"] for each in found}
    assert (counts["shop.bundle-state"], counts["shop.bundle-state-snapshots"], counts["shop.audit"]) == (16, 16, 1)


def test_topics_outlive_the_release(manifests: list[dict[str, Any]]):
    assert topics(manifests)
    for each in topics(manifests):
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_brokers_create_their_topics_unless_asked_otherwise():
    found = of_example("strimzi", "--set", "strimzi.topics=false")
    assert not topics(found)
    assert of_kind(found, "KafkaUser")


def test_all_belong_to_the_kafka(manifests: list[dict[str, Any]]):
    ours = [each for each in manifests if each["apiVersion"].startswith("kafka.strimzi.io")]
    assert {each["metadata"]["labels"]["strimzi.io/cluster"] for each in ours} == {"events"}
    assert all(len(each["metadata"]["name"]) <= 63 for each in ours)


def test_user_has_the_rights_that_a_refused_broker_asks_for(manifests: list[dict[str, Any]]):
    allowed = {
        each["resource"]["type"]: each for each in of_kind(manifests, "KafkaUser")["spec"]["authorization"]["acls"]
    }
    on_topics, _, on_transactions = RIGHTS.partition("transactional")
    for right in ("Describe", "DescribeConfigs", "Read", "Write", "Create", "Delete"):
        assert right in on_topics
        assert right in allowed["topic"]["operations"]
    assert set(allowed["transactionalId"]["operations"]) == {"Describe", "Write"}
    assert "Write and Describe on" in on_topics
    assert on_transactions
    for kind in ("topic", "transactionalId"):
        assert allowed[kind]["resource"] == {"type": kind, "name": "shop.", "patternType": "prefix"}


def test_everything_that_opens_the_log_logs_in_as_the_user(manifests: list[dict[str, Any]]):
    name = of_kind(manifests, "KafkaUser")["metadata"]["name"]
    seen = set[str]()
    for where, pod in pods(manifests):
        for container in containers(pod):
            own = {each["name"]: each for each in container["env"]}
            if "LOADMANAGER_KAFKA" not in own:
                continue
            seen.add(where)
            settings = json.loads(own["LOADMANAGER_KAFKA"]["value"])
            check_client_settings(settings)
            assert settings["sasl.username"] == name
            assert own["KAFKA_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "password"}
            order = [each["name"] for each in container["env"]]
            assert order.index("KAFKA_PASSWORD") < order.index("LOADMANAGER_KAFKA")  # else it is not put in
            folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volume = folders[settings["ssl.ca.location"].removesuffix("/ca.crt")]
            secret = next(each for each in pod["volumes"] if each["name"] == volume)["secret"]
            assert secret["secretName"] == "events-cluster-ca-cert"
    assert {each.removeprefix("lm-loadmanager") for each in seen} == {
        "", "-check", "-history-ingest", "-history-nightly"}  # fmt: skip


def test_check_waits_for_no_user_that_the_install_brings(manifests: list[dict[str, Any]]):
    assert of_kind(manifests, "Job", "check")["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    other = of_kind(of_example("production"), "Job", "check")
    assert other["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
