"""What people read when something is missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.release import NAME, Release, wait_for

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]


def waiting(release: Release) -> list[dict[str, Any]]:
    states = [each["state"] for pod in release.brokers() for each in pod["status"].get("containerStatuses", ())]
    return [each["waiting"] for each in states if "waiting" in each]


def test_pods_name_the_missing_secret_and_start_once_it_is_there(release: Release):
    values = release.values()
    values["check"] = {"enabled": False}
    values["coordination"]["secret"] = "absent"
    run = release.deploy("install", values, "--timeout", "10s", check=False)
    assert run.returncode != 0
    assert [each["reason"] for each in waiting(release)] == ["CreateContainerConfigError"] * 3
    assert all('secret "absent" not found' in each["message"] for each in waiting(release))
    release.kubectl("create", "secret", "generic", "absent", "--from-literal=zookeeper={}")
    release.rolled_out()


def test_check_names_the_kafka_that_is_not_there_before_the_install(release: Release):
    values = release.values()
    values["log"]["address"] = "kafka://localhost:9"
    run = release.deploy("install", values, check=False)
    assert run.returncode != 0
    assert "pre-install" in run.stderr
    assert not release.brokers()
    told = release.kubectl("logs", f"job/{NAME}-check").stdout
    assert "localhost:9" in told
    assert "Traceback" not in told


def test_upgrade_without_an_image_leaves_the_other_brokers_running(release: Release):
    release.deploy("install", release.values())
    values = release.values() | {"image": {"repository": "nobody/has-it"}, "check": {"enabled": False}}
    run = release.deploy("upgrade", values, "--timeout", "20s", check=False)
    assert run.returncode != 0
    wait_for(lambda: [each["reason"] for each in waiting(release)] == ["ErrImagePull"], "one pod without its image")
    assert len(release.loadmanager("brokers", "list")) == 2
