"""A standalone Spark cluster on this machine: a master and workers, each a process of its own on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

HERE = "127.0.0.1"
HOME = Path(pyspark.__file__).parent
START_S = 120.0
DEPLOY = "org.apache.spark.deploy"


class Worker:
    """A worker, with the executors that it starts, and their Python processes."""

    def __init__(self, host: str, daemon: subprocess.Popen[bytes]) -> None:
        self.host = host
        self._daemon = psutil.Process(daemon.pid)

    def python(self) -> list[psutil.Process]:
        """The Python processes that run tasks now: forked from the one that the executor keeps."""
        found = [each for each in self._children() if "python" in _name(each)]
        forking = {each.pid for each in found}
        return [each for each in found if _parent(each) in forking]

    def writing(self, folder: Path) -> tuple[psutil.Process, Path] | None:
        """A Python process that is stopped while it has a Parquet file below the folder open, and the file.

        What was open a moment ago may be closed by now: the process is stopped, and looked at again.
        """
        for process in self.python():
            if _open_below(process, folder):
                with suppress(psutil.Error):
                    process.suspend()
                    if found := _open_below(process, folder):
                        return process, found[0]
                    process.resume()
        return None

    def kill(self) -> None:
        """SIGKILL to all of it at once: as when the machine fails."""
        every = [self._daemon, *self._children()]
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(every[1:], timeout=30)
        assert not alive, alive

    def _children(self) -> list[psutil.Process]:
        try:
            return self._daemon.children(recursive=True)
        except psutil.NoSuchProcess:
            return []


class Standalone:
    """The cluster; `url` is spark://host:port, and workers may come and go."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url = url
        self.workers: list[Worker] = []
        self._folder = folder
        self._stack = stack
        self._count = 0

    def add(self, host: str = HERE, *, cores: int = 2, memory: str = "2g") -> Worker:
        """Start a worker, and return when the master knows it."""
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        given = ("--cores", str(cores), "--memory", memory, "--work-dir", str(self._folder / log.stem), self.url)
        running = self._stack.enter_context(_daemon("worker.Worker", *given, host=host, log=log))
        _told(log, r"Successfully registered with master (\S+)")
        worker = Worker(host, running)
        self.workers.append(worker)
        return worker

    def lose(self, worker: Worker) -> None:
        """Kill a worker with all of its processes."""
        self.workers.remove(worker)
        worker.kill()


@contextmanager
def standalone(folder: Path) -> Generator[Standalone]:
    """A master without workers."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "master.log"
    with ExitStack() as stack:
        stack.enter_context(_daemon("master.Master", host=HERE, log=log))
        yield Standalone(_told(log, r"Starting Spark master at (spark://\S+)"), folder, stack)


@contextmanager
def _daemon(name: str, *arguments: str, host: str, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """What it says goes to `log`. It is ended by its own process id: `spark-class` becomes the JVM."""
    own = {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m"}
    listens = ("--host", host, "--port", "0", "--webui-port", "0")
    with log.open("w") as file:
        command = [str(HOME / "bin" / "spark-class"), f"{DEPLOY}.{name}", *listens, *arguments]
        running = subprocess.Popen(command, env={**os.environ, **own}, cwd=log.parent, stdout=file, stderr=file)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(timeout=30)


def _told(log: Path, words: str) -> str:
    latest = time.monotonic() + START_S
    while not (found := re.search(words, log.read_text())):
        assert time.monotonic() < latest, log.read_text()
        time.sleep(0.1)
    return found[1]


def _open_below(process: psutil.Process, folder: Path) -> list[Path]:
    try:
        # to write: tasks that replay the channel read files that are committed
        names = [Path(each.path) for each in process.open_files() if each.mode.startswith("w")]
    except psutil.Error:
        return []
    return [name for name in names if name.suffix == ".parquet" and folder in name.parents]


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.ppid()
    return -1
