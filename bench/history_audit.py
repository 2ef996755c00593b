"""The audit of a channel's whole log on Spark: records a second and core, the second core's worth, and peak memory.

`python -m bench.history_audit [RECORDS]`; 10 million by default. The log lies in Parquet, in 4 partitions of 1,000
bundles each; it is made once and kept in `BENCH_DATA` (by default below the temporary directory). The fold that the
ingest does is measured too: its states are where the audit cuts. One core gets a quarter of the log, one partition, and
two get all of it. Sessions are processes of their own, since the number of cores is given at their start; their start
is not counted.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from bench import channel_log
from bench.channel_log import BEGIN_MS, ChannelLog
from bench.figures import emit
from loadmanager.history.audit import audit
from loadmanager.history.schemas import RAW
from loadmanager.history.session import Spark, session
from loadmanager.history.verdicts import Known, fold, known

RECORDS = 10_000_000
PARTITIONS = 4
BUNDLES = 1_000
BATCHES = 3
FILES = 8
GIB = 1 << 30
SAMPLE_S = 0.25


def run(kind: str) -> None:
    """All figures of this bench; the log is a file, whatever carries the cluster."""
    measure(RECORDS)


def measure(records: int) -> None:
    """The same for a log of so many records."""
    place = _kept(records)
    if not (place / "log").exists():
        shutil.rmtree(place, ignore_errors=True)
        made = _in_session("make", "local[2]", place, records)
        emit("history_audit", "log made", records / made["seconds"], "records/s", seconds=round(made["seconds"], 1))
    shutil.rmtree(place / "states", ignore_errors=True)
    folded = _in_session("fold", "local[2]", place, records)
    one = _in_session("audit of a quarter", "local[1]", place, records)
    two = _in_session("audit", "local[2]", place, records)
    count = two["records"]
    emit("history_audit", "fold, 2 cores", count / folded["seconds"] / 2, "records/s/core", records=count,
        seconds=round(folded["seconds"], 1), peak_gib=folded["peak_gib"])  # fmt: skip
    for cores, found in ((1, one), (2, two)):
        emit("history_audit", f"audit, {cores} cores", found["records"] / found["seconds"] / cores, "records/s/core",
            records=found["records"], seconds=round(found["seconds"], 1), segments=found["segments"],
            violations=found["violations"])  # fmt: skip
    rates = [found["records"] / found["seconds"] for found in (one, two)]
    gain, peak = rates[1] / rates[0], max(one["peak_gib"], two["peak_gib"], folded["peak_gib"])
    emit("history_audit", "audit, 1 to 2 cores", gain, "times", target="≥ 1.5", met=gain >= 1.5)
    emit("history_audit", "peak memory of all processes", peak, "GiB", target="≤ 4", met=peak <= 4)


def _kept(records: int) -> Path:
    """Where a log of so many records is kept, as the code that makes it has it now."""
    code = hashlib.sha256((inspect.getsource(channel_log) + inspect.getsource(_entries)).encode()).hexdigest()[:12]
    root = Path(os.environ.get("BENCH_DATA") or Path(tempfile.gettempdir()) / "loadmanager-bench")
    return root / f"history-audit-{records}-{PARTITIONS}-{BUNDLES}-{code}"


def _in_session(step: str, master: str, place: Path, records: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.history_audit", step, master, str(place), str(records)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def _step(step: str, master: str, place: str, records: int) -> None:
    spark = session(Spark(master=master))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with _Memory() as memory:
            begin = time.perf_counter()
            steps = {"make": _make, "fold": _fold, "audit": _audit, "audit of a quarter": _audit_quarter}
            said = steps[step](spark, Path(place), records)
            said["seconds"] = time.perf_counter() - begin
        print(json.dumps({**said, "peak_gib": round(memory.peak_bytes / GIB, 2)}), flush=True)
    finally:
        spark.stop()


def _make(spark: SparkSession, place: Path, records: int) -> dict[str, float]:
    numbers = spark.range(0, records, numPartitions=FILES)
    made = numbers.mapInArrow(partial(_entries, log=ChannelLog(PARTITIONS, BUNDLES)), RAW)
    made.write.parquet(str(place / "half-made"))
    (place / "half-made").rename(place / "log")
    return {}


def _entries(batches: Iterable[pa.RecordBatch], log: ChannelLog) -> Iterator[pa.RecordBatch]:
    parts = [log.part(number) for number in range(log.partitions)]
    for batch in batches:
        places = [divmod(number, log.partitions)[::-1] for number in batch.column("id").to_pylist()]
        times = [(BEGIN_MS + offset) * 1_000 for _, offset in places]
        columns = {
            "topic": pa.array(["bundle-state"] * len(places)),
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
            "key": pa.nulls(len(places), pa.binary()),
            "value": pa.array([parts[partition].value(offset) for partition, offset in places], pa.binary()),
            "appended_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _fold(spark: SparkSession, place: Path, records: int) -> dict[str, float]:
    """As the ingest does, in a few batches; the states are kept, and of all else the rows are made and counted."""
    raw, states = spark.read.parquet(str(place / "log")), place / "states"
    size = -(-records // PARTITIONS // BATCHES)
    for batch in range(BATCHES):
        there = known(spark.read.parquet(str(states)), batch) if batch else Known()
        some = raw.where(f"offset >= {batch * size} and offset < {(batch + 1) * size}")
        folded = fold(some, there, PARTITIONS, batch)
        folded.lists.persist()
        folded.channel.write.format("noop").mode("overwrite").save()
        folded.transition.write.format("noop").mode("overwrite").save()
        folded.state.write.mode("append").parquet(str(states))
        folded.lists.unpersist()
    return {}


def _audit_quarter(spark: SparkSession, place: Path, records: int) -> dict[str, float]:
    return _audit(spark, place, records, "partition = 0")


def _audit(spark: SparkSession, place: Path, records: int, which: str = "true") -> dict[str, float]:
    raw, states = (spark.read.parquet(str(place / name)).where(which) for name in ("log", "states"))
    found = audit(raw, PARTITIONS, states=states, apart=max(1, records // PARTITIONS // BATCHES // 2))
    rows = [row.asDict() for row in found.summary.collect()]
    found.close()
    return {name: sum(row[name] for row in rows) for name in ("records", "segments", "violations")}


class _Memory:
    """The most that this process and all below it took at once, by what they share once."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Memory:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampling.join()

    def _sample(self) -> None:

        me = psutil.Process()
        while not self._over.wait(SAMPLE_S):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue  # it ended meanwhile
            self.peak_bytes = max(self.peak_bytes, total)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _step(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
