"""An ingest from a real Kafka on two workers, of which one dies in the middle, or one task is run twice.

Tasks write the tables' files themselves: what a lost task, or the slower one of two, has written is never committed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.positions import SILVER, reached
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, KafkaSource
from stack.servers import KafkaServer
from tests.history.conftest import QUICK
from tests.history.engines.standalone import HERE, Standalone, Worker
from tests.history.engines.submitting import LOADMANAGER, end, ended, options, seen, started, submitting, write
from tests.history.ingest import material
from tests.history.ingest.comparing import differences, missed
from tests.history.ingest.victim import uncommitted
from tests.servers import topic_prefix

ELSEWHERE = "127.0.0.2"
"""Spark runs the second copy of a slow task on another host than the first."""
SEED, REPORTS, STEPS = 23, 3_000, 400
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.python.task.killTimeout": "600s",  # the slower copy of a task writes its file to the end
}

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]


@pytest.fixture
def workers(cluster: Standalone) -> list[Worker]:
    """Two, on hosts of their own, with a core each."""
    for host in {HERE, ELSEWHERE} - {worker.host for worker in cluster.workers}:
        cluster.add(host, cores=1, memory="1g")
    return cluster.workers


@pytest.fixture(scope="module")
def source(kafka_server: KafkaServer) -> KafkaSource:
    """Topics without a report that comes twice: each table's rows are those of the files that tasks write."""
    made = KafkaSource(kafka_server.address, topic_prefix("history.engines"))
    write(made, {key: list(dict.fromkeys(all)) for key, all in material.records(SEED, REPORTS, STEPS).items()})
    return made


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, source: KafkaSource, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """What a run in one process makes of the topics."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("undisturbed") / "lake"))
    Ingest(lake, source, Options(partitions=material.PARTITIONS)).run_available()
    return lake


def conf(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def submit_conf(folder: Path, settings: dict[str, str]) -> dict[str, str]:
    """As a file for submit.sh."""
    file, every = folder / "given.conf", QUICK | {"spark.executor.memory": "512m"} | settings
    file.write_text("".join(f"{name} {value}\n" for name, value in every.items()))
    return {"CONF": str(file)}


def someone_writing(workers: list[Worker], table: Path) -> tuple[Worker, psutil.Process, Path] | None:
    for worker in workers:
        if found := worker.writing(table):
            return worker, *found
    return None


def test_an_ingest_that_loses_a_worker_has_each_record_once(cluster, workers, source, undisturbed, spark, tmp_path):
    root, log = tmp_path / "lake", tmp_path / "job.log"
    bronze = root / "tables" / "bronze"
    job = submitting(cluster.url, log, "ingest", *options(source, root), **submit_conf(tmp_path, {}))
    worker, _, file = seen(lambda: someone_writing(workers, bronze), job, log)
    cluster.lose(worker)
    said = ended(job, log)
    assert "Lost executor" in said
    assert file.relative_to(bronze).as_posix() in uncommitted(bronze)
    lake = Lake(spark, str(root))
    assert differences(lake, undisturbed) == {}
    assert missed(lake, source.read(spark, TOPICS)) == ""


def test_of_a_task_that_runs_twice_one_files_are_committed(cluster, workers, source, undisturbed, spark, tmp_path):
    root, log = tmp_path / "lake", tmp_path / "job.log"
    bronze = root / "tables" / "bronze"
    job = submitting(cluster.url, log, "ingest", *options(source, root), **submit_conf(tmp_path, SPECULATING))
    _, slow, file = seen(lambda: someone_writing(workers, bronze), job, log)
    try:
        seen(lambda: commits(bronze) > 1 or None, job, log)
    finally:
        slow.resume()
    seen(lambda: whole(file) or None, job, log)
    ended(job, log)
    assert file.relative_to(bronze).as_posix() in uncommitted(bronze)
    assert differences(Lake(spark, str(root)), undisturbed) == {}


def commits(table: Path) -> int:
    return len(list((table / "_delta_log").glob("*.json")))


def whole(file: Path) -> bool:
    """Whether it is complete: the footer comes last."""
    try:
        return pq.read_metadata(file).num_rows > 0
    except (OSError, ValueError):
        return False


def test_an_ingest_that_follows_goes_on_without_a_worker(cluster, workers, kafka_server, spark, tmp_path):
    source = KafkaSource(kafka_server.address, topic_prefix("history.followed"))
    root, log = tmp_path / "lake", tmp_path / "job.log"
    bronze, lake = root / "tables" / "bronze", Lake(spark, str(root))
    write(source, material.records(SEED, 60))
    given = [*options(source, root), "--master", cluster.url, "--memory", "1g", "--follow", "--trigger-s", "0"]
    quick = conf(QUICK | {"spark.executor.memory": "512m", "spark.log.level": "ERROR"})
    job = started([*LOADMANAGER, "ingest", *given, *quick], log, {})
    try:
        seen(lambda: commits(bronze) > 1 or None, job, log)
        write(source, material.records(SEED + 1, REPORTS, STEPS))
        worker, _, file = seen(lambda: someone_writing(workers, bronze), job, log)
        cluster.lose(worker)
        write(source, material.records(SEED + 2, 60))
        ends = ends_of(spark, source)
        seen(lambda: reached(lake, SILVER).next_offsets == ends or None, job, log)
        job.send_signal(signal.SIGTERM)
        ended(job, log)
    finally:
        end(job)
    assert file.relative_to(bronze).as_posix() in uncommitted(bronze)
    whole_lake = Lake(spark, str(tmp_path / "whole"))
    Ingest(whole_lake, source, Options(partitions=material.PARTITIONS)).run_available()
    assert differences(lake, whole_lake) == {}
    assert missed(lake, source.read(spark, TOPICS)) == ""


def ends_of(spark: SparkSession, source: KafkaSource) -> dict[tuple[str, int], int]:
    rows = source.read(spark, TOPICS).groupBy("topic", "partition").count().collect()
    return {(row["topic"], row["partition"]): row["count"] for row in rows}
