"""Jobs on a cluster as its users start them, and the topics on Kafka that they read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from loadmanager.history.sources import KafkaSource
from statechannel.adapters.kafka.log import KafkaLog
from tests.history.engines.standalone import HERE
from tests.history.ingest import material

ROOT = Path(__file__).parents[3]
SUBMIT = "examples/history/submit.sh"
LOADMANAGER = (sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", "history")
PATIENCE_S = 480.0
LOOK_S = 0.005
Found = TypeVar("Found")


def submitting(master: str, log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command through submit.sh, as its page calls it: from the repository's root, by a relative path."""
    mine = {"MASTER": master, "PYTHON": os.path.relpath(sys.executable, ROOT), "DRIVER_MEMORY": "1g"}
    return started([SUBMIT, *arguments], log, mine | environment)


def started(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command from the repository's root; what it says goes to `log`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOADMANAGER_LAKE")}
    env.pop("PYSPARK_PYTHON", None)
    with log.open("wb") as out:
        return subprocess.Popen(
            command, cwd=ROOT, env={**env, "SPARK_LOCAL_IP": HERE, **environment}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def ended(running: subprocess.Popen[bytes], log: Path) -> str:
    """What it said. Raises AssertionError if it did not end well."""
    try:
        code = running.wait(PATIENCE_S)
    finally:
        end(running)
    assert code == 0, log.read_text()
    return log.read_text()


def end(running: subprocess.Popen[bytes]) -> None:
    """End what is left of it."""
    if running.poll() is None:
        for process in [*psutil.Process(running.pid).children(recursive=True), psutil.Process(running.pid)]:
            process.kill()
    running.wait(30)


def seen(look: Callable[[], Found | None], running: subprocess.Popen[bytes], log: Path) -> Found:
    """What `look` finds at last. Raises AssertionError if the job ends before."""
    latest = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert running.poll() is None, f"the job ended: {log.read_text()}"
        assert time.monotonic() < latest, log.read_text()
        time.sleep(LOOK_S)
    return found


def options(source: KafkaSource, lake: Path) -> list[str]:
    """Options of an ingest from the source into a lake."""
    log = [
        "--log",
        f"kafka://{source.bootstrap}",
        "--set",
        f"topic_prefix={source.prefix}",
        "--set",
        "development=true",
    ]
    return [*log, "--lake", str(lake)]


def write(source: KafkaSource, log: material.Log) -> None:
    """Append to the source's topics, which are made if need be."""
    asyncio.run(_write(source, log))


async def _write(source: KafkaSource, log: material.Log) -> None:
    kafka = KafkaLog(
        source.bootstrap, topic_prefix=source.prefix, development=True, request_timeout_s=30.0,
        client_settings=source.options,
    )  # fmt: skip
    await kafka.start(timeout_s=60)
    try:
        for spec in material.TOPICS:
            await kafka.open_topic(spec)
        for (topic, partition), payloads in log.items():
            await kafka.append(topic, partition, payloads)
    finally:
        await kafka.close()
