"""Whatever a release is called, its objects have names that Kubernetes takes, and that no other release has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helm.rendering import containers, fits, of_example, pods

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

LONG = "payments-europe-west-production-orders-of-teams"
RELEASES = ("lm", "loadmanager", "a", "shop.v2", "2024-orders", "2024", "true", "1e3", f"{LONG}-blue", f"{LONG}.green")
LONGEST = {"CronJob": 52, "StatefulSet": 52}
"""CronJobs and StatefulSets make objects with longer names of theirs."""
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
EXAMPLES = {
    "production": ("--set", "history.enabled=true,history.claim=lake,history.replay.enabled=true"),
    "strimzi": (),
    "sidecar": (),
    "try": (),
}


def names(manifests: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in manifests}


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_takes_the_names(release: str):
    for example, values in EXAMPLES.items():
        manifests = of_example(example, *values, release=release)
        assert fits(manifests), "labels are texts"
        for kind, name in names(manifests):
            assert LABEL.fullmatch(name), (kind, name)
            assert len(name) <= LONGEST.get(kind, 63), (kind, name)
        for each in manifests:
            labels = dict(each["metadata"]["labels"])
            if "template" in each.get("spec", {}):
                labels |= each["spec"]["template"]["metadata"]["labels"]
            assert all(len(value) <= 63 for value in labels.values()), labels
            assert labels["app.kubernetes.io/instance"] == release


def test_names_of_services_are_labels_of_dns_for_what_asks_for_them():
    """Those that brokers advertise, that their servers are asked by, and that certificates have."""
    for release in RELEASES:
        manifests = of_example("try", release=release)
        services = {name for kind, name in names(manifests) if kind == "Service"}
        assert all(each["spec"]["serviceName"] in services for each in manifests if each["kind"] == "StatefulSet")
        settings = next(each["data"] for each in manifests if "LOADMANAGER_LOG" in each.get("data", {}))
        assert settings["LOADMANAGER_LOG"].removeprefix("kafka://").partition(":")[0] in services
        assert settings["LOADMANAGER_COORDINATION"].removeprefix("zookeeper://").partition(":")[0] in services
        for _, pod in pods(manifests):
            for container in containers(pod):
                for each in container.get("env", ()):
                    if each["name"] == "POD_ADDRESS":
                        assert each["value"].split(".")[1] in services


def test_short_names_stay_as_they_are():
    assert {name for kind, name in names(of_example("production")) if kind == "Service"} == {
        "lm-loadmanager",
        "lm-loadmanager-brokers",
    }


def test_no_two_releases_share_a_name():
    seen = dict[tuple[str, str], str]()
    for release in (*RELEASES, "shop-v2", "lm-2024", f"{LONG}-green"):
        for each in names(of_example("production", *EXAMPLES["production"], release=release)):
            assert each not in seen, (each, release, seen.get(each))
            seen[each] = release


@pytest.mark.parametrize("value", ["fullnameOverride", "nameOverride"])
def test_an_overridden_name_is_one_too(value: str):
    for name in ("v1.2", "7", f"{LONG}.and.more"):
        manifests = of_example("production", "--set-string", f"{value}={name}")
        assert fits(manifests)
        assert all(LABEL.fullmatch(each) and len(each) <= 63 for _, each in names(manifests))


def test_releases_of_one_name_in_several_namespaces_are_several_clusters():
    def cluster(*arguments: str) -> str:
        manifests = of_example("strimzi", *arguments)
        return next(
            each["data"]["LOADMANAGER_CLUSTER"] for each in manifests if "LOADMANAGER_CLUSTER" in each.get("data", {})
        )

    assert cluster() == "lm-loadmanager.shop"
    assert cluster("--namespace", "shop-eu") == "lm-loadmanager.shop-eu"
    assert cluster("--set", "cluster=orders") == "orders"
