"""What the API server says to every example, and to pods of it where `restricted` is enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.kubernetes.cluster import Cluster
from stack.kubernetes.programs import KUBERNETES
from tests.kubernetes.release import CHART, NAME, Release, wait_for

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]
EXAMPLES = sorted((CHART.parent / "examples").glob("*.yaml"))
OPERATORS = {
    "ServiceMonitor": "servicemonitors.monitoring.coreos.com/v1",
    "PrometheusRule": "prometheusrules.monitoring.coreos.com/v1",
    "Certificate": "certificates.cert-manager.io/v1",
    "HTTPRoute": "httproutes.gateway.networking.k8s.io/v1",
    "KafkaTopic": "kafkatopics.kafka.strimzi.io/v1",
    "KafkaUser": "kafkausers.kafka.strimzi.io/v1",
}
"""Kinds of operators: the API server gets to know their names here, not their schemas."""


@pytest.fixture(scope="module")
def operators(cluster: Cluster) -> None:
    for kind, place in OPERATORS.items():
        name, _, version = place.partition("/")
        plural, _, group = name.partition(".")
        anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        served = {"name": version, "served": True, "storage": True, "schema": anything}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": name,
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [served],
            },
        }
        cluster.kubectl("apply", "-f", "-", given=json.dumps(definition))
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """As the controllers would make them."""
    for each in manifests:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            meta = {"name": f"{each['metadata']['name']}-{each['kind'].lower()}"}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": dict(spec["template"]["spec"])}


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_api_server_takes_the_example_where_restricted_is_enforced(release: Release, example: Path):
    text = release.helm("template", NAME, str(CHART), "-f", str(example), "--kube-version", KUBERNETES).stdout
    dry = ("-n", release.namespace, "--dry-run=server", "-f", "-")
    run = release.cluster.kubectl("apply", *dry, given=text)
    assert "Warning" not in run.stderr, run.stderr
    manifests = [each for each in yaml.safe_load_all(text) if each]
    assert len(run.stdout.splitlines()) == len(manifests) > 5
    for pod in pods(manifests):
        pod["spec"].pop("serviceAccountName", None)  # in a dry run nothing was made
        pod["spec"].setdefault("restartPolicy", "Always")
        for each in [
            *pod["spec"]["containers"],
            *pod["spec"].get("initContainers", ()),
        ]:  # without claims that a StatefulSet makes
            known = {volume["name"] for volume in pod["spec"].get("volumes", ())}
            each["volumeMounts"] = [mount for mount in each.get("volumeMounts", ()) if mount["name"] in known]
        release.cluster.kubectl("create", *dry, given=json.dumps(pod))


def test_a_pod_that_may_more_is_refused(release: Release):
    """The namespace enforces what the other tests rely on."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}}
    pod["spec"] = {"containers": [{"name": "one", "image": "busybox"}]}
    dry = ("-n", release.namespace, "--dry-run=server", "-f", "-")
    run = release.cluster.kubectl("create", *dry, given=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted' in run.stderr


def test_an_autoscaler_begins_with_the_brokers_that_are_there(installed: Release):
    def conditions() -> dict[str, str]:
        found = installed.get("horizontalpodautoscaler", NAME)["status"].get("conditions", ())
        return {each["type"]: each["status"] for each in found}

    def pods() -> list[str]:
        return [each["metadata"]["uid"] for each in installed.brokers()]

    before = pods()
    scaled = installed.values() | {"autoscaling": {"enabled": True, "minReplicas": 4}}
    installed.deploy("upgrade", scaled)
    wait_for(lambda: conditions().get("AbleToScale") == "True", "the autoscaler finds the StatefulSet")
    wait_for(lambda: len(pods()) == 4, "the least number of brokers")
    assert pods()[:3] == before
    installed.rolled_out()
    installed.deploy("upgrade", scaled)
    assert pods()[:3] == before
