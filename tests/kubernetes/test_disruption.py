"""Brokers that are taken away under load: by drains of nodes, by force, by fewer replicas."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kubernetes.release import BUNDLES, NAME, TRAFFIC, Release, assert_clean, wait_for

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]


def drain(release: Release, node: str) -> None:
    selector = f"--pod-selector=app.kubernetes.io/instance={NAME}"
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
    release.cluster.kubectl("drain", node, selector, *options)


def evict(release: Release, pod: str, tmp: str) -> str:
    """Ask for the eviction; what the API server objects, "" if nothing."""
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    run = release.cluster.kubectl("create", "--raw", path, "-f", tmp, check=False)
    return run.stderr if run.returncode else ""


def test_an_eviction_is_refused_while_another_broker_is_away(installed: Release):
    refused = []
    for pod in (f"{NAME}-0", f"{NAME}-1"):
        file = installed.folder / "eviction.json"
        meta = {"name": pod, "namespace": installed.namespace}
        file.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}))
        refused.append(evict(installed, pod, str(file)))
    assert not refused[0]
    assert "violate the pod's disruption budget" in refused[1]
    installed.rolled_out()


def test_no_request_fails_while_two_nodes_are_drained_at_once(installed: Release):
    where = {pod["spec"]["nodeName"] for pod in installed.brokers()}
    assert len(where) == 3, "brokers are spread over nodes"
    nodes = sorted(where)[:2]
    with installed.load() as load:
        try:
            with ThreadPoolExecutor() as threads:
                list(threads.map(lambda node: drain(installed, node), nodes))
            wait_for(lambda: len(installed.brokers()) == 3, "three brokers")
            installed.rolled_out()
            assert {pod["spec"]["nodeName"] for pod in installed.brokers()} == where - set(nodes)
            load.run_on(60)
            figures = load.finish()
        finally:
            for node in nodes:
                installed.cluster.kubectl("uncordon", node)
    assert_clean(figures)


def test_nothing_is_lost_when_a_broker_is_deleted_by_force(installed: Release):
    def owners() -> list[object]:
        return installed.loadmanager("bundles", "list", "--namespace", TRAFFIC, "--state", "assigned")

    with installed.load() as load:
        victim = installed.brokers()[1]
        installed.kubectl("delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force")
        load.run_on(300)
        wait_for(lambda: len(owners()) == BUNDLES, "every bundle is owned again")
        installed.rolled_out()
        assert installed.brokers()[1]["metadata"]["uid"] != victim["metadata"]["uid"]
        load.run_on(60)
        figures = load.finish()
    assert_clean(figures)


def test_no_request_fails_when_brokers_are_scaled_up_and_down(installed: Release):
    def count() -> int:
        return len(installed.loadmanager("brokers", "list"))

    with installed.load() as load:
        for replicas in (8, 3):
            installed.kubectl("scale", "statefulset", NAME, f"--replicas={replicas}")
            installed.rolled_out()
            wait_for(lambda: len(installed.brokers()) == replicas, f"{replicas} pods")  # noqa: B023
            assert count() == replicas
            load.run_on(120)
        figures = load.finish()
    assert_clean(figures)
