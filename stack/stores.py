"""Servers in which services keep their state, from the system's packages: PostgreSQL and Redis, not run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stack.programs import StackError, install, program
from stack.servers import HOST, START_TIMEOUT_S, Server


def _other_than_root(user: str) -> str | None:
    """The package's own user where we are root. Raises StackError if there is none."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(user).pw_name
    except KeyError:
        needed = install("postgres", "redis-server")
        raise StackError(f"there is no user {user}; on Debian: {needed}") from None


class PackagedServer(Server):
    """A server that the system's package manager brought."""

    package = ""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.user = _other_than_root(self.name)

    def _prepare(self) -> None:
        if self.user is not None:
            shutil.chown(self.data_dir, self.user, self.user)


class PostgresServer(PackagedServer):
    """One PostgreSQL without passwords, that does not survive a power cut."""

    name = "postgres"

    @property
    def url(self) -> str:
        """For clients."""
        return f"postgresql://postgres@{self.address}/postgres"

    def _prepare(self) -> None:
        super()._prepare()
        if (self.data_dir / "data" / "PG_VERSION").exists():
            return
        command = [program("initdb"), "-D", str(self.data_dir / "data"), "-U", "postgres", "-A", "trust"]
        run = subprocess.run(
            [*command, "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S, cwd=self.data_dir,
            user=self.user, group=self.user, extra_groups=None if self.user is None else [],
        )  # fmt: skip
        if run.returncode != 0:
            raise StackError(f"initdb failed in {self.data_dir}:\n{(run.stdout + run.stderr)[-2000:]}")

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.data_dir / "data"), *given]

    def _ask(self, connection: socket.socket) -> bool:
        greeting = (3 << 16).to_bytes(4) + b"user\0postgres\0database\0postgres\0\0"
        connection.sendall((len(greeting) + 4).to_bytes(4) + greeting)
        return connection.recv(1) == b"R"  # E: it is starting up

    def _port_was_taken(self) -> bool:
        return "Address already in use" in self.log_file.read_text(errors="replace")


class RedisServer(PackagedServer):
    """One Redis that writes nothing to the disk."""

    name = "redis"

    @property
    def url(self) -> str:
        """For clients."""
        return f"redis://{self.address}/0"

    def _command(self) -> Sequence[str]:
        settings = {"bind": HOST, "port": self.port, "dir": self.data_dir, "save": "", "appendonly": "no"}
        given = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [program("redis-server"), *given]

    def _ask(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(5) == b"+PONG"
