"""A release of the chart in a namespace of its own, whose brokers are the counters' service; and load on it."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadmanager.demo.counter.load import Snapshot
from stack.kubernetes.cluster import Cluster
from stack.kubernetes.kubelet import images
from stack.kubernetes.kubelet.sandbox import Mount, Sandbox

CHART = Path(__file__).parents[2] / "helm" / "loadmanager"
NAME = "loadmanager"
"""Of the release: the one whose Services would set variables that look like settings."""
TRAFFIC = "demo/counters"
BUNDLES = 16
RATE_S = 30
BUDGET_S = 20
"""Of a request: one core and a half run brokers, load, Kafka and a control plane, mostly beside other tests."""
USER = 10_001
WAIT_S = 300.0


def wait_for(holds: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Until it holds; AssertionError with `what` if that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


class Load:
    """The load generator, in a file system like that of a pod of the namespace."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def figures(self) -> Snapshot:
        """The newest."""
        lines = [line for line in self._output.read_bytes().split(b"\n")[:-1] if line]
        return msgspec.json.decode(lines[-1], type=Snapshot) if lines else Snapshot()

    def run_on(self, requests: int) -> None:
        """Until so many more have been answered."""
        target = self.figures().ok + requests
        wait_for(lambda: self.figures().ok >= target, f"{requests} more answers; it has {self.figures()}")

    def finish(self) -> Snapshot:
        """End it, and have the file audited."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        return self.figures()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


class Release:
    """`helm` and `kubectl` for one release. `folder` is on the volume that its pods share."""

    def __init__(self, cluster: Cluster, folder: Path, kafka: str, zookeeper: str) -> None:
        self.cluster = cluster
        self.namespace = f"shop-{uuid.uuid4().hex[:6]}"
        self.folder = folder
        self.store = folder / "counters.db"
        self._values = folder / "values.yaml"
        self._kafka = kafka
        self._zookeeper = zookeeper

    def create_namespace(self) -> None:
        """It enforces the level `restricted` of Pod Security; with the volume."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}})
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self.folder.chmod(0o777)
        self.apply({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.namespace},
            "spec": {**shared, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(self.folder)},
                     "claimRef": {"namespace": self.namespace, "name": "counters"}},
        })  # fmt: skip
        self.apply({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "counters", "namespace": self.namespace},
            "spec": {**shared, "volumeName": self.namespace, "resources": {"requests": {"storage": "1Gi"}}},
        })  # fmt: skip

    def remove(self) -> None:
        """Take all of it away."""
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        self.kubectl("delete", "namespace", self.namespace, "--wait=false", check=False)
        self.kubectl("delete", "persistentvolume", self.namespace, "--wait=false", check=False)

    def apply(self, manifest: Mapping[str, object]) -> None:
        """Create an object, or change it."""
        self.cluster.kubectl("apply", "-f", "-", given=yaml.safe_dump(dict(manifest)))

    # --- helm and kubectl

    def values(self) -> dict[str, Any]:
        """Those of a release that works; change them before you install."""
        return {
            "image": {"repository": "counters", "tag": "1"},
            "host": "tests.kubernetes.counters:make_host",
            "urls": {"http": "http://$(POD_ADDRESS):9000"},
            "servicePorts": [{"name": "counters", "port": 9000}],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "COUNTERS", "value": "/counters/counters.db"},
            ],
            "volumes": [{"name": "counters", "persistentVolumeClaim": {"claimName": "counters"}}],
            "volumeMounts": [{"name": "counters", "mountPath": "/counters"}],
            "log": {"address": f"kafka://{self._kafka}"},
            "coordination": {"address": f"zookeeper://{self._zookeeper}/{self.namespace}"},
            "cluster": self.namespace,
            "insecure": True,
            "settings": {"development": True, "replication": 1, "topic_prefix": f"{self.namespace}."},
            "drain": {"timeoutSeconds": 30},
            "terminationGracePeriodSeconds": 45,
        }

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.helm("--namespace", self.namespace, *arguments, check=check)

    def deploy(
        self, command: str, values: Mapping[str, Any], *more: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`helm install` or `upgrade`, until everything is ready."""
        self._values.write_text(json.dumps(values))
        waiting = ("--wait", "--timeout", "300s")
        return self.helm(command, NAME, str(CHART), "-f", str(self._values), *waiting, *more, check=check)

    def kubectl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, check=check)

    def get(self, *arguments: str) -> dict[str, Any]:
        return self.cluster.get("--namespace", self.namespace, *arguments)

    def brokers(self) -> list[dict[str, Any]]:
        """The pods of brokers, in the order of their names."""
        return self.get("pods", "-l", "app.kubernetes.io/component=broker")["items"]

    def rolled_out(self) -> None:
        """Until the StatefulSet has what it should."""
        self.kubectl("rollout", "status", f"statefulset/{NAME}", "--timeout=300s")

    # --- clients of the namespace

    @property
    def url(self) -> str:
        """Of the Service."""
        return f"http://{NAME}.{self.namespace}.svc:8080"

    def loadmanager(self, *arguments: str) -> Any:
        """What the command line says, asked from within the namespace."""
        run = subprocess.run(
            self._sandbox().command(["loadmanager", "--admin-url", self.url, "-o", "json", *arguments]),
            env=dict(_image().environment), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        return json.loads(run.stdout) if run.stdout.strip() else None

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Load on the counters, which are created if need be; ended at the latest with the context."""
        self.loadmanager("namespaces", "create", TRAFFIC, "--bundles", str(BUNDLES))
        arguments = ["python", "-m", "loadmanager.demo.counter.load", "--json"]
        arguments += ["--rate", str(RATE_S), "--budget", str(BUDGET_S)]
        arguments += ["--namespace", TRAFFIC, "--store", "/counters/counters.db", "--admin", self.url]
        output = self.folder / "load.json"
        with output.open("wb") as sink, (self.folder / "load.err").open("wb") as errors:
            process = subprocess.Popen(
                self._sandbox().command(arguments),
                env=dict(_image().environment), stdin=subprocess.PIPE, stdout=sink, stderr=errors,
            )  # fmt: skip
        load = Load(process, output)
        try:
            load.run_on(RATE_S)
            yield load
        finally:
            load.kill()

    def _sandbox(self) -> Sandbox:
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        own = [Mount(folder, str(folder), read_only=True) for folder in _image().folders]
        return Sandbox(
            root,
            self.cluster.kubelet.data_dir / "names" / self.namespace,
            (*own, Mount(self.folder, "/counters")),
            USER,
            USER,
            "/tmp",
        )


def _image() -> images.Image:
    found = images.find("counters:1")
    assert found is not None
    return found


def assert_clean(figures: Snapshot, *, failed: int = 0) -> None:
    """No request failed, none was lost or doubled; prints the figures."""
    print(f"ok {figures.ok}, late {figures.late}, failed {figures.failed}, worst {figures.worst_ms:.0f} ms")
    assert figures.ok > 0
    assert (figures.failed, figures.lost, figures.doubled) == (failed, 0, 0), figures.examples
