"""Real servers as objects: start, stop, kill, suspend, resume, restart on the same port and data.

Here are Kafka and ZooKeeper; `stores.py` has those in which services keep their state."""

from __future__ import annotations

import base64
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from stack.jars import classpath, java
from stack.kafka_security import PROTOCOLS, Security
from stack.process import POLL_S, Child, Identity
from stack.programs import StackError

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the range that systems take for outgoing connections, so no program takes the port of a stopped server."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
ATTEMPTS = 5
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


_RESERVATIONS = Path(tempfile.gettempdir()) / f"loadmanager-ports-{os.getuid()}"
"""Each process locks the byte at the number of each port that it was given; the locks end with the process."""
_GIVEN = set[int]()


def free_port(among: Sequence[int] | None = None) -> int:
    """A loopback port that is free at this moment, and that no running process of this user was given before."""
    among = PORTS if among is None else among
    for port in random.sample(among, min(200, len(among))):
        if port not in _GIVEN and _reserve(port):
            _GIVEN.add(port)
            with socket.socket() as probe, suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise StackError(f"no free port on {HOST} between {min(among)} and {max(among)}")


@cache
def _reservations() -> int:
    """A descriptor that is open as long as this process runs: closing it would end the locks."""
    return os.open(_RESERVATIONS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _reserve(port: int) -> bool:
    """Returns True if no other process has it."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


class Server(ABC):
    """What all servers share: a process, its data directory, ports that stay the same over restarts."""

    name = ""
    user: str | None = None
    """The process's owner. None: the user that starts it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.log_file = data_dir / "server.log"
        self.port = 0
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def identity(self) -> Identity | None:
        """The process, while there is one."""
        return self._child.identity if self._child else None

    def start(self) -> None:
        """Start and return once it answers. The first start picks free ports. Raises StackError."""
        if self.port:
            self._launch()
            self._await_answer()
            return
        for attempt in range(ATTEMPTS):
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._pick_ports()
            self._prepare()
            self._launch()
            try:
                self._await_answer()
            except StackError:
                self.kill()
                if attempt + 1 == ATTEMPTS or not self._port_was_taken():
                    raise
            else:
                return

    def stop(self) -> None:
        """End it in good order; SIGKILL if that takes too long. Idempotent."""
        if self._child is None:
            return
        self.resume()
        self._child.signal(signal.SIGTERM)
        if not self._child.wait(STOP_TIMEOUT_S):
            self.kill()
        self._child = None

    def kill(self) -> None:
        """SIGKILL: as when the machine fails. Idempotent."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
            self._child.wait(STOP_TIMEOUT_S)
            self._child = None

    def suspend(self) -> None:
        """SIGSTOP: connections stay open without an answer."""
        self._running().suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def answers(self) -> bool:
        """Whether it serves a client now."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.settimeout(1.0)
                return self._ask(connection)
        except OSError:
            return False

    def _running(self) -> Child:
        if self._child is None:
            raise StackError(f"{self.name} is not running")
        return self._child

    def _launch(self) -> None:
        self._child = Child(self._command(), self.log_file, {}, self.user)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        child = self._running()
        while not self.answers():
            if not child.running() or time.monotonic() > deadline:
                tail = self.log_file.read_text(errors="replace")[-2000:]
                raise StackError(f"{self.name} did not come up on {self.address}; {self.log_file} ends:\n{tail}")
            time.sleep(POLL_S)

    def _port_was_taken(self) -> bool:
        text = self.log_file.read_text(errors="replace")
        self.log_file.write_text("")
        return "BindException" in text or "Address already in use" in text

    def _pick_ports(self) -> None:
        self.port = free_port()

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration and format the data, once the ports are picked."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What is run."""

    @abstractmethod
    def _ask(self, connection: socket.socket) -> bool:
        """Whether the server on the other end answers a first question."""


class JavaServer(Server):
    """A server in a JVM."""

    main_class = ""
    heap = ""

    def _command(self) -> Sequence[str]:
        options = [f"-Xmx{self.heap}", f"-Xms{self.heap}", "-XX:+UseSerialGC"]
        quiet = [QUIET, "-Dlog4j2.StatusLogger.level=OFF"]
        command = [java(), *options, *quiet, *self._java_options(), "-cp", classpath(self.name)]
        return [*command, self.main_class, *self._arguments()]

    @abstractmethod
    def _arguments(self) -> Sequence[str]:
        """What the main class is given."""

    def _java_options(self) -> Sequence[str]:
        return ()


class KafkaServer(JavaServer):
    """One Kafka node, broker and controller (KRaft).

    `proxied_at` maps names of extra listeners to the ports they are advertised at: a client of a proxy
    listening there is sent back to the proxy. The proxy forwards to `listener_port(name)`. With `users` (name to
    password) there are two more listeners, `kafka_security.SASL` and `TLS`, that authenticate clients; `powerless` of
    the users may do nothing.
    """

    name = "kafka"
    main_class = "kafka.Kafka"
    heap = "512m"

    def __init__(
        self,
        data_dir: Path,
        *,
        proxied_at: Mapping[str, int] | None = None,
        users: Mapping[str, str] | None = None,
        powerless: Collection[str] = (),
    ) -> None:
        super().__init__(data_dir)
        self.security = Security(users, data_dir, powerless) if users else None
        self._proxied_at = dict(proxied_at or {})
        self._ports: dict[str, int] = {}
        self._config = data_dir / "server.properties"

    def listener_port(self, name: str) -> int:
        """The port that an extra listener is bound to."""
        return self._ports[name]

    def _pick_ports(self) -> None:
        self._ports = {name: free_port() for name in ("CLIENT", "CONTROLLER", *self._asking(), *self._proxied_at)}
        self.port = self._ports["CLIENT"]

    def _asking(self) -> Mapping[str, str]:
        return PROTOCOLS if self.security else {}

    def _prepare(self) -> None:
        if self.security:
            self.security.make_key()
        self._config.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        if (self.data_dir / "log" / "meta.properties").exists():
            return  # data of an earlier run: kept, with its cluster id
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        arguments = ["format", "-t", cluster_id, "-c", str(self._config)]
        arguments += self.security.scram if self.security else []
        tool = [java(), QUIET, "-XX:TieredStopAtLevel=1", "-cp", classpath(self.name), "kafka.tools.StorageTool"]
        run = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S)
        if run.returncode != 0:
            raise StackError(
                f"could not format Kafka's storage in {self.data_dir}:\n{(run.stdout + run.stderr)[-2000:]}"
            )

    def _settings(self) -> dict[str, str]:
        bound = {name: f"{name}://{HOST}:{port}" for name, port in self._ports.items()}
        advertised = {name: f"{name}://{HOST}:{port}" for name, port in self._proxied_at.items()}
        asking = {name: bound[name] for name in self._asking()}
        protocols = {**dict.fromkeys(bound, "PLAINTEXT"), **self._asking()}
        return {
            **(self.security.settings if self.security else {}),
            "process.roles": "broker,controller",
            "node.id": "1",
            "broker.rack": "rack-1",
            "controller.quorum.voters": f"1@{HOST}:{self._ports['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listeners": ",".join(bound.values()),
            "advertised.listeners": ",".join([bound["CLIENT"], *asking.values(), *advertised.values()]),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "log.dirs": str(self.data_dir / "log"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "log.cleaner.dedupe.buffer.size": str(8 << 20),
            "num.network.threads": "2",
            "num.io.threads": "4",
            # one node restarts faster when the controller forgets its former self sooner
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "400",
        }

    def _arguments(self) -> Sequence[str]:
        return [str(self._config)]

    def _ask(self, connection: socket.socket) -> bool:
        api_versions, version, correlation, no_client_id = 18, 0, 7, -1
        request = (
            api_versions.to_bytes(2)
            + version.to_bytes(2)
            + correlation.to_bytes(4)
            + no_client_id.to_bytes(2, signed=True)
        )
        connection.sendall(len(request).to_bytes(4) + request)
        return connection.recv(8)[4:8] == correlation.to_bytes(4)


class ZooKeeperServer(JavaServer):
    """One stand-alone ZooKeeper. Sessions last from 2 to 20 ticks: a short `tick_ms` allows short ones."""

    name = "zookeeper"
    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    heap = "256m"

    def __init__(self, data_dir: Path, *, tick_ms: int = 2_000) -> None:
        super().__init__(data_dir)
        self._tick_ms = tick_ms
        self._config = data_dir / "zoo.cfg"

    def _prepare(self) -> None:
        settings = {
            "tickTime": str(self._tick_ms),
            "dataDir": str(self.data_dir / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _arguments(self) -> Sequence[str]:
        return [str(self._config)]

    def _java_options(self) -> Sequence[str]:
        return ["-Dzookeeper.preAllocSize=1024"]

    def _ask(self, connection: socket.socket) -> bool:
        connection.sendall(b"srvr")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        return b"Mode:" in answer
