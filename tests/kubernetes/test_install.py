"""A release in a namespace that enforces `restricted`: brokers, the check before them, `helm test`, the end."""

from __future__ import annotations

import pytest

from stack.kubernetes.cluster import NODES
from tests.kubernetes.release import NAME, Release, wait_for

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]


def test_a_release_is_installed_tested_and_taken_away(release: Release):
    release.deploy("install", release.values())
    listed = release.loadmanager("brokers", "list")
    names = {f"{NAME}-{i}.{NAME}-brokers.{release.namespace}.svc:8080" for i in range(3)}
    assert {each["broker"] for each in listed} == names
    zones = {pod["metadata"]["name"]: NODES[pod["spec"]["nodeName"]] for pod in release.brokers()}
    assert {each["broker"].partition(".")[0]: each["failure_domain"] for each in listed} == zones
    told = release.helm("test", NAME, "--logs").stdout
    assert told.count(f"{NAME}-brokers.{release.namespace}.svc") >= 2, told
    logs = [release.kubectl("logs", pod["metadata"]["name"]).stdout for pod in release.brokers()]
    release.helm("uninstall", NAME, "--wait", "--timeout", "300s")
    wait_for(lambda: not release.brokers(), "the brokers have left")  # Helm waits for the StatefulSet only
    left = release.get("all,configmaps,serviceaccounts,poddisruptionbudgets,networkpolicies,secrets")["items"]
    names = {each["metadata"]["name"] for each in left}
    assert names <= {"default", "kube-root-ca.crt", f"{NAME}-test"}, names
    assert all("ready" in each for each in logs)
    whole = list((release.cluster.kubelet.data_dir / "pods").glob(f"{release.namespace}_{NAME}-?_*/broker.log"))
    assert len(whole) == 3
    assert all("leaving: " in file.read_text() for file in whole)
