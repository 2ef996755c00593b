"""The kubelet that runs pods as processes does what other tests rely on: order, probes, hooks, ends, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.release import Release, wait_for

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(2_400), pytest.mark.xdist_group("kubernetes")]
SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
LOGS = "trap 'echo term >>/all/log; exit 0' TERM; echo {name} >>/all/log; while :; do sleep 0.1; done"


def container(name: str, script: str, **more: Any) -> dict[str, Any]:
    mounts = [{"name": "all", "mountPath": "/all"}]
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], "securityContext": SECURITY,
            "volumeMounts": mounts, **more}  # fmt: skip


def run(release: Release, *containers: dict[str, Any], **more: Any) -> None:
    release.apply({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": release.namespace},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "automountServiceAccountToken": False,
            "containers": list(containers),
            "volumes": [{"name": "all", "persistentVolumeClaim": {"claimName": "counters"}}],
            **more,
        },
    })  # fmt: skip


def status(release: Release) -> dict[str, Any]:
    return release.get("pod", "one")["status"]


def ready(release: Release) -> bool:
    conditions = {each["type"]: each["status"] for each in status(release).get("conditions", ())}
    return conditions.get("Ready") == "True"


def log(release: Release) -> list[str]:
    file = release.folder / "log"
    return file.read_text().split() if file.exists() else []


def test_init_containers_and_sidecars_begin_first_sidecars_end_last(release: Release):
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >>/all/log"]}}}
    first = container("first", "echo first >>/all/log")
    script = "trap 'echo side-term >>/all/log; exit 0' TERM; echo side >>/all/log; while :; do sleep 0.1; done"
    probe = {"exec": {"command": ["grep", "-q", "side", "/all/log"]}, "periodSeconds": 1}
    side = container("side", script, restartPolicy="Always", startupProbe=probe)
    run(release, container("main", LOGS.format(name="main"), lifecycle=hook), initContainers=[first, side])
    wait_for(lambda: ready(release) and "main" in log(release), "the pod is ready")
    release.kubectl("delete", "pod", "one")
    assert log(release) == ["first", "side", "main", "hook", "term", "side-term"]


def test_a_container_that_does_not_end_is_killed_after_the_grace_period(release: Release):
    run(release, container("main", "trap '' TERM; while :; do sleep 0.1; done"), terminationGracePeriodSeconds=1)
    wait_for(lambda: ready(release), "the pod is ready")
    release.kubectl("delete", "pod", "one", "--timeout=30s")


def test_container_is_restarted_when_it_or_its_liveness_probe_fails(release: Release):
    probe = {"exec": {"command": ["test", "-e", "/all/alive"]}, "periodSeconds": 1, "failureThreshold": 2}
    script = "touch /all/alive; echo began >>/all/log; test -e /all/fixed || exit 3; " + LOGS.format(name="main")
    run(release, container("main", script, livenessProbe=probe))
    wait_for(lambda: log(release).count("began") > 1, "it is started again")
    (release.folder / "fixed").touch()
    wait_for(lambda: "main" in log(release) and ready(release), "it runs")
    assert status(release)["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    before = log(release).count("began")
    (release.folder / "alive").unlink()
    wait_for(lambda: log(release).count("began") > before, "its liveness probe has it started again")
    assert "term" in log(release)


def test_readiness_follows_its_probe_and_nothing_is_restarted(release: Release):
    probe = {"exec": {"command": ["test", "-e", "/all/open"]}, "periodSeconds": 1, "failureThreshold": 1}
    run(release, container("main", LOGS.format(name="main"), readinessProbe=probe))
    wait_for(lambda: status(release).get("phase") == "Running", "it runs")
    assert not ready(release)
    (release.folder / "open").touch()
    wait_for(lambda: ready(release), "it is ready")
    (release.folder / "open").unlink()
    wait_for(lambda: not ready(release), "it is not ready any more")
    assert status(release)["containerStatuses"][0]["restartCount"] == 0


def test_a_process_is_neither_root_nor_may_it_write_or_gain_rights(release: Release):
    script = "id -u; touch /file || echo read-only; touch /tmp/file || echo read-only; "
    script += "grep -E 'CapEff|NoNewPrivs' /proc/self/status; exit 7"
    run(release, container("main", script), restartPolicy="Never")
    wait_for(lambda: status(release).get("phase") == "Failed", "it has ended")
    told = release.kubectl("logs", "one").stdout.split()
    assert told[0] == "10001"
    assert told.count("read-only") == 2
    assert told[-4:] == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
    assert status(release)["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
