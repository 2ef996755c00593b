"""A Spark Connect server, started as the page of the examples says; it can be killed and started again."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from loadmanager_api.cli.load_history.spark import options
from stack.servers import free_port
from tests.history.conftest import QUICK
from tests.history.engines.standalone import HERE, HOME, START_S

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """One on this machine, on a port that stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "connect.log"
        self._folder = folder
        self._port = free_port()
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """sc://host:port."""
        return f"sc://{HERE}:{self._port}"

    @property
    def running(self) -> bool:
        return self._running is not None

    def start(self, **environment: str) -> None:
        """Start it, and return when it answers."""
        given = QUICK | {
            "spark.connect.grpc.binding.address": HERE,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.log.level": "ERROR",
        }
        conf = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g", *options()]
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HERE, "SPARK_HOME": str(HOME)}
        env |= environment
        with self.log.open("ab") as out:
            self._running = subprocess.Popen(
                [*command, *conf, "--class", CLASS, "spark-internal"], cwd=self._folder, env=env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        latest = time.monotonic() + START_S
        while not self._answers():
            assert self._running.poll() is None, f"{shlex.join(command)}\n{self.log.read_text()}"
            assert time.monotonic() < latest, self.log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, to its Python processes too. Idempotent."""
        if self._running is None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._running.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._running.kill()
        self._running.wait(30)
        self._running = None

    def _answers(self) -> bool:
        try:
            socket.create_connection((HERE, self._port), 1.0).close()
        except OSError:
            return False
        return True
