"""What the values give a pod, every pod gets: brokers, hooks, jobs, Spark's executors, the servers of `dev`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.rendering import containers, documents, fits, given, of_example, of_kind, pods, rendered

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
        }
    }
}
VALUES: dict[str, Any] = {
    "image": {"pullSecrets": ["registry", "mirror"]},
    "nodeSelector": {"pool": "apps", "gpu": True},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "tolerationSeconds": 1_000_000}, {"key": 1, "value": 2}],
    "affinity": AFFINITY,
    "priorityClassName": "high",
    "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ours/ca.crt"}, {"name": "LIMIT", "value": 1_000_000}],
    "volumes": [{"name": "ours", "configMap": {"name": "{{ .Release.Name }}-ours"}}],
    "volumeMounts": [{"name": "ours", "mountPath": "/etc/ours", "readOnly": True}],
}
HISTORY = ("--set", "history.enabled=true,history.claim=lake,history.replay.enabled=true")
MADE = {
    "production": {
        "",
        "-check",
        "-test",
        "-history-ingest",
        "-history-nightly",
        "-history-replay",
        "-history-executor",
    },
    "strimzi": {"", "-check", "-history-ingest", "-history-nightly"},
    "sidecar": {"", "-check"},
    "try": {"", "-test", "-kafka", "-zookeeper"},
}
"""The pods of each example, with the history."""


def made(example: str, *more: str) -> dict[str, dict[str, Any]]:
    """The pods of an example by what comes behind the release's name."""
    history = HISTORY if example == "production" else ()
    manifests = of_example(example, *history, *more)
    assert fits(manifests)
    return {name.removeprefix("lm-loadmanager"): pod for name, pod in pods(manifests)}


@pytest.mark.parametrize("example", MADE)
def test_every_pod_gets_what_the_values_give(example: str, tmp_path: Path):
    found = made(example, *given(VALUES, tmp_path))
    assert found.keys() == MADE[example]
    for name, pod in found.items():
        assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}], name
        assert pod["nodeSelector"] == {"pool": "apps", "gpu": "true"}, name
        assert pod["tolerations"][0] == {"key": "dedicated", "operator": "Exists", "tolerationSeconds": 1_000_000}, name
        assert pod["tolerations"][1] == {"key": "1", "value": "2"}, name
        assert pod["affinity"] == AFFINITY, name
        assert pod["priorityClassName"] == "high", name
        assert {"name": "ours", "configMap": {"name": "lm-ours"}} in pod["volumes"], name
        for container in containers(pod):
            if container["name"] == "rooms":  # the service has its own
                continue
            env = {each["name"]: each.get("value") for each in container["env"]}
            assert (env["SSL_CERT_FILE"], env["LIMIT"]) == ("/etc/ours/ca.crt", "1000000"), name
            assert VALUES["volumeMounts"][0] in container["volumeMounts"], name


@pytest.mark.parametrize("example", MADE)
def test_what_has_the_name_of_ours_counts_instead(example: str, tmp_path: Path):
    values = {
        "env": [{"name": "HOME", "value": "/scratch"}],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "scratch", "emptyDir": {}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    for name, pod in made(example, *given(values, tmp_path)).items():
        volumes = [each["name"] for each in pod["volumes"]]
        assert len(volumes) == len(set(volumes)), name
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}} in pod["volumes"], name
        for container in containers(pod):
            if container["name"] == "rooms":
                continue
            (home,) = (each for each in container["env"] if each["name"] == "HOME")
            assert home["value"] == "/scratch", name
            (at_tmp,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/tmp")
            assert at_tmp["name"] == "scratch", name


def test_pods_have_the_account_that_the_values_name():
    for name, pod in made("production", "--set", "serviceAccount.create=false,serviceAccount.name=theirs").items():
        assert pod["serviceAccountName"] == ("lm-loadmanager-history" if name == "-history-replay" else "theirs")


def test_the_driver_of_spark_has_the_annotations_of_the_account():
    values = ("--set-string", "serviceAccount.annotations.role=lake")
    for name in ("lm-loadmanager", "lm-loadmanager-history"):
        account = of_kind(of_example("history", *values), "ServiceAccount", name)
        assert account["metadata"]["annotations"] == {"role": "lake"}


# --- whom pods run as


@pytest.mark.parametrize("example", MADE)
def test_openshift_says_whom_pods_run_as(example: str):
    for name, pod in made(example, "--api-versions", "security.openshift.io/v1").items():
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, name


@pytest.mark.parametrize("openshift", [(), ("--api-versions", "security.openshift.io/v1")])
def test_values_say_whom_pods_run_as(openshift: tuple[str, ...], tmp_path: Path):
    values = {"podSecurityContext": {"runAsUser": 1_000_650_000, "runAsGroup": None, "fsGroup": 0}}
    for name, pod in made("production", *given(values, tmp_path), *openshift).items():
        assert pod["securityContext"] == {
            "runAsUser": 1_000_650_000,
            "fsGroup": 0,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name


# --- executors


def test_spark_makes_executors_of_it(tmp_path: Path):
    """By the code of Spark that makes them in a cluster."""
    text = rendered("-f", "examples/history.yaml", *given({**VALUES, "history": {"secret": "s3"}}, tmp_path))
    manifests = documents(text)
    template = tmp_path / "pod.yaml"
    template.write_text(of_kind(manifests, "ConfigMap", "executor")["data"]["pod.yaml"])
    ours = yaml.safe_load(template.read_text())
    assert fits([{**ours, "metadata": {"name": "executor", **ours["metadata"]}}]) == 1
    driver = dict(pods(manifests))["lm-loadmanager-history-replay"]
    conf = dict(
        each.removeprefix("--conf=").split("=", 1) for each in driver["containers"][0]["args"] if "--conf=" in each
    )
    place, _, file = conf["spark.kubernetes.executor.podTemplateFile"].rpartition("/")
    (mount,) = (each for each in driver["containers"][0]["volumeMounts"] if each["mountPath"] == place)
    (volume,) = (each for each in driver["volumes"] if each["name"] == mount["name"])
    assert file in of_kind(manifests, "ConfigMap", volume["configMap"]["name"])["data"]
    conf["spark.kubernetes.executor.podTemplateFile"] = str(template)
    del conf["spark.kubernetes.driver.pod.name"]  # it would be asked for
    pod, container = spark_executor(conf)
    wanted = ours["spec"]
    for field in wanted.keys() - {"containers", "volumes"}:
        assert pod["spec"][field] == wanted[field], field
    assert pod["metadata"]["labels"].items() >= ours["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["spark-role"] == "executor"  # by which the driver's policy lets it in
    assert all(each in pod["spec"]["volumes"] for each in wanted["volumes"])
    for field in ("env", "volumeMounts"):
        assert all(each in container[field] for each in wanted["containers"][0][field]), field
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert container["securityContext"] == wanted["containers"][0]["securityContext"]
    paths = [each["mountPath"] for each in container["volumeMounts"]]
    assert len(paths) == len(set(paths))


def spark_executor(conf: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and the container that Spark would ask for."""
    run = subprocess.run(
        [sys.executable, "-c", EXECUTOR, json.dumps(conf)], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    pod, container = json.loads(run.stdout.splitlines()[-1])
    return json.loads(pod), json.loads(container)


EXECUTOR = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
java, context = spark._jvm, spark.sparkContext._jsc.sc()
conf = java.org.apache.spark.SparkConf()
for name, value in json.loads(sys.argv[1]).items():
    conf.set(name, value)
k8s, none = java.org.apache.spark.scheduler.cluster.k8s, getattr(java.scala, "None$").__getattr__("MODULE$")
wanted = java.org.apache.spark.deploy.k8s.KubernetesExecutorConf(conf, "spark-1", "1", none, 0)
client = java.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
profile = context.resourceProfileManager().defaultResourceProfile()
made = k8s.KubernetesExecutorBuilder().buildFromFeatures(wanted, context.env().securityManager(), client, profile).pod()
as_json = java.io.fabric8.kubernetes.client.utils.Serialization.asJson
print(json.dumps([as_json(made.pod()), as_json(made.container())]))
"""


def test_pull_secrets_of_an_umbrella_chart_count_beside_its_own(tmp_path: Path):
    values = {
        "image": {"pullSecrets": ["own"]},
        "global": {"imagePullSecrets": ["own", "shared", {"name": "mirror"}], "storageClass": "of another chart"},
    }
    for name, pod in made("production", *given(values, tmp_path)).items():
        assert pod["imagePullSecrets"] == [{"name": "own"}, {"name": "shared"}, {"name": "mirror"}], name
