"""The chart, rendered by the real Helm with the values of `helm/examples`.

`WRITE=1` writes what is rendered to `tests/helm/rendered`; read the difference before you commit it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Broker
from loadmanager.settings import Settings, descriptions
from loadmanager_api.cli.broker import Idle
from stack.helm import built
from tests.helm.rendering import (
    CHART,
    EXAMPLES,
    RENDERED,
    ROOT,
    broker_of,
    containers,
    documents,
    fits,
    helm,
    of_kind,
    pods,
    rendered,
)

VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: the oldest and the newest whose schemas are looked at."""

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]


# --- what is rendered


def test_example_renders_what_was_looked_at(example: Path):
    file, text = RENDERED / example.name, rendered("-f", str(example))
    text = re.sub(r"(loadmanager\.json: ).*", r"\1…", text)  # its own tests look at the dashboard
    text = re.sub(
        r"(kind: PrometheusRule\n.*?\nspec:\n).*?(?=^---|\Z)", r"\1  …\n", text, flags=re.DOTALL | re.MULTILINE
    )
    if os.environ.get("WRITE"):
        file.write_text(text)
    assert text == file.read_text(), "if the difference is right: WRITE=1"


def test_rendered_files_are_of_examples():
    assert {each.name for each in RENDERED.glob("*")} == {"orders-chart.yaml", *(each.name for each in EXAMPLES)}


def test_chart_passes_lint(example: Path):
    run = helm("lint", "--strict", str(CHART), "-f", str(example))
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_schemas_of_kubernetes(manifests: list[dict[str, Any]], version: str):
    assert fits(manifests, version) > 5


def test_readme_is_current():
    before = (CHART / "README.md").read_text()
    command = [str(built("helm-docs")), "--dry-run", "--chart-search-root", str(CHART)]
    run = subprocess.run(command, cwd=CHART, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == before.strip(), "write it anew: .stack/go/*/helm-docs -c helm"


# --- what every pod has


def test_every_pod_is_restricted(manifests: list[dict[str, Any]]):
    """The level `restricted` of Pod Security, a file system that cannot be written, and no more rights than needed."""
    for name, pod in pods(manifests):
        security = pod["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] > 10_000, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        kinds = {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
        assert all(volume.keys() - {"name"} <= kinds for volume in pod["volumes"]), name
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            server = container["name"] in {"kafka", "zookeeper"}  # of `dev`: they write where their images want it
            assert server or own["readOnlyRootFilesystem"], name
            if container["name"] == "executor":
                continue  # Spark says what it needs
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
            assert "memory" in container["resources"]["limits"], name


def test_only_the_driver_of_spark_gets_a_token_of_the_api_server(manifests: list[dict[str, Any]]):
    with_token = {name for name, pod in pods(manifests) if pod.get("automountServiceAccountToken", True)}
    assert with_token <= {"lm-loadmanager-history-replay"}


def test_no_secret_is_written_into_a_manifest(manifests: list[dict[str, Any]]):
    assert not [each for each in manifests if each["kind"] == "Secret"]
    for name, pod in pods(manifests):
        for container in containers(pod):
            plain = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
            assert "LOADMANAGER_ZOOKEEPER" not in plain, name
            kafka = json.loads(plain.get("LOADMANAGER_KAFKA", "{}"))
            assert re.fullmatch(r"\$\(\w+\)", kafka.get("sasl.password", "$(NONE)")), name


def test_selectors_find_their_pods_and_nobody_elses(manifests: list[dict[str, Any]]):
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in manifests
        if each["kind"] in {"StatefulSet", "Deployment"}
    }
    for each in manifests:
        spec = each.get("spec", {})
        selector = spec.get("selector") if each["kind"] == "Service" else None
        if each["kind"] in {"PodDisruptionBudget", "StatefulSet", "Deployment"}:
            selector = spec["selector"]["matchLabels"]
        if each["kind"] == "NetworkPolicy" and "matchExpressions" not in spec["podSelector"]:  # those: test_score.py
            selector = spec["podSelector"]["matchLabels"]
        if selector is None or each["metadata"]["name"].endswith("replay"):
            continue
        found = [name for name, theirs in labels.items() if selector.items() <= theirs.items()]
        assert len(found) == 1, (each["kind"], each["metadata"]["name"], found)


# --- what the brokers get


def test_brokers_get_settings_that_they_accept(manifests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    """The environment and the command line, as the broker reads them."""
    container = broker_of(manifests)
    environment = dict(of_kind(manifests, "ConfigMap", "loadmanager")["data"])
    known = {f"LOADMANAGER_{name.upper()}" for name in descriptions()}
    own = {each["name"] for each in container["env"] if each["name"].startswith("LOADMANAGER_")}
    assert environment.keys() | own <= known
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings(advertised="lm-loadmanager-0.lm-loadmanager-brokers.shop.svc:8080")
    assert settings.cluster in {"orders", "rooms", "lm-loadmanager.shop"}
    assert (
        settings.drain_timeout_s
        < of_kind(manifests, "StatefulSet", "loadmanager")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    )
    assert settings.insecure or (settings.tls_certificate and settings.authentication)


def test_a_setting_of_the_values_reaches_the_broker():
    text = rendered("-f", str(ROOT / "helm/examples/production.yaml"), "--set", "settings.balancing_tolerance=tight")
    data = of_kind(documents(text), "ConfigMap", "loadmanager")["data"]
    assert data["LOADMANAGER_BALANCING_TOLERANCE"] == "tight"
    assert data["LOADMANAGER_CAPACITY"] == '{"cpu":4}'


def test_pods_are_rolled_when_a_setting_changes():
    sums = set[str]()
    for seconds in (3, 4):
        text = rendered("-f", str(ROOT / "helm/examples/production.yaml"), f"--set=settings.proof_validity_s={seconds}")
        template_of = of_kind(documents(text), "StatefulSet")["spec"]["template"]
        sums.add(template_of["metadata"]["annotations"]["checksum/settings"])
    assert len(sums) == 2


def test_probes_mean_ready_fresh_proofs_and_a_loop_that_turns():
    text = rendered("-f", str(ROOT / "helm/examples/production.yaml"))
    broker = of_kind(documents(text), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    paths = {probe: broker[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    prefix = "/admin/v2/brokers"
    assert paths == {"startup": f"{prefix}/ready", "readiness": f"{prefix}/health", "liveness": f"{prefix}/live"}


async def test_what_helm_test_does_works_at_a_broker(tmp_path: Path):
    text = rendered("-f", str(ROOT / "helm/examples/try.yaml"))
    (script,) = of_kind(documents(text), "Pod", "test")["spec"]["containers"][0]["args"]
    async with Broker(Idle(), log=f"sqlite:{tmp_path / 'log.db'}", advertised="127.0.0.1:0") as broker:
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        environment["LOADMANAGER_ADMIN_URL"] = broker.node.registration.admin_url
        for _ in range(2):  # a release can be tested again
            run = await asyncio.to_thread(
                subprocess.run, ["sh", "-ec", script], env=environment, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0, run.stderr
            assert run.stdout.count(broker.name) >= 2
