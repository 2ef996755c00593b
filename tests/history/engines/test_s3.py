"""A lake on an S3-compatible store: an ingest that is killed in the middle, and jobs that read what it wrote."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import jars, published
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.failpoints import VARIABLE
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, SqliteSource
from stack.s3 import S3Server
from statechannel.ports import Payload
from tests.history.audit.tasks import honest
from tests.history.conftest import QUICK
from tests.history.engines.submitting import LOADMANAGER, PATIENCE_S, ended, started
from tests.history.ingest import material
from tests.history.ingest.comparing import differences, missed

POINTS = ("bronze:1", "head:3", "progress:2")
"""Where runs are killed, one after the other."""
KILLED = -signal.SIGKILL
WARNING = "Warning: one job at a time may write to a lake on S3"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    """A store with the bucket `lakes`, known to this process's session."""
    made = S3Server(tmp_path_factory.mktemp("s3"))
    made.start()
    (made.buckets / "lakes").mkdir()
    context: Any = spark.sparkContext
    for name, value in made.spark.items():
        context._jsc.hadoopConfiguration().set(name.removeprefix("spark.hadoop."), value)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log's file, of a channel that is well."""
    path = tmp_path_factory.mktemp("log") / "log.db"
    channel: material.Log = {(CHANNEL_TOPIC, number): [] for number in range(material.PARTITIONS)}
    for entry in honest(11, 120):
        channel[CHANNEL_TOPIC, entry.partition].append(Payload(None, entry.value))
    asyncio.run(material.write(path, material.records(5) | channel))
    return path


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """What a run on this disk makes of the log."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("undisturbed") / "lake"))
    Ingest(lake, SqliteSource(log), Options(partitions=material.PARTITIONS)).run_available()
    return lake


def ingest(store: S3Server, log: Path, root: str, said: Path, point: str = "") -> subprocess.Popen[bytes]:
    given = ["--lake", root, "--log", f"sqlite:{log}", "--max-per-trigger", "120", "--memory", "1g"]
    conf = [word for name, value in (QUICK | store.spark).items() for word in ("--conf", f"{name}={value}")]
    return started([*LOADMANAGER, "ingest", *given, *conf], said, {VARIABLE: point} if point else {})


@pytest.mark.release
@pytest.mark.go
def test_an_ingest_that_is_killed_has_the_tables_of_one_that_was_not(store, spark, log, undisturbed, tmp_path, here):
    root, said = "s3a://lakes/killed", tmp_path / "said"
    for point in POINTS:
        assert ingest(store, log, root, said, point).wait(PATIENCE_S) == KILLED, said.read_text()
    assert WARNING in ended(ingest(store, log, root, said), said)
    lake = Lake(spark, root)
    assert lake.folder == ""
    assert differences(lake, undisturbed) == {}
    assert missed(lake, SqliteSource(log).read(spark, TOPICS)) == ""
    for name, path in {"there": root, "here": undisturbed.root}.items():
        here(tmp_path / name, "analyse", "--lake", path, "--analysis", "imbalance")
        here(tmp_path / name, "audit", "--lake", path)
    for name in ("analyses/imbalance", "audit"):
        assert published.read(tmp_path / "there", name).rows == published.read(tmp_path / "here", name).rows
    assert published.read(tmp_path / "there", "audit").facts["violations"] == 0


@pytest.mark.slow
def test_a_lake_on_s3_without_its_jars_says_how_to_bring_them(tmp_path: Path):
    some = tmp_path / "jars" / jars.folder().name
    shutil.copytree(jars.folder(), some, symlinks=True, ignore=lambda *_: {jars.S3}, copy_function=os.symlink)
    environment = {jars.PLACE: str(some.parent)}
    job = started([*LOADMANAGER, "analyse", "--lake", "s3a://lakes/any"], tmp_path / "said", environment)
    assert job.wait(PATIENCE_S) == 1
    [*_, last] = (tmp_path / "said").read_text().splitlines()
    assert last.startswith("Error: ")
    assert last.endswith("; run `loadmanager history jars --s3` once")
