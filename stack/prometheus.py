"""Prometheus and its tool, from the system's packages."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import yaml

from stack.programs import StackError, program
from stack.servers import Server

ASK_TIMEOUT_S = 30.0


def promtool(*arguments: str) -> str:
    """What `promtool` prints; raises StackError with it if it fails."""
    run = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S
    )
    if run.returncode != 0:
        raise StackError(f"promtool {' '.join(arguments)}:\n{(run.stdout + run.stderr)[-8000:]}")
    return run.stdout


class PrometheusServer(Server):
    """One Prometheus. Put its configuration into `config` before the start; paths in it are under `data_dir`."""

    name = "prometheus"
    config: dict[str, Any]

    def _prepare(self) -> None:
        (self.data_dir / "prometheus.yml").write_text(yaml.safe_dump(self.config))

    def _command(self) -> Sequence[str]:
        return [
            program("prometheus"),
            f"--config.file={self.data_dir / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.data_dir / 'data'}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    def _ask(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET /-/ready HTTP/1.0\r\n\r\n")
        return b" 200 " in connection.recv(64)

    def _port_was_taken(self) -> bool:
        return "address already in use" in self.log_file.read_text(errors="replace")

    def ask(self, path: str) -> Any:
        """The data of an answer of its API. Raises OSError."""
        with urlopen(f"http://{self.address}/api/v1/{path}", timeout=ASK_TIMEOUT_S) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return self.ask(f"query?query={quote(expression)}")["result"]

    def firing(self) -> dict[str, set[str]]:
        """The names of the alerts that fire now, by job."""
        found: dict[str, set[str]] = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["job"], set()).add(alert["labels"]["alertname"])
        return found
