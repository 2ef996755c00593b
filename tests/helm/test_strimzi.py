"""The user and the topics of Strimzi are those that brokers need."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG
from loadmanager.consumers.coordinator.store import TOPIC
from loadmanager.diagnostics.topics import topics_of
from loadmanager.settings import Settings
from statechannel.adapters.kafka import group_commits
from statechannel.adapters.kafka.admin import RIGHTS
from statechannel.adapters.kafka.clients import check_client_settings
from statechannel.adapters.kafka.topics import TopicPolicy, _new_settings
from statechannel.ports import TopicSpec
from tests.helm.rendering import containers, of_example, of_kind, pods

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return of_example("strimzi")


def topics(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in manifests if each["kind"] == "KafkaTopic"]


@pytest.mark.parametrize("given", [(), ("replication=5", "min_insync_replicas=3")])
def test_topics_are_those_that_a_broker_would_create(given: tuple[str, ...]):
    found = topics(of_example("strimzi", *(f"--set=settings.{each}" for each in given)))
    values = dict(each.split("=") for each in given)
    settings = Settings(partitions=8, **values)  # pyright: ignore[reportArgumentType]
    policy = TopicPolicy(16, settings.replication, settings.min_insync_replicas, development=False)
    assert {each["spec"]["topicName"]: each["spec"] for each in found} == {
        f"shop.{spec.name}": {
            "topicName": f"shop.{spec.name}",
            "partitions": spec.partitions,
            "replicas": settings.replication,
            "config": _new_settings(spec, settings.min_insync_replicas, policy),
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


# --- a host that coordinates consumer groups

COORDINATES = "--set=host=loadmanager.consumer.hosting:make_host"
EVERYTHING = {("group", "*", "literal"), ("topic", "*", "literal")}


def of_groups(*values: str) -> set[tuple[str, str, str]]:
    """Type, name and pattern of what the user may read beside the cluster's own topics."""
    acls = of_kind(of_example("strimzi", *values), "KafkaUser")["spec"]["authorization"]["acls"]
    found = [each for each in acls if each["operations"] == ["Describe", "Read"]]
    return {(each["resource"]["type"], each["resource"]["name"], each["resource"]["patternType"]) for each in found}


def test_user_reads_and_commits_offsets_where_brokers_coordinate_groups():
    assert not of_groups()
    assert not of_groups("--set=host=orders.host:make_host")
    assert of_groups(COORDINATES) == EVERYTHING


def test_user_has_rights_on_the_groups_that_are_named():
    named = "--set=strimzi.groups={billing,shop.*},strimzi.groupTopics={orders}"
    wanted = {("group", "billing", "literal"), ("group", "shop.", "prefix"), ("topic", "orders", "literal")}
    assert of_groups(named) == of_groups(named, COORDINATES) == wanted
    only_groups = of_groups("--set=strimzi.groups={billing}")
    assert only_groups == {("group", "billing", "literal"), ("topic", "*", "literal")}


def test_rights_are_those_that_a_refused_coordinator_asks_for():
    """`Read` on a group and its topics, by which Kafka takes commits; its servers' settings say how long they last."""
    told = inspect.getsource(group_commits.GroupCommits)
    assert "Allow this user Read on the group" in told
    acls = of_kind(of_example("strimzi", COORDINATES), "KafkaUser")["spec"]["authorization"]["acls"]
    (cluster,) = (each["operations"] for each in acls if each["resource"]["type"] == "cluster")
    assert "DescribeConfigs" in cluster


def test_groups_of_coordinators_have_their_topic():
    spec = TopicSpec(TOPIC, 1, compacted=True, followed=True)
    policy = TopicPolicy(16, 3, 2, development=False)
    names = {each["spec"]["topicName"] for each in topics(of_example("strimzi"))}
    found = {each["spec"]["topicName"]: each["spec"] for each in topics(of_example("strimzi", COORDINATES))}
    assert found.keys() - names == {f"shop.{each.name}" for each in (spec, GROUP_LAG)}
    for each in (spec, GROUP_LAG):
        assert found[f"shop.{each.name}"] == {
            "topicName": f"shop.{each.name}",
            "partitions": 1,
            "replicas": 3,
            "config": _new_settings(each, 2, policy),
        }
