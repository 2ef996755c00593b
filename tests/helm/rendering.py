"""Renders the chart with the real Helm, and looks into what came out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from stack.helm import built

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "loadmanager"
EXAMPLES = sorted((ROOT / "helm" / "examples").glob("*.yaml"))
RENDERED = Path(__file__).parent / "rendered"
OPERATORS = {
    "monitoring.coreos.com/v1",
    "cert-manager.io/v1",
    "gateway.networking.k8s.io/v1",
    "kafka.strimzi.io/v1",
}
"""Kinds of others, whose schemas we do not have."""


def helm(*arguments: str, folder: Path = ROOT / "helm") -> subprocess.CompletedProcess[str]:
    """Run it in a folder."""
    command = [str(built("helm")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def template(*arguments: str, chart: Path = CHART, release: str = "lm") -> subprocess.CompletedProcess[str]:
    """Render a release of the namespace `shop`."""
    return helm("template", release, str(chart), "--namespace", "shop", "--kube-version", "1.37.0", *arguments)


def rendered(*arguments: str, chart: Path = CHART, release: str = "lm") -> str:
    """What is rendered; fails where it is refused."""
    run = template(*arguments, chart=chart, release=release)
    assert run.returncode == 0, run.stderr
    return run.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered text."""
    return [each for each in yaml.safe_load_all(text) if each]


def of_example(name: str, *arguments: str, release: str = "lm") -> list[dict[str, Any]]:
    """The objects of an example, perhaps with other values."""
    file = ROOT / "helm" / "examples" / f"{name}.yaml"
    return documents(rendered("-f", str(file), *arguments, release=release))


def given(values: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """Arguments for values of a file: Helm reads its numbers otherwise than those of `--set`."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))  # YAML too, and the same in each version of it
    return ("-f", str(file))


def fits(manifests: list[dict[str, Any]], version: str = "1.37") -> int:
    """How many objects of Kubernetes' own kinds there are; raises if one does not fit its schema."""
    own = [each for each in manifests if each["apiVersion"] not in OPERATORS]
    for each in own:
        kubernetes_validate.validate(each, version, strict=True)
    return len(own)


def of_kind(manifests: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The first object of a kind whose name ends so."""
    return next(each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(name))


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the spec of everything that makes pods; of executors, which Spark makes, what it makes them of."""
    for each in manifests:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], spec
        elif "template" in spec:
            yield each["metadata"]["name"], spec["template"]["spec"]
        elif "pod.yaml" in each.get("data", {}):
            yield each["metadata"]["name"], yaml.safe_load(each["data"]["pod.yaml"])["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod, sidecars first."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def broker_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the broker."""
    pod = of_kind(manifests, "StatefulSet", "loadmanager")["spec"]["template"]["spec"]
    return next(each for each in containers(pod) if each["name"] == "broker")
