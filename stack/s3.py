"""An S3-compatible store: the gateway VersityGW over a folder, built from its Go modules and kept below `.stack/`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from stack.golang import go
from stack.jars import STACK_DIR
from stack.servers import Server

VERSION = "v1.8.0"
MODULE = "github.com/versity/versitygw/cmd/versitygw"
ACCESS_KEY, SECRET_KEY, REGION = "only", "for-tests", "us-east-1"


def built() -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    folder = STACK_DIR / "versitygw" / VERSION
    program = folder / "versitygw"
    if not program.exists():
        go("install", f"{MODULE}@{VERSION}", folder=folder, environment={"GOBIN": str(folder)})
    return program


class S3Server(Server):
    """Buckets are the folders below `buckets`."""

    name = "versitygw"

    @property
    def buckets(self) -> Path:
        """Where they are."""
        return self.data_dir / "buckets"

    @property
    def spark(self) -> dict[str, str]:
        """Spark's settings for a client."""
        settings = {
            "endpoint": f"http://{self.address}",
            "endpoint.region": REGION,
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}

    def _prepare(self) -> None:
        self.buckets.mkdir(exist_ok=True)
        (self.data_dir / "metadata").mkdir(exist_ok=True)

    def _command(self) -> Sequence[str]:
        keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
        kept = ["posix", "--sidecar", str(self.data_dir / "metadata"), str(self.buckets)]
        return [str(built()), *keys, "--port", self.address, "--quiet", *kept]

    def _ask(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(8).startswith(b"HTTP/1")
