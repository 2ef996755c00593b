"""What a container is started with, and where names lead: the pure parts of the kubelet."""

from __future__ import annotations

from typing import Any

import pytest

from stack.kubernetes.kubelet import images
from stack.kubernetes.kubelet.environment import Misconfigured, command, environment, expanded, service_links
from stack.kubernetes.kubelet.names import hosts

POD: dict[str, Any] = {
    "metadata": {"name": "lm-0", "namespace": "shop", "uid": "u", "labels": {"zone.io/z": "a"}, "annotations": {}},
    "spec": {"nodeName": "node-a", "hostname": "lm-0", "subdomain": "lm-brokers"},
    "status": {"podIP": "127.9.0.1", "phase": "Running"},
}
CONFIG = {"kind": "ConfigMap", "data": {"A": "1", "B": "$(A)"}}
SECRET = {"kind": "Secret", "data": {"kafka": "e30="}}
OBJECTS = {("configmaps", "c"): CONFIG, ("secrets", "s"): SECRET, ("secrets", "none"): None}


def service(name: str, address: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    meta = {"name": name, "namespace": "shop"}
    return {"metadata": meta, "spec": {"clusterIP": address, "ports": ports, "selector": {"zone.io/z": "a"}, **spec}}


def env(*variables: dict[str, Any], **more: Any) -> dict[str, str]:
    return environment({"env": list(variables), **more}, POD, OBJECTS, {"HOME": "/tmp"})


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def key(kind: str, name: str, entry: str, **more: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {f"{kind}KeyRef": {"name": name, "key": entry, **more}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "lm-0"),
        ("metadata.namespace", "shop"),
        ("metadata.labels['zone.io/z']", "a"),
        ("metadata.labels['other']", ""),
        ("spec.nodeName", "node-a"),
        ("status.podIP", "127.9.0.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str):
    assert env(field(path)) == {"HOME": "/tmp", "X": value}


def test_variables_come_from_objects_and_earlier_variables():
    found = env({"name": "C", "value": "$(A)-$(NONE)-$$(A)"}, key("secret", "s", "kafka"),
                envFrom=[{"configMapRef": {"name": "c"}, "prefix": ""}])  # fmt: skip
    assert found == {"HOME": "/tmp", "A": "1", "B": "$(A)", "C": "1-$(NONE)-$(A)", "X": "{}"}


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        (key("secret", "none", "kafka"), 'secret "none" not found'),
        (key("secret", "s", "other"), "couldn't find key other in Secret shop/s"),
        (key("configMap", "c", "other"), "couldn't find key other in ConfigMap shop/c"),
        (field("spec.containers"), "not known here"),
    ],
)
def test_what_is_missing_is_named(variable: dict[str, Any], told: str):
    with pytest.raises(Misconfigured, match=told):
        env(variable)


def test_what_may_be_missing_is_left_out():
    assert env(key("secret", "s", "other", optional=True), key("secret", "none", "x", optional=True)) == {
        "HOME": "/tmp"
    }


def test_a_pods_own_addresses_become_its_address():
    container = {"command": ["run"], "args": ["--listen=0.0.0.0:80", "--host=127.0.0.1", "--x=10.0.0.0.0", "$(N)"]}
    given = command(container, ["image"], {"N": "n"}, "127.9.0.1")
    assert given == ("run", "--listen=127.9.0.1:80", "--host=127.9.0.1", "--x=10.0.0.0.0", "n")
    everywhere = command({"args": ["--listen=:80", "--listen=[::]:80", "--x=a:80", ":80"]}, [], {}, "127.9.0.1")
    assert everywhere == ("--listen=127.9.0.1:80", "--listen=127.9.0.1:80", "--x=a:80", ":80")
    assert env({"name": "X", "value": "http://127.0.0.1:1,127.0.0.11"})["X"] == "http://127.9.0.1:1,127.0.0.11"
    assert command({"args": ["a"]}, ["image"], {}, "") == ("image", "a")
    assert expanded("$$$(A)", {"A": "a"}) == "$a"


def test_services_with_an_address_set_variables():
    found = service_links([service("load-manager", "127.1.0.1"), service("headless", "None")])
    assert found["LOAD_MANAGER_SERVICE_HOST"] == "127.1.0.1"
    assert found["LOAD_MANAGER_PORT"] == found["LOAD_MANAGER_PORT_80_TCP"] == "tcp://127.1.0.1:80"
    assert not [name for name in found if name.startswith("HEADLESS")]


def test_names_lead_to_services_and_to_pods_of_those_without_an_address():
    services = [service("lm", "127.1.0.1"), service("lm-brokers", "None", publishNotReadyAddresses=True)]
    lines = hosts("shop", services, [POD]).splitlines()
    assert lines[1] == "127.1.0.1 lm.shop.svc.cluster.local lm.shop.svc lm.shop lm"
    assert lines[2].split()[:3] == ["127.9.0.1", "lm-0.lm-brokers.shop.svc.cluster.local", "lm-0.lm-brokers.shop.svc"]
    services[1]["spec"]["publishNotReadyAddresses"] = False
    assert len(hosts("shop", services, [POD]).splitlines()) == 2
    assert "lm.shop lm" not in hosts("other", services, [POD])


@pytest.mark.parametrize("name", ["loadmanager", "loadmanager:1.2", "loadmanager@sha256:0", "loadmanager:1@sha256:0"])
def test_images_are_found_by_their_repository(name: str):
    found = images.find(name)
    assert found is not None
    assert found.entrypoint == ("loadmanager",)
    assert images.find(f"registry.example:5000/{name}") is None
