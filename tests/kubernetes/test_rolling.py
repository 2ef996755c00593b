"""Upgrades under load: the StatefulSet's own controller rolls the brokers, one after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.kubernetes.release import NAME, Release, assert_clean

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]


def ready_since(pod: dict[str, Any]) -> str:
    return next(each["lastTransitionTime"] for each in pod["status"]["conditions"] if each["type"] == "Ready")


def assert_rolled_one_by_one(release: Release, tag: str, before: list[dict[str, Any]]) -> None:
    """Each broker was made when the one after it was ready."""
    pods = release.brokers()
    assert [pod["spec"]["containers"][0]["image"] for pod in pods] == [f"counters:{tag}"] * 3
    assert not {pod["metadata"]["uid"] for pod in pods} & {pod["metadata"]["uid"] for pod in before}
    for pod, later in pairwise(pods):
        assert pod["metadata"]["creationTimestamp"] >= ready_since(later)


def test_no_request_fails_while_a_release_is_upgraded_and_rolled_back(installed: Release):
    values = installed.values()
    values["image"]["tag"] = "2"
    values["settings"]["balancing_interval_s"] = 60
    with installed.load() as load:
        first = installed.brokers()
        installed.deploy("upgrade", values)
        second = installed.brokers()
        assert_rolled_one_by_one(installed, "2", first)
        assert "60" in str(installed.loadmanager("config", "get", "balancing_interval_s"))
        installed.helm("rollback", NAME, "--wait", "--timeout", "300s")
        assert_rolled_one_by_one(installed, "1", second)
        load.run_on(60)
        figures = load.finish()
    assert_clean(figures)
