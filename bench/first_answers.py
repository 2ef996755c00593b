"""How long a user waits for the first answer of a command about the load history: each time a new process.

First a small cluster's log is ingested, then commands answer about the generated week of `examples.history.week`.
`--log` means nothing here. Each has a Spark of its own; then all but `sql` use one that `history serve` keeps, whose
first answers are not counted: its JVM compiles what it runs.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.backends import carrier
from bench.cluster import COMMAND, cluster, create_namespace, records_read, topics_of_bundles
from bench.figures import emit, median
from bench.generating import write
from examples.history.week import WEEK
from stack.servers import free_port

TIMES = 3
BUNDLES = 256
QUESTION = "select count(*) from bundle_minute"
COMMANDS: dict[str, tuple[str, ...]] = {
    "analyse --analysis imbalance": ("analyse", "--analysis", "imbalance"),
    "analyse, all": ("analyse",),
    "report": ("report",),
}


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        _ingests(Path(directory))
        lake = Path(directory) / "lake"
        for _ in write(lake, WEEK):
            pass
        _measure(lake, COMMANDS | {"sql": ("sql", QUESTION)}, (), "")
        with _serving(lake) as url:
            there = ("--remote", url, "--publish", f"{lake}/published")
            for command in COMMANDS.values():
                _seconds(lake, command, there)
            _measure(lake, COMMANDS, there, ", a session kept by history serve")


def _ingests(directory: Path) -> None:
    with carrier("sqlite") as where:
        with cluster(where, 2) as brokers:
            create_namespace(brokers[0], "bench/small", BUNDLES)
            boundaries = brokers[0].ask("GET", "/admin/v2/namespaces/bench/small/bundles")[1]["boundaries"]
            topics = [f"persistent://{topic}" for topic in topics_of_bundles("bench/small", boundaries)]
            brokers[0].ask("POST", "/v1/lookup", {"topics": topics})
            records = records_read(brokers[0])
        took = [_seconds(directory / f"small-{turn}", ("ingest", "--log", where.log), ()) for turn in range(TIMES)]
    took_s = median(took)
    emit(
        "first_answers", "ingest of a small log", took_s, "s", target="≤ 10", met=took_s <= 10,
        worst=round(max(took), 2), records_of_the_channel=records,
    )  # fmt: skip


def _measure(lake: Path, commands: dict[str, tuple[str, ...]], more: tuple[str, ...], how: str) -> None:
    for name, command in commands.items():
        took = [_seconds(lake, command, more) for _ in range(TIMES)]
        took_s = median(took)
        emit("first_answers", f"{name}{how}", took_s, "s", target="≤ 10", met=took_s <= 10, worst=round(max(took), 2))


def _seconds(lake: Path, command: tuple[str, ...], more: tuple[str, ...]) -> float:
    begin = time.monotonic()
    done = subprocess.run([COMMAND, "history", *command, "--lake", lake, *more], capture_output=True, text=True)
    took = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    return took


@contextmanager
def _serving(lake: Path) -> Iterator[str]:
    """The address of a session that other commands may use."""
    listen = f"127.0.0.1:{free_port()}"
    command = [COMMAND, "history", "serve", "--lake", lake, "--listen", listen]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout
        said = process.stdout.readline()
        assert listen in said, said
        yield f"sc://{listen}"
    finally:
        process.terminate()
        process.wait(60)
