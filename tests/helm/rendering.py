"""Renders the chart with the real Helm, and looks into what came out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from stack.helm import built

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "loadmanager"
EXAMPLES = sorted((ROOT / "helm" / "examples").glob("*.yaml"))
RENDERED = Path(__file__).parent / "rendered"


def helm(*arguments: str, folder: Path = ROOT / "helm") -> subprocess.CompletedProcess[str]:
    """Run it in a folder."""
    command = [str(built("helm")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def template(*arguments: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Render the release `lm` of the namespace `shop`."""
    return helm("template", "lm", str(chart), "--namespace", "shop", "--kube-version", "1.37.0", *arguments)


def rendered(*arguments: str, chart: Path = CHART) -> str:
    """What is rendered; fails where it is refused."""
    run = template(*arguments, chart=chart)
    assert run.returncode == 0, run.stderr
    return run.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered text."""
    return [each for each in yaml.safe_load_all(text) if each]


def of_example(name: str, *arguments: str) -> list[dict[str, Any]]:
    """The objects of an example, perhaps with other values."""
    return documents(rendered("-f", str(ROOT / "helm" / "examples" / f"{name}.yaml"), *arguments))


def of_kind(manifests: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The first object of a kind whose name ends so."""
    return next(each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(name))


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the spec of everything that makes pods."""
    for each in manifests:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], spec
        elif "template" in spec:
            yield each["metadata"]["name"], spec["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod, sidecars first."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def broker_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the broker."""
    pod = of_kind(manifests, "StatefulSet", "loadmanager")["spec"]["template"]["spec"]
    return next(each for each in containers(pod) if each["name"] == "broker")
