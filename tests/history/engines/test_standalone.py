"""Jobs on a standalone Spark cluster: executors are other processes, in folders of their own, and one of two dies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.lake import Lake
from loadmanager.history.sources import SqliteSource
from statechannel.ports import Payload
from tests.history.audit.tasks import honest
from tests.history.engines.standalone import HERE, Standalone, Worker
from tests.history.engines.submitting import ROOT, ended, seen, submitting
from tests.history.ingest import material
from tests.history.replay.games import lopsided
from tests.history.replay.written import written

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("tests/history/engines/test_standalone.py"),  # one cluster for all of them
    pytest.mark.timeout(900),
]
CANDIDATES = ("--candidate", "plan", "--window-s", "600")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LOADMANAGER_LAKE")}
WAITS = """
import sys, threading
from loadmanager.history.session import Spark, session
from loadmanager.history.progress import telling
spark, told = session(Spark(master=sys.argv[1], conf={"spark.executor.memory": "64g"})), threading.Event()
names = ("shuffle.partitions", "adaptive.coalescePartitions.initialPartitionNum", "adaptive.enabled")
print(*(spark.conf.get("spark.sql." + name) for name in names))
def tell(said):
    print(said)
    spark.sparkContext.cancelAllJobs()
try:
    with telling(spark, tell, patience_s=2.0):
        spark.range(3).repartition(2).count()
except Exception as error:
    assert "cancelled" in str(error), error
"""
REPEATS = """
import sys
from datetime import UTC, datetime
import pyarrow as pa
from loadmanager.history.ingest.repeats import REPORTS, repeats
from loadmanager.history.lake import Lake
from loadmanager.history.session import Spark, session
from loadmanager.model.load import BROKERS_TOPIC
spark = session(Spark(master=sys.argv[1], memory="1g", conf={"spark.executor.memory": "512m"}))
at = datetime(2026, 1, 1, tzinfo=UTC)
rows = [dict(zip(REPORTS.names, (BROKERS_TOPIC, 0, offset, "a", 1, at))) for offset in range(3)]
found = repeats(Lake(spark, sys.argv[2]), pa.Table.from_pylist(rows, REPORTS))
print("found", flush=True)
sys.stdin.readline()
print(sorted(row["offset"] for row in found.collect()))
"""


@pytest.fixture
def workers(cluster: Standalone) -> list[Worker]:
    while len(cluster.workers) < 2:
        cluster.add(cores=1, memory="1g")
    return cluster.workers


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Forty minutes in which nobody balanced."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("recorded") / "lake"))
    written(lopsided(40)).save(lake)
    return lake


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """What an ingest makes of a small log, of a channel that is well."""
    folder = tmp_path_factory.mktemp("ingested")
    channel: material.Log = {(CHANNEL_TOPIC, number): [] for number in range(material.PARTITIONS)}
    for entry in honest(11, 120):
        channel[CHANNEL_TOPIC, entry.partition].append(Payload(None, entry.value))
    asyncio.run(material.write(folder / "log.db", material.records(5) | channel))
    lake = Lake(spark, str(folder / "lake"))
    Ingest(lake, SqliteSource(folder / "log.db"), Options(partitions=material.PARTITIONS)).run_available()
    return lake


def published(folder: Path, name: str) -> tuple[Any, Any]:
    """Rows and facts of a result."""
    found = json.loads((folder / f"{name}.json").read_bytes())
    return found["rows"], found["facts"]


def test_a_replay_that_loses_a_worker_ranks_as_an_undisturbed_one(cluster, workers, recorded, here, tmp_path):
    given, log = ["--lake", recorded.root, *CANDIDATES], tmp_path / "job.log"
    job = submitting(cluster.url, log, "replay", *given, "--publish", str(tmp_path / "disturbed"))

    def playing() -> Worker | None:
        return next((each for each in workers if any(_at_work(process) for process in each.python())), None)

    cluster.lose(seen(playing, job, log))
    assert "Lost executor" in ended(job, log)
    here(tmp_path / "whole", "replay", *given)
    for name in ("replay", "replay-windows"):
        assert published(tmp_path / "disturbed", name) == published(tmp_path / "whole", name)
    assert published(tmp_path / "whole", "replay")[1]["windows"] == 3


def _at_work(process: psutil.Process) -> bool:
    """Whether a window is played there: nothing else in a replay takes a Python process so long."""
    try:
        return sum(process.cpu_times()[:2]) > 0.3
    except psutil.Error:
        return False


def test_analysis_and_audit_on_a_cluster_answer_as_they_do_here(cluster, workers, ingested, here, tmp_path):
    commands = {
        "analyse": ("--lake", ingested.root, "--analysis", "imbalance"),
        "audit": ("--lake", ingested.root),
    }
    for command, given in commands.items():
        log = tmp_path / "job.log"
        ended(submitting(cluster.url, log, command, *given, "--publish", str(tmp_path / "there")), log)
        here(tmp_path / "here", command, *given)
    for name in ("analyses/imbalance", "audit"):
        assert published(tmp_path / "there", name) == published(tmp_path / "here", name)


def test_what_repeats_is_known_though_all_executors_die(cluster, workers, tmp_path):
    """A checkpoint on executors' disks would be gone, and nothing could compute it again."""
    env = {**CLEAN, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HERE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", REPEATS, cluster.url, str(tmp_path / "lake")]
    with subprocess.Popen(command, env=env, stdin=-1, stdout=-1, stderr=-1, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "found\n", job.communicate()[1]
        for worker in list(workers):
            cluster.lose(worker)
        cluster.add(cores=1, memory="1g")
        said, complained = job.communicate("\n", timeout=200)
    assert said == "[1, 2]\n", complained


def test_a_job_that_gets_no_executor_says_what_it_waits_for(cluster, workers):
    """The workers have 1 GB: without a word Spark would wait for ever."""
    mine = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HERE}
    command = [sys.executable, "-c", WAITS, cluster.url]
    run = subprocess.run(command, env={**CLEAN, **mine}, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    partitions, said = run.stdout.splitlines()
    assert partitions == "8 200 true"
    assert "gives this job no executor" in said
    assert "a free core and 64g of free memory" in said
