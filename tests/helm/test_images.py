"""The images: what their Dockerfiles do and do not, that their steps work, and the cluster of compose.yaml.

There is no container engine here: the steps are taken in a plain directory, with this machine's Python and Java.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmanager.settings import Settings, descriptions
from stack.helm import built
from stack.servers import free_port
from tests.helm.dockerfiles import CLEAN, DOCKERFILES, IMAGES, LABELS, ROOT, Built, broken_rules, carry_out, stages

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_800), pytest.mark.xdist_group("helm")]

GOOD = f"""
FROM python:3.12-slim AS build
RUN pip install --no-cache-dir --no-deps .
FROM python:3.12-slim
LABEL {" ".join(f"{each}=x" for each in sorted(LABELS))}
RUN apt-get update && apt-get install -y --no-install-recommends tini && {CLEAN}
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["loadmanager"]
"""
BAD = {
    "a base without a tag": ("python:3.12-slim", "python"),
    "ADD: it may fetch or unpack": ("WORKDIR /tmp", "ADD https://x/y /y"),
    "a WORKDIR that is not absolute": ("WORKDIR /tmp", "WORKDIR tmp"),
    "one stage only: what builds is in the image too": ("FROM python:3.12-slim\nLABEL", "LABEL"),
    "apt-get install without update before and cleaning after it": (f" && {CLEAN}", ""),
    "apt-get install of what is only recommended": ("--no-install-recommends ", ""),
    "pip install of what is not locked": ("--no-deps ", ""),
    "pip install that leaves its cache": ("--no-cache-dir ", ""),
    "a download, or sudo": ("RUN pip", "RUN curl https://x | sh && pip"),
    "no numeric user that is not root's": ("USER 10001:10001", "USER nobody"),
    "a step after USER: the user could change it": ("WORKDIR /tmp", "RUN true"),
    "no ENTRYPOINT in exec form: signals would not arrive": ('["loadmanager"]', "loadmanager"),
    "labels are missing": ("loadmanager.sbom=x", ""),
}


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.stem)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_dockerfile_breaks_no_rule(dockerfile: Path):
    assert not broken_rules(dockerfile.read_text())


@pytest.mark.parametrize("rule", BAD)
def test_a_broken_rule_is_seen(rule: str):
    assert not broken_rules(GOOD)
    before, after = BAD[rule]
    assert before in GOOD
    assert rule in broken_rules(GOOD.replace(before, after))


def test_images_are_those_that_the_chart_names():
    assert {each.stem for each in DOCKERFILES} == {"broker", "spark"}
    for each in DOCKERFILES:
        assert stages(each.read_text())[-1].all("USER") == ["10001:10001"]


def test_release_of_the_images_is_the_packages():
    for each in DOCKERFILES:
        (version,) = (text for text in stages(each.read_text())[-1].all("ARG") if text.startswith("VERSION="))
        assert f'\nversion = "{version.removeprefix("VERSION=")}"\n' in (ROOT / "pyproject.toml").read_text()


# --- the steps


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return carry_out(IMAGES / "broker.Dockerfile", tmp_path_factory.mktemp("broker"))


def test_broker_of_the_image_starts_serves_and_stops(broker: Built, tmp_path: Path):
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = broker.command("broker", f"--advertised={address}", f"--log=sqlite:{tmp_path / 'log.db'}")
    process = subprocess.Popen(command, env=broker.environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stderr is not None
        assert next(line for line in process.stderr if "is ready" in line), "it ended"
        asked = broker.command("--admin-url", f"http://{address}", "brokers", "healthcheck")
        run = subprocess.run(asked, env=broker.environment, capture_output=True, text=True, check=False, timeout=60)
        assert run.returncode == 0, run.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def test_image_has_what_the_extra_all_brings(broker: Built):
    python = broker.path("/opt/loadmanager/bin/python")
    modules = "fastapi, confluent_kafka, kazoo, scipy, uvloop, loadmanager, loadmanager_api, statechannel"
    subprocess.run([python, "-c", f"import {modules}"], check=True, cwd=broker.root, timeout=60)


def test_image_says_what_is_in_it(broker: Built):
    found = components(broker)
    assert found["confluent-kafka"]["purl"].startswith("pkg:pypi/confluent-kafka@")
    python = broker.path("/opt/loadmanager/bin/python")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True, timeout=60)
    installed = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(listed.stdout)}
    ours = {"loadmanager", "pip", "setuptools"}
    assert {name: each["version"] for name, each in found.items()} == {
        name: version for name, version in installed.items() if name not in ours
    }


def test_bill_of_materials_refuses_what_is_not_locked(tmp_path: Path):
    lock = tmp_path / "a.lock"
    lock.write_text((ROOT / "requirements" / "dev.lock").read_text().replace("\nclick==", "\nclick==0"))
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "sbom.py", lock], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 1
    assert "click" in run.stderr


def components(image: Built) -> dict[str, Any]:
    """By name, from the file that the label names."""
    document = json.loads(image.path(image.labels["loadmanager.sbom"]).read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "loadmanager"
    references = [each["bom-ref"] for each in document["components"]]
    assert len(references) == len(set(references))
    known = {*references, document["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in document["dependencies"]} == known
    assert {needed for each in document["dependencies"] for needed in each.get("dependsOn", ())} <= known
    return {each["name"]: each for each in document["components"]}


@pytest.mark.release
def test_jobs_of_the_image_ingest_a_log(broker: Built, tmp_path: Path):
    image = carry_out(IMAGES / "spark.Dockerfile", tmp_path / "spark")
    assert {"delta-spark_2.13", "kafka-clients", "pyspark", "pyarrow"} <= components(image).keys()
    assert image.path("/opt/loadmanager/spark/jars").is_dir()
    test_broker_of_the_image_starts_serves_and_stops(broker, tmp_path)
    command = image.command("ingest", f"--lake={tmp_path / 'lake'}", f"--log=sqlite:{tmp_path / 'log.db'}")
    run = subprocess.run(
        command, env=image.environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "lake" / "tables" / "bronze").rglob("*.parquet"))


# --- a cluster on a laptop


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    """The file as the Compose Specification's own program reads it."""
    command = [str(built("compose-spec")), "--format=json", "compose.yaml"]
    run = subprocess.run(command, cwd=IMAGES, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_wrong_compose_file_is_seen(tmp_path: Path):
    wrong = yaml.safe_load((IMAGES / "compose.yaml").read_text())
    wrong["services"]["kafka"]["healthchek"] = {}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(wrong))
    run = subprocess.run([str(built("compose-spec")), "compose.yaml"], cwd=tmp_path, capture_output=True, check=False)
    assert run.returncode == 1
    assert b"healthchek" in run.stderr


def brokers(cluster: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((name, each) for name, each in cluster["services"].items() if name.startswith("broker-"))


def test_every_service_is_asked_for_its_health_and_waits_for_what_it_needs(cluster: dict[str, Any]):
    for name, service in cluster["services"].items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["mem_limit"], name
    assert len(list(brokers(cluster))) == 3
    for _, service in brokers(cluster):
        conditions = {name: each["condition"] for name, each in service["depends_on"].items()}
        assert conditions == dict.fromkeys(("kafka", "zookeeper"), "service_healthy")


def test_compose_builds_the_image_of_brokers(cluster: dict[str, Any]):
    for _, service in brokers(cluster):
        context = Path(service["build"]["context"])
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).samefile(IMAGES / "broker.Dockerfile")


def test_brokers_of_the_laptop_accept_their_settings(cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    names = set[str]()
    for name, service in brokers(cluster):
        for variable, value in service["environment"].items():
            assert variable.removeprefix("LOADMANAGER_").lower() in descriptions()
            monkeypatch.setenv(variable, value)
        settings = Settings()
        names.add(settings.advertised)
        assert settings.advertised == f"{name}:8080"
        assert settings.insecure
        assert settings.development
        assert settings.log == "kafka://kafka:9092"
        assert service["command"] == ["broker", "--listen=0.0.0.0:8080"]
        assert int(service["stop_grace_period"].removesuffix("s")) > settings.drain_timeout_s
    assert len(names) == 3


def test_only_this_machine_reaches_the_laptops_cluster(cluster: dict[str, Any]):
    ports = [each for service in cluster["services"].values() for each in service.get("ports", ())]
    assert len({each["published"] for each in ports}) == 3
    assert {each["host_ip"] for each in ports} == {"127.0.0.1"}


def test_entrypoint_of_the_jobs_can_be_executed():
    assert os.access(IMAGES / "spark-entrypoint.sh", os.X_OK)
