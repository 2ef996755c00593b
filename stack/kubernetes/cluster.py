"""A whole cluster: the control plane, three nodes in three zones, and the tools that ask it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stack import helm
from stack.kubernetes.control_plane import (
    ApiServer,
    Certificates,
    ControllerManager,
    EtcdServer,
    GoServer,
    Scheduler,
)
from stack.kubernetes.kubelet.agent import Orders
from stack.kubernetes.kubelet.images import CHECKOUT
from stack.kubernetes.programs import built
from stack.process import Child
from stack.programs import StackError
from stack.servers import Server

NODES = {"node-a": "zone-a", "node-b": "zone-b", "node-c": "zone-c"}
TIMEOUT_S = 400.0
Object = dict[str, Any]


class KubeletServer(GoServer):
    """The nodes, as a process."""

    name = "kubelet"
    health = "https", "/healthz"

    def __init__(self, data_dir: Path, api: ApiServer, certificates: Certificates, network: int) -> None:
        super().__init__(data_dir)
        self._api = api
        self._certificates = certificates
        self._network = network

    def _launch(self) -> None:
        self._child = Child(self._command(), self.log_file, {"PYTHONPATH": str(CHECKOUT)})

    def _command(self) -> Sequence[str]:
        own = self._certificates
        orders = Orders(
            url=self._api.url,
            authority=str(own.authority),
            certificate=str(own.admin[0]),
            key=str(own.admin[1]),
            server_certificate=str(own.server[0]),
            server_key=str(own.server[1]),
            port=self.port,
            folder=str(self.data_dir),
            nodes=NODES,
            network=self._network,
        )
        return [sys.executable, "-m", "stack.kubernetes.kubelet", msgspec.json.encode(orders).decode()]


class Cluster:
    """Start it once; `kubectl` and `helm` ask it. Its data is below `data_dir`, also the logs of all pods."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        network = random.randint(10, 99)
        certificates = Certificates(data_dir / "certificates")
        self.kubeconfig = data_dir / "kubeconfig"
        self._etcd = EtcdServer(data_dir / "etcd")
        self.api = ApiServer(data_dir / "api", self._etcd, certificates, f"127.{network + 100}.0.0/16")
        self.controllers = ControllerManager(data_dir / "controllers", self.kubeconfig, certificates)
        self.scheduler = Scheduler(data_dir / "scheduler", self.kubeconfig)
        self.kubelet = KubeletServer(data_dir / "kubelet", self.api, certificates, network)
        self._certificates = certificates
        self._servers: tuple[Server, ...] = (self._etcd, self.api, self.controllers, self.scheduler, self.kubelet)

    def start(self) -> None:
        """Returns once everything answers, and nodes are registered. Builds what is missing. Raises StackError."""
        for server in self._servers:
            if server is self.controllers:
                self._certificates.write_kubeconfig(self.kubeconfig, self.api.url)
            server.start()

    def stop(self) -> None:
        """End it all; the pods' processes first. Idempotent."""
        for server in reversed(self._servers):
            server.stop()

    def kubectl(
        self, *arguments: str, given: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, with `given` as its input. Raises StackError, with what it said, if it fails and `check`."""
        return self._run([str(built("kubectl")), *arguments], given, check=check)

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Helm. Raises as `kubectl`."""
        return self._run([str(helm.built("helm")), *arguments], None, check=check)

    def get(self, *arguments: str) -> Object:
        """What `kubectl get` finds, as an object."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def environment(self) -> Mapping[str, str]:
        """For tools that ask this cluster."""
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "HELM_CACHE_HOME": str(self.data_dir / "helm")}

    def _run(self, command: list[str], given: str | None, *, check: bool) -> subprocess.CompletedProcess[str]:
        run = subprocess.run(
            command,
            input=given,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if check and run.returncode != 0:
            raise StackError(f"{' '.join(command[1:])}: {run.stdout}{run.stderr}")
        return run
