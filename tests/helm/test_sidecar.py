"""The broker beside a service in any language, as a native sidecar of the pod."""

from __future__ import annotations

from typing import Any

import pytest

from loadmanager_api.cli.main import main
from tests.helm.rendering import broker_of, of_example, of_kind

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    return of_kind(of_example("sidecar"), "StatefulSet")["spec"]["template"]["spec"]


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def with_container(**more: str) -> dict[str, Any]:
    """The service's container, with other fields."""
    values = [f"--set-json=sidecar.containers[0].{name}={value}" for name, value in more.items()]
    pod = of_kind(of_example("sidecar", *values), "StatefulSet")["spec"]["template"]["spec"]
    return pod["containers"][0]


def test_broker_starts_before_the_service_and_ends_after_it(pod: dict[str, Any]):
    (broker,) = pod["initContainers"]
    assert broker["restartPolicy"] == "Always"
    assert [each["name"] for each in pod["containers"]] == ["rooms"]


def test_broker_does_not_hold_up_the_service(pod: dict[str, Any]):
    """Kubernetes starts the next container when the startup probe has passed; the broker is ready when one attached."""
    (broker,) = pod["initContainers"]
    paths = {name: value["httpGet"]["path"] for name, value in broker.items() if name.endswith("Probe")}
    assert paths == {"readinessProbe": "/admin/v2/brokers/health", "livenessProbe": "/admin/v2/brokers/live"}


def test_the_command_line_knows_what_the_broker_is_called_with(pod: dict[str, Any]):
    command, *given = pod["initContainers"][0]["args"]
    known = {option for each in main.get_command(None, command).params for option in each.opts}  # pyright: ignore
    assert {each.partition("=")[0] for each in given} <= known
    assert "--host" not in {each.partition("=")[0] for each in given}


def test_service_knows_where_the_broker_is_and_shares_its_secret(pod: dict[str, Any]):
    (broker,), (service,) = pod["initContainers"], pod["containers"]
    given = dict(each.removeprefix("--").partition("=")[::2] for each in broker["args"][1:])
    told = environment(service)
    assert told["LOADMANAGER_SIDECAR"] == f"http://{given['control']}"
    assert told["LOADMANAGER_SIDECAR_SECRET_FILE"] == given["secret-file"]
    assert told["POD_ADDRESS"] == environment(broker)["POD_ADDRESS"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "sidecar")
    assert volume["emptyDir"]["medium"] == "Memory"
    for container in (broker, service):
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "sidecar")
        assert given["secret-file"].startswith(mount["mountPath"] + "/")
        assert not mount.get("readOnly")


def test_service_does_not_see_the_secrets_of_the_broker(pod: dict[str, Any]):
    service = pod["containers"][0]
    assert not {"LOADMANAGER_KAFKA", "LOADMANAGER_ZOOKEEPER"} & environment(service).keys()
    assert "envFrom" not in service
    assert {each["name"] for each in service["volumeMounts"]} == {"sidecar", "tmp"}


def test_another_port_reaches_both():
    manifests = of_example("sidecar", "--set", "sidecar.port=7171")
    pod = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert "--control=127.0.0.1:7171" in broker_of(manifests)["args"]
    assert environment(pod["containers"][0])["LOADMANAGER_SIDECAR"] == "http://127.0.0.1:7171"


def test_a_field_of_the_security_context_can_be_overwritten_alone():
    assert with_container(securityContext='{"readOnlyRootFilesystem": false}')["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_tmp_of_ones_own_counts():
    mounts = with_container(volumeMounts='[{"name": "scratch", "mountPath": "/tmp"}]')["volumeMounts"]
    assert [each["name"] for each in mounts if each["mountPath"] == "/tmp"] == ["scratch"]


def test_service_sees_only_its_own_tmp(pod: dict[str, Any]):
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tmp")
    assert mount["subPath"] == "rooms"


def test_a_broker_that_wants_certificates_is_probed_at_another_port():
    values = ("--set", "tls.clientCaSecret=ca,tls.clientRequired=true")
    broker = broker_of(of_example("sidecar", *values))
    probes = {name: value for name, value in broker.items() if name.endswith("Probe")}
    assert probes.keys() == {"readinessProbe", "livenessProbe"}
    assert {(each["httpGet"]["port"], each["httpGet"]["scheme"]) for each in probes.values()} == {("probes", "HTTP")}
    assert {"name": "probes", "containerPort": 8081} in broker["ports"]


def test_ports_of_the_service_belong_to_its_container(pod: dict[str, Any]):
    assert [each["name"] for each in pod["initContainers"][0]["ports"]] == ["admin"]
    assert [each["name"] for each in pod["containers"][0]["ports"]] == ["ws"]
