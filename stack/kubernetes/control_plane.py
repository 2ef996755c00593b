"""The servers of a control plane: etcd, API server, controller manager, scheduler; on loopback, with own certificates.

Everybody who talks to the API server here is an administrator. Left out of the controller manager are endpoints:
the API server refuses loopback addresses in them, and nothing here reads them (`kubelet/proxy.py` asks for pods).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import trustme
import yaml

from stack.kubernetes.programs import built
from stack.servers import HOST, Server, free_port

ASK_TIMEOUT_S = 2.0
NAMES = (HOST, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


class Certificates:
    """One authority, and what it issued: `server` for those who listen, `admin` for those who ask."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = folder / "ca.crt"
        self.server = (folder / "server.crt", folder / "server.key")
        self.admin = (folder / "admin.crt", folder / "admin.key")
        self.accounts = folder / "accounts.key"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        admin = authority.issue_cert("admin", common_name="admin", organization_name="system:masters")
        for files, issued in ((self.server, authority.issue_cert(*NAMES)), (self.admin, admin)):
            issued.cert_chain_pems[0].write_to_path(files[0])
            issued.private_key_pem.write_to_path(files[1])
        authority.issue_cert("accounts").private_key_pem.write_to_path(self.accounts)

    def write_kubeconfig(self, file: Path, url: str) -> None:
        """For those who ask the API server at this URL."""
        certificate, key = map(str, self.admin)
        cluster = {"server": url, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"client-certificate": certificate, "client-key": key}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        }
        file.write_text(yaml.safe_dump(config))


class GoServer(Server):
    """A server that says at `/readyz` or such whether it serves."""

    health = "https", "/readyz"

    def _prepare(self) -> None:
        pass

    def answers(self) -> bool:
        scheme, path = self.health
        context = ssl._create_unverified_context() if scheme == "https" else None  # noqa: SLF001 - as probes do
        try:
            with urlopen(f"{scheme}://{self.address}{path}", timeout=ASK_TIMEOUT_S, context=context) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _ask(self, connection: socket.socket) -> bool:  # noqa: ARG002 - it makes connections of its own
        return self.answers()

    def _port_was_taken(self) -> bool:
        return "address already in use" in self.log_file.read_text(errors="replace")


class EtcdServer(GoServer):
    """One etcd, which does not wait for the disk."""

    name = "etcd"
    health = "http", "/health"

    def _pick_ports(self) -> None:
        self.port, self._peer_port = free_port(), free_port()

    def _command(self) -> Sequence[str]:
        client, peer = f"http://{self.address}", f"http://{HOST}:{self._peer_port}"
        return [
            str(built("etcd")),
            f"--data-dir={self.data_dir / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]


class ApiServer(GoServer):
    """The API server, with the admission of a real cluster (Pod Security among it). Services get loopback addresses."""

    name = "kube-apiserver"

    def __init__(self, data_dir: Path, etcd: EtcdServer, certificates: Certificates, services: str) -> None:
        super().__init__(data_dir)
        self._etcd = etcd
        self._certificates = certificates
        self._services = services

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    def _command(self) -> Sequence[str]:
        own = self._certificates
        return [
            str(built("kube-apiserver")),
            f"--etcd-servers=http://{self._etcd.address}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={self._services}",
            f"--cert-dir={self.data_dir / 'certificates'}",
            f"--tls-cert-file={own.server[0]}",
            f"--tls-private-key-file={own.server[1]}",
            f"--client-ca-file={own.authority}",
            f"--kubelet-client-certificate={own.admin[0]}",
            f"--kubelet-client-key={own.admin[1]}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={own.accounts}",
            f"--service-account-signing-key-file={own.accounts}",
            "--authorization-mode=RBAC",
        ]


class Controller(GoServer):
    """A part of the control plane that works for the API server."""

    health = "https", "/healthz"
    options: tuple[str, ...] = ()

    def __init__(self, data_dir: Path, kubeconfig: Path) -> None:
        super().__init__(data_dir)
        self._kubeconfig = kubeconfig

    def _command(self) -> Sequence[str]:
        return [
            str(built(self.name)),
            f"--kubeconfig={self._kubeconfig}",
            f"--bind-address={HOST}",
            f"--secure-port={self.port}",
            f"--cert-dir={self.data_dir / 'certificates'}",
            "--leader-elect=false",
            *self.options,
        ]


class ControllerManager(Controller):
    """All controllers but those of endpoints; autoscalers look often."""

    name = "kube-controller-manager"

    def __init__(self, data_dir: Path, kubeconfig: Path, certificates: Certificates) -> None:
        super().__init__(data_dir, kubeconfig)
        self.options = (
            f"--root-ca-file={certificates.authority}",
            f"--service-account-private-key-file={certificates.accounts}",
            "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
            "--horizontal-pod-autoscaler-sync-period=2s",
        )


class Scheduler(Controller):
    """Assigns pods to nodes."""

    name = "kube-scheduler"
