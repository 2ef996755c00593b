"""Clusters of IPv4, of IPv6 and of both, and of any DNS domain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadmanager.embedding.endpoints import listen
from loadmanager.settings import Settings
from loadmanager_api.http.guard import Names
from tests.helm.rendering import broker_of, of_example, of_kind

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

HISTORY = ("--set", "history.enabled=true,history.claim=lake,history.replay.enabled=true")
DOMAIN = ("--set", "clusterDomain=k8s.example")


def option(container: dict[str, Any], name: str) -> str:
    (found,) = (each.partition("=")[2] for each in container["args"] if each.startswith(f"--{name}="))
    return found


def test_nothing_is_of_one_family_or_domain(manifests: list[dict[str, Any]]):
    text = json.dumps([each for each in manifests if each["kind"] != "PrometheusRule"])
    assert "0.0.0.0" not in text
    assert "cluster.local" not in text


@pytest.mark.parametrize("example", ["production", "sidecar"])
def test_broker_listens_everywhere_unless_a_value_says_where(example: str):
    assert option(broker_of(of_example(example)), "listen") == ":8080"
    for where in ("0.0.0.0", "[::]"):
        address = option(broker_of(of_example(example, "--set-string", f"listen={where}")), "listen")
        assert address == f"{where}:8080"
        with listen(f"{address.rpartition(':')[0]}:0") as found:
            assert found.getsockname()[0] == where.strip("[]")


def test_ingest_answers_at_the_address_of_its_pod():
    (ingest,) = of_kind(of_example("history"), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert option(ingest, "metrics-host") == "$(POD_IP)"
    (address,) = (each["valueFrom"] for each in ingest["env"] if each["name"] == "POD_IP")
    assert address == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize("example", ["production", "try"])
def test_services_have_the_families_of_the_values(example: str):
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    for given in ({}, families, {"ipFamilyPolicy": "PreferDualStack"}):
        values = [f"--set-json=service.{name}={json.dumps(value)}" for name, value in given.items()]
        services = [each["spec"] for each in of_example(example, *HISTORY, *values) if each["kind"] == "Service"]
        assert len(services) > 2
        for each in services:
            assert {name: value for name, value in each.items() if name in families} == given


def test_names_have_the_domain_that_is_given():
    manifests = of_example("production", *DOMAIN)
    (address,) = (each["value"] for each in broker_of(manifests)["env"] if each["name"] == "POD_ADDRESS")
    assert address == "$(POD_NAME).lm-loadmanager-brokers.shop.svc.k8s.example"
    names = of_kind(manifests, "Certificate")["spec"]["dnsNames"]
    assert {"*.lm-loadmanager-brokers.shop.svc.k8s.example", "lm-loadmanager.shop.svc.k8s.example"} <= set(names)


@pytest.mark.parametrize("values", [(), DOMAIN])
def test_broker_knows_the_names_of_its_certificate(values: tuple[str, ...]):
    manifests = of_example("production", *values)
    (address,) = (each["value"] for each in broker_of(manifests)["env"] if each["name"] == "POD_ADDRESS")
    data = of_kind(manifests, "ConfigMap", "loadmanager")["data"]
    advertised = address.replace("$(POD_NAME)", "lm-loadmanager-0")
    names = Names(Settings(advertised=f"{advertised}:8080", http_hosts=data["LOADMANAGER_HTTP_HOSTS"]))
    certified = of_kind(manifests, "Certificate")["spec"]["dnsNames"]
    assert len(certified) == len(set(certified)) > 3
    assert certified[0].replace("*", "lm-loadmanager-0") == advertised
    for each in certified:
        assert names.know(each.replace("*", "lm-loadmanager-0").encode()), each
