"""A standalone Spark cluster on this machine: a master and a worker, each a process of its own on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyspark

HERE = "127.0.0.1"
HOME = Path(pyspark.__file__).parent
START_S = 120.0
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone(folder: Path, *, cores: int = 2, memory: str = "2g") -> Generator[str]:
    """The address spark://host:port of a master with one worker, which has so many cores and so much memory."""
    folder.mkdir(parents=True, exist_ok=True)
    common = ("--host", HERE, "--port", "0", "--webui-port", "0")
    with _daemon(f"{DEPLOY}.master.Master", *common, log=folder / "master.log") as said:
        url = _told(said, r"Starting Spark master at (spark://\S+)")
        given = (*common, "--cores", str(cores), "--memory", memory, "--work-dir", str(folder / "work"), url)
        with _daemon(f"{DEPLOY}.worker.Worker", *given, log=folder / "worker.log") as said:
            _told(said, r"Successfully registered with master (\S+)")
            yield url


@contextmanager
def _daemon(name: str, *arguments: str, log: Path) -> Generator[Path]:
    """What it says goes to `log`. It is ended by its own process id: `spark-class` becomes the JVM."""
    own = {"SPARK_LOCAL_IP": HERE, "SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("w") as file:
        command = [str(HOME / "bin" / "spark-class"), name, *arguments]
        running = subprocess.Popen(command, env={**os.environ, **own}, cwd=log.parent, stdout=file, stderr=file)
    try:
        yield log
    finally:
        running.terminate()
        running.wait(timeout=30)


def _told(log: Path, words: str) -> str:
    latest = time.monotonic() + START_S
    while not (found := re.search(words, log.read_text())):
        assert time.monotonic() < latest, log.read_text()
        time.sleep(0.1)
    return found[1]
