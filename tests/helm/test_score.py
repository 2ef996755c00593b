"""kube-score looks at every example, with all its checks; what it says and we do otherwise has a reason here.

Beside it, the rules that it does not know.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.helm import built
from tests.helm.rendering import EXAMPLES, containers, of_kind, pods, rendered

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

PERFECT = 10
OTHERWISE = {
    ("container-image-pull-policy", ""): "tags of releases do not change, and a digest can be given: nothing to pull",
    (
        "container-resources",
        "CPU limit is not set",
    ): "a broker that is throttled cannot prove in time that it may serve",
    ("container-resource-requests-equal-limits", ""): "no limit for the CPU; memory may grow where bundles gather",
    ("container-cpu-requests-equal-limits", ""): "no limit for the CPU",
    ("container-memory-requests-equal-limits", ""): "memory may grow where bundles gather, and shrinks as they move",
    ("container-ephemeral-storage-request-equals-limit", ""): "scratch space, mostly empty",
    ("statefulset-has-host-podantiaffinity", ""): "topologySpreadConstraints spread brokers over nodes and zones",
    ("pod-networkpolicy", "egress"): "where Kafka, ZooKeeper and an issuer are, only the user knows",
}
"""Checks that fail, perhaps only those whose comment has a text, and why that is right."""
IN_EXAMPLES = {
    ("certificates", "pod-networkpolicy"): "this example has networkPolicy.enabled=false",
    ("try", "container-security-context-readonlyrootfilesystem"): "Kafka and ZooKeeper of `dev`",
    ("try", "pod-probes-identical"): "the same: there is no other way to ask them without their own tools",
}
OPTIONAL = (
    "container-resource-requests-equal-limits",
    "container-cpu-requests-equal-limits",
    "container-memory-requests-equal-limits",
    "container-ephemeral-storage-request-equals-limit",
    "container-ports-check",
    "container-seccomp-profile",
    "environment-variable-key-duplication",
    "pod-topology-spread-constraints",
    "horizontalpodautoscaler-replicas",
    "label-values",
)


def scored(text: str) -> Iterator[tuple[str, str, str]]:
    """Each failed check: the object, the check, and what it says."""
    command = [str(built("kube-score")), "score", "--kubernetes-version", "v1.30", "--output-format", "json", "-"]
    for each in OPTIONAL:
        command += ["--enable-optional-test", each]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    found = json.loads(run.stdout)
    assert found, run.stderr
    for thing in found:
        for check in thing["checks"]:
            if check["grade"] < PERFECT and not check["skipped"]:
                for comment in check["comments"] or [{"summary": ""}]:
                    yield thing["object_name"], check["check"]["id"], comment["summary"]


def excused(check: str, says: str) -> tuple[str, str] | None:
    """The entry of `OTHERWISE` that it falls under."""
    return next((key for key in OTHERWISE if key[0] == check and key[1] in says), None)


def test_kube_score_finds_only_what_has_a_reason(example: Path):
    found = [
        finding
        for finding in scored(rendered("-f", str(example)))
        if not excused(*finding[1:]) and (example.stem, finding[1]) not in IN_EXAMPLES
    ]
    assert not found


def test_every_reason_is_needed():
    seen, here = set[tuple[str, str] | None](), set[tuple[str, str]]()
    for each in EXAMPLES:
        for _, check, says in scored(rendered("-f", str(each))):
            seen.add(excused(check, says))
            if not excused(check, says):
                here.add((each.stem, check))
    assert not OTHERWISE.keys() - seen
    assert not IN_EXAMPLES.keys() - here


def test_kube_score_sees_what_is_wrong():
    text = rendered("-f", str(EXAMPLES[0])).replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false")
    assert "container-security-context-readonlyrootfilesystem" in {check for _, check, _ in scored(text)}


# --- what kube-score does not look at


def test_every_container_that_runs_on_is_probed(manifests: list[dict[str, Any]]):
    for each in manifests:
        if each["kind"] not in {"StatefulSet", "Deployment"}:
            continue
        pod = each["spec"]["template"]["spec"]
        for container in containers(pod):
            asked_first = {"readinessProbe", "startupProbe"} & container.keys()  # no Service sends the ingest anything
            assert asked_first, (each["metadata"]["name"], container["name"])
            assert "livenessProbe" in container, (each["metadata"]["name"], container["name"])


def test_no_image_is_the_latest(manifests: list[dict[str, Any]]):
    for name, pod in pods(manifests):
        for container in containers(pod):
            tag = container["image"].rpartition("/")[2].rpartition(":")[2]
            assert ":" in container["image"], name
            assert tag != "latest", name


def test_every_object_has_the_recommended_labels(manifests: list[dict[str, Any]]):
    wanted = {"helm.sh/chart"} | {f"app.kubernetes.io/{each}" for each in ("name", "instance", "version", "managed-by")}
    for each in manifests:
        assert wanted <= each["metadata"]["labels"].keys(), (each["kind"], each["metadata"]["name"])
        if "template" in each.get("spec", {}):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert wanted | {"app.kubernetes.io/component"} <= labels.keys(), each["metadata"]["name"]


def test_brokers_are_spread_and_seldom_evicted(manifests: list[dict[str, Any]]):
    spec = of_kind(manifests, "StatefulSet", "loadmanager")["spec"]
    spread = {
        each["topologyKey"]: each["labelSelector"] for each in spec["template"]["spec"]["topologySpreadConstraints"]
    }
    assert spread.keys() == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert all(each == spec["selector"] for each in spread.values())
    budget = of_kind(manifests, "PodDisruptionBudget")["spec"]
    assert budget["selector"] == spec["selector"]
    assert 0 < budget["maxUnavailable"] < spec.get("replicas", 3)


def test_nobody_reaches_a_pod_that_no_policy_allows(example: Path, manifests: list[dict[str, Any]]):
    policies = [each["spec"]["podSelector"] for each in manifests if each["kind"] == "NetworkPolicy"]
    if (example.stem, "pod-networkpolicy") in IN_EXAMPLES and not policies:
        return
    for each in manifests:
        spec = each.get("spec", {}).get("jobTemplate", each).get("spec", {})
        labels = spec["template"]["metadata"]["labels"] if "template" in spec else each["metadata"]["labels"]
        if "template" in spec or each["kind"] == "Pod":
            assert [one for one in policies if selects(one, labels)], each["metadata"]["name"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector of labels takes a pod."""
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions)
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )
