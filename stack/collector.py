"""A real OpenTelemetry Collector that writes traces to a file; built from its Go modules, and kept below `.stack/`."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stack.golang import go
from stack.servers import Server

ROOT = Path(__file__).parents[1]
PARTS = Path(__file__).with_name("collector.yaml")
BUILT = ROOT / ".stack" / "collector"
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.139.0"


def built() -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    program, parts = BUILT / "otelcol", BUILT / PARTS.name
    if program.exists() and parts.exists() and parts.read_text() == PARTS.read_text():
        return program
    go("run", BUILDER, "--config", str(PARTS), folder=BUILT)
    shutil.copy(PARTS, parts)
    return program


class CollectorServer(Server):
    """Takes OTLP over HTTP."""

    name = "otelcol"

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://{self.address}"

    @property
    def spans(self) -> list[tuple[str, dict[str, Any]]]:
        """What it has written so far: the instance of the service, and the span as OTLP's JSON has it."""
        whole = self._traces.read_text().rpartition("\n")[0] if self._traces.exists() else ""
        resources = [each for line in whole.splitlines() for each in json.loads(line)["resourceSpans"]]
        return [
            (_instance(each), span) for each in resources for scope in each["scopeSpans"] for span in scope["spans"]
        ]

    @property
    def _traces(self) -> Path:
        return self.data_dir / "traces.json"

    def _prepare(self) -> None:
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": self.address}}}},
            "exporters": {"file": {"path": str(self._traces), "flush_interval": "200ms"}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        }
        (self.data_dir / "config.yaml").write_text(yaml.safe_dump(config))

    def _command(self) -> Sequence[str]:
        return [str(built()), f"--config={self.data_dir / 'config.yaml'}"]

    def _ask(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(64).startswith(b"HTTP/")

    def _port_was_taken(self) -> bool:
        return "address already in use" in self.log_file.read_text(errors="replace")


def _instance(resource: dict[str, Any]) -> str:
    values = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
    return values["service.instance.id"]["stringValue"]
