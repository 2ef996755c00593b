"""Jobs on a standalone Spark cluster: executors are other processes, in folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from loadmanager.history.jars import bring
from loadmanager.history.lake import Lake
from tests.history.replay.games import lopsided
from tests.history.replay.written import written
from tests.history.standalone import HERE, standalone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.guards("history"),
    pytest.mark.xdist_group("tests/history/test_standalone.py"),  # one cluster for all of them
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
SUBMIT = "examples/history/submit.sh"
WAITS = """
import sys, threading
from loadmanager.history.session import Spark, session
from loadmanager.history.waiting import telling
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


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    bring()
    with standalone(tmp_path_factory.mktemp("standalone")) as url:
        yield url


@pytest.fixture
def recorded(lake: Lake) -> Lake:
    """Forty minutes in which nobody balanced."""
    written(lopsided(40)).save(lake)
    return lake


def submitted(master: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Through submit.sh, as its page calls it: from the root of the repository, by a relative path."""
    mine = {"MASTER": master, "PYTHON": os.path.relpath(sys.executable, ROOT), "SPARK_LOCAL_IP": HERE}
    env = {**os.environ, "DRIVER_MEMORY": "1g", **mine, **environment}
    env.pop("PYSPARK_PYTHON", None)
    command = [SUBMIT, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)


def test_a_replay_submitted_to_a_master_is_played_by_its_executors(master: str, recorded: Lake):
    run = submitted(master, "replay", "--lake", recorded.root, "--candidate", "plan", "--window-s", "1200")
    assert run.returncode == 0, run.stderr
    assert "windows of 1200 s" in run.stdout, run.stdout


def test_a_job_that_gets_no_executor_says_what_it_waits_for(master: str):
    """The worker has 2 GB: without a word Spark would wait for ever."""
    mine = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HERE}
    command = [sys.executable, "-c", WAITS, master]
    run = subprocess.run(command, env={**os.environ, **mine}, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    partitions, said = run.stdout.splitlines()
    assert partitions == "8 200 true"
    assert "gives this job no executor" in said
    assert "a free core and 64g of free memory" in said
