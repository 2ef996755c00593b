"""Numbers and truth values of the values' files arrive as they are written, and as texts where Kubernetes wants texts.

Helm reads `1000000` of a file as floating point, and writes `1e+06`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loadmanager.settings import Settings
from tests.helm.rendering import broker_of, containers, documents, fits, given, of_kind, pods, rendered

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

MILLION, LONG, ID = 1_000_000, 8_388_608, 123_456_789_012
NUMBERS = {"a": MILLION, "b": ID, "c": True, "d": 1.5, "e": "text", "f": 0, "g": "1e3", "h": "true"}
WRITTEN = {"a": "1000000", "b": "123456789012", "c": "true", "d": "1.5", "e": "text", "f": "0", "g": "1e3", "h": "true"}
SETTINGS: dict[str, Any] = {
    "http_body_limit_bytes": LONG,
    "snapshot_records": MILLION,
    "group_retention_s": 604_800,
    "capacity": {"cpu": 4, "memory": 2_000_000},
    "balancing_review": True,
    "balancing_budget": 0.001,
}
VALUES: dict[str, Any] = {
    "settings": SETTINGS,
    **dict.fromkeys(("podAnnotations", "podLabels", "nodeSelector"), NUMBERS),
    "service": {"annotations": NUMBERS},
    "serviceAccount": {"annotations": NUMBERS},
    "ingress": {"annotations": NUMBERS},
    "check": {"annotations": NUMBERS},
    "env": [{"name": name, "value": value} for name, value in NUMBERS.items()],
    "metrics": {
        name: {"enabled": True, "labels": NUMBERS} for name in ("serviceMonitor", "prometheusRule", "dashboard")
    },
    "autoscaling": {"enabled": True, "bundles": MILLION},
    "history": {"enabled": True, "claim": "1000", "conf": {"spark.a": MILLION, "spark.b": True}, "secret": "7"},
    "resources": {"limits": {"memory": 1_073_741_824}},
    "gateway": {"enabled": True, "parentRefs": [{"name": "public", "port": MILLION}]},
    "containers": [{"name": "more", "image": "more:1", "env": [{"name": "y", "value": MILLION}]}],
    "test": {"tokenSecret": "1", "caSecret": "2"},
    "tls": {"certManager": {"enabled": False}, "secret": "3", "clientCaSecret": "4"},
    "log": {"secret": "5"},
    "coordination": {"secret": "6"},
    "image": {"pullSecrets": ["8"], "tag": "1000000"},
}


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    text = rendered("-f", "examples/production.yaml", *given(VALUES, tmp_path_factory.mktemp("values")))
    text = re.sub(r"(loadmanager\.json: ).*", r"\1…", text)
    assert not re.search(r"\d[eE]\+\d", text), "a number as Go writes it"
    return documents(text)


def test_kubernetes_takes_it(manifests: list[dict[str, Any]]):
    assert fits(manifests) > 10


def test_labels_and_annotations_are_texts_as_written(manifests: list[dict[str, Any]]):
    seen = 0
    for each in manifests:
        for about in (each["metadata"], each.get("spec", {}).get("template", {}).get("metadata", {})):
            for texts in (about.get("labels", {}), about.get("annotations", {})):
                assert all(isinstance(value, str) for value in texts.values()), each["metadata"]["name"]
                if "a" in texts:
                    seen += 1
                    assert texts.items() >= WRITTEN.items()
    assert seen == 9
    assert all(pod["nodeSelector"] == WRITTEN for _, pod in pods(manifests))


def test_variables_are_texts_as_written(manifests: list[dict[str, Any]]):
    for name, pod in pods(manifests):
        for container in containers(pod):
            env = {each["name"]: each.get("value") for each in container["env"]}
            assert env.items() >= ({"y": "1000000"} if container["name"] == "more" else WRITTEN).items(), name


def test_settings_arrive_as_they_are(manifests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    data = next(each["data"] for each in manifests if "LOADMANAGER_LOG" in each.get("data", {}))
    told = {f"LOADMANAGER_{name.upper()}": data[f"LOADMANAGER_{name.upper()}"] for name in SETTINGS}
    checked = of_kind(manifests, "Job", "check")["spec"]["template"]["spec"]["containers"][0]["args"]
    for name, value in told.items():
        monkeypatch.setenv(name, value)
        assert f"--set={name.removeprefix('LOADMANAGER_').lower()}={value}" in checked
    settings = Settings()
    assert {name: getattr(settings, name) for name in SETTINGS} == SETTINGS


def test_other_numbers_arrive_as_they_are(manifests: list[dict[str, Any]]):
    scaler = of_kind(manifests, "HorizontalPodAutoscaler")
    assert scaler["spec"]["metrics"][1]["pods"]["target"]["averageValue"] == "1000000"
    ingest = of_kind(manifests, "Deployment", "ingest")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--conf=spark.a=1000000", "--conf=spark.b=true"} <= set(ingest)
    assert broker_of(manifests)["image"].endswith(":1000000")
    assert broker_of(manifests)["resources"]["limits"]["memory"] == 1_073_741_824
    assert of_kind(manifests, "HTTPRoute")["spec"]["parentRefs"][0]["port"] == MILLION


def test_braces_of_others_stay_in_annotations(tmp_path: Path):
    """Vault's injector has templates of its own."""
    secret = '{{- with secret "db/creds" -}}x={{ .Data.x }}{{- end }}'
    values = {
        "podAnnotations": {"vault.hashicorp.com/agent-inject-template-db": secret},
        "podAnnotationTemplates": {"ours": "{{ .Release.Name }}"},
    }
    text = rendered("-f", "examples/production.yaml", *given(values, tmp_path))
    found = of_kind(documents(text), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    assert found.items() >= {"vault.hashicorp.com/agent-inject-template-db": secret, "ours": "lm"}.items()
