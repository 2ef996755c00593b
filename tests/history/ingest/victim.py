"""An ingest in a process group of its own, with its JVM, to be killed at a named point or from outside.

`python -m tests.history.ingest.victim ROOT sqlite:FILE|kafka://HOST:PORT --partitions N [--prefix P] [--max N]
[--follow]` is the process; `Victim` starts one. With `--follow` it goes on until SIGTERM; else it takes what there is.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from loadmanager.history.ingest.failpoints import VARIABLE

ROOT = Path(__file__).parents[3]
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
}
"""Of a session that lives for a few small batches: compiling takes longer than to interpret."""


class Victim:
    """A started ingest. `point` as `Failpoints` reads it; what it says goes to `log`."""

    def __init__(self, log: Path, arguments: list[str], point: str = "") -> None:
        command = [sys.executable, "-m", "tests.history.ingest.victim", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({VARIABLE: point} if point else {})
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to it, its JVM and its workers, at once."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(60)

    def stop(self) -> None:
        """SIGTERM: it ends in good order."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """How it ended: -9 if by SIGKILL."""
        return self._process.wait(timeout_s)


def uncommitted(table: Path) -> set[str]:
    """The data files of a table that no commit names: written, and their commit not."""
    written = {
        path.relative_to(table).as_posix() for path in table.glob("**/*.parquet") if "_delta_log" not in path.parts
    }
    log = "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
    return {name for name in written if name not in log}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.history.ingest.victim", description=__doc__)
    parser.add_argument("root")
    parser.add_argument("source")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--prefix", default="loadmanager.")
    parser.add_argument("--max", type=int, default=100)
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    from loadmanager.history.ingest import Ingest, Options
    from loadmanager.history.lake import Lake
    from loadmanager.history.session import Spark, session
    from loadmanager.history.sources import KafkaSource, SqliteSource

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    kind, _, rest = given.source.partition(":")
    source = SqliteSource(Path(rest)) if kind == "sqlite" else KafkaSource(rest.removeprefix("//"), given.prefix)
    options = Options(partitions=given.partitions, max_per_trigger=given.max, trigger_s=0.5, gold_s=5.0)
    ingest = Ingest(Lake(session(Spark(memory="1g", conf=CONF)), given.root), source, options)
    if given.follow:
        ingest.run(stop)
    else:
        ingest.run_available()


if __name__ == "__main__":
    main()
