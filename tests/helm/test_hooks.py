"""A hook finds what it needs: by Helm, which runs some before it makes anything, and by Argo CD, which syncs.

Argo CD maps `pre-install` and `pre-upgrade` to PreSync, which is before everything else each time, also the first; an
annotation of its own counts instead of Helm's. What comes in the phase Sync comes at once, in the order of its waves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helm.rendering import EXAMPLES, containers, given, of_example, of_kind, pods

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

HELM = "helm.sh/hook"
ARGO = "argocd.argoproj.io/hook"
PRE_SYNC = ("pre-install", "pre-upgrade")
BRINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a file of a ConfigMap": {"volumes": [{"name": "a", "configMap": {"name": "a"}}]},
    "a file of a Secret": {"volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "a"}}]}}]},
    "a variable": {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "a"}}}]},
    "a secret variable": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "a"}}}]},
}
"""Values by which a pod needs an object that an umbrella chart may bring in the same release, called `a`."""


def needs(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Kind and name of the objects that a pod cannot start without."""
    found = {("ServiceAccount", pod["serviceAccountName"])}
    for volume in pod["volumes"]:
        sources = [volume, *volume.get("projected", {}).get("sources", ())]
        for each in sources:
            if "configMap" in each:
                found.add(("ConfigMap", each["configMap"]["name"]))
            if "secret" in each:
                found.add(("Secret", each["secret"].get("secretName") or each["secret"]["name"]))
    for container in containers(pod):
        sources = [each.get("valueFrom", {}) for each in container["env"]] + container.get("envFrom", [])
        for each in sources:
            for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                found |= {(kind, each[f"{key}{how}"]["name"]) for how in ("KeyRef", "Ref") if f"{key}{how}" in each}
    return found


def brought(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What comes with the release, by itself or by an operator; `a` of an umbrella chart."""
    yield from (("ConfigMap", "a"), ("Secret", "a"))
    for each in manifests:
        name = each["metadata"]["name"]
        if HELM in each["metadata"].get("annotations", {}):
            continue
        yield each["kind"], name
        if each["kind"] == "KafkaUser":
            yield "Secret", name
        if each["kind"] == "Certificate":
            yield "Secret", each["spec"]["secretName"]


def hooks(manifests: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """The pods of hooks other than tests, and their annotations."""
    specs = dict(pods(manifests))
    for each in manifests:
        annotations = each["metadata"].get("annotations", {})
        if annotations.get(HELM, "test") != "test":
            yield specs[each["metadata"]["name"]], annotations


def phases(annotations: dict[str, str]) -> set[str]:
    """Argo CD's."""
    if ARGO in annotations:
        return set(annotations[ARGO].split(","))
    return {"PreSync" if each in PRE_SYNC else "PostSync" for each in annotations[HELM].split(",")}


@pytest.mark.parametrize("what", BRINGS)
@pytest.mark.parametrize("example", [each.stem for each in EXAMPLES])
def test_a_hook_needs_nothing_that_comes_after_it(example: str, what: str, tmp_path: Path):
    manifests = of_example(example, *given({"check": {"enabled": True}, **BRINGS[what]}, tmp_path))
    seen = 0
    for pod, told in hooks(manifests):
        seen += 1
        comes_later = needs(pod) & set(brought(manifests))
        assert "pre-install" not in told[HELM].split(",") or not comes_later
        assert phases(told) == {"Sync"}, "PreSync is before the first sync too"
    assert seen == (example != "try")


def test_check_comes_before_the_install_if_it_can():
    """Also with a claim, of which pods of brokers wait for nothing else."""
    claim = "--set-json=volumes=[{\"name\":\"a\",\"persistentVolumeClaim\":{\"claimName\":\"a\"}}]"  # fmt: skip
    job = of_kind(of_example("production", claim), "Job", "check")
    assert job["metadata"]["annotations"][HELM] == "pre-install,pre-upgrade"


def test_annotations_of_the_values_say_when_the_check_runs():
    own = ("--set-string", r"check.annotations.argocd\.argoproj\.io/hook=PreSync,check.annotations.team=1")
    annotations = of_kind(of_example("strimzi", *own), "Job", "check")["metadata"]["annotations"]
    assert (annotations[ARGO], annotations[HELM], annotations["team"]) == ("PreSync", "pre-upgrade", "1")


def test_a_hook_that_is_there_gives_way():
    for name in ("helm.sh/hook-delete-policy", f"{ARGO}-delete-policy"):
        policy = of_kind(of_example("production"), "Job", "check")["metadata"]["annotations"][name]
        assert re.sub("[^a-z]", "", policy.lower()) == "beforehookcreationhooksucceeded"
