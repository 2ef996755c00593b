"""Jobs through a real Spark Connect server, which is killed in the middle of one, and started again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadmanager.history import published
from loadmanager.history.ingest import Ingest, Options, refresh_gold
from loadmanager.history.ingest.positions import SILVER, Mark, advance
from loadmanager.history.jars import bring
from loadmanager.history.lake import Lake
from loadmanager.history.sources import SqliteSource
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from tests.history.engines.connect import ConnectServer
from tests.history.engines.submitting import LOADMANAGER, PATIENCE_S, end, ended, seen, started
from tests.history.ingest import material
from tests.history.ingest.comparing import differences
from tests.history.replay.games import lopsided
from tests.history.replay.written import written

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("tests/history/engines/test_connect.py"),  # one server for all of them
    pytest.mark.timeout(900),
]
TTL_S = 1_800.0
ENDED = "Error: the Spark Connect server ended, or was started again, while the job ran"


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConnectServer]:
    bring()
    made = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield made
    made.kill()


@pytest.fixture
def server(only: ConnectServer) -> ConnectServer:
    """The one for all tests, running."""
    if not only.running:
        only.start()
    return only


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Forty minutes in which nobody balanced."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("recorded") / "lake"))
    written(lopsided(40)).save(lake)
    advance(lake, SILVER, 0, [Mark(topic, 0, 1, 1, 0) for topic in (BROKERS_TOPIC, BUNDLES_TOPIC)])
    refresh_gold(lake, TTL_S)
    return lake


def job(
    log: Path, command: str, server: ConnectServer, lake: str, publish: Path, *more: str
) -> subprocess.Popen[bytes]:
    given = ["--remote", server.url, "--lake", lake, "--publish", str(publish), *more]
    return started([*LOADMANAGER, command, *given], log, {})


@pytest.mark.parametrize(
    ("command", "more", "results"),
    [
        ("replay", ["--candidate", "plan", "--window-s", "1200"], ["replay", "replay-windows"]),
        ("analyse", ["--analysis", "imbalance", "--analysis", "hot_bundles"], []),
        ("advise", ["--kind", "bundles"], ["advice"]),
    ],
)
def test_a_job_through_connect_answers_as_one_without(server, recorded, tmp_path, here, command, more, results):
    results = results or [f"analyses/{name}" for name in more[1::2]]
    said = ended(job(tmp_path / "log", command, server, recorded.root, tmp_path / "there", *more), tmp_path / "log")
    assert "Warning" not in said
    here(tmp_path / "here", command, "--lake", recorded.root, *more)
    for name in results:
        one, other = (published.read(tmp_path / place, name) for place in ("there", "here"))
        assert (one.rows, one.facts) == (other.rows, other.facts)
        assert one.rows or command == "advise"
        assert one.provenance.lake_versions == other.provenance.lake_versions


def test_a_report_through_connect_has_its_page_and_pictures(server, recorded, tmp_path):
    ended(job(tmp_path / "log", "report", server, recorded.root, tmp_path / "there"), tmp_path / "log")
    assert published.has_report(tmp_path / "there")
    assert "heat-map" in published.pictures(tmp_path / "there")


@pytest.mark.release
def test_an_ingest_through_connect_has_the_same_tables(server, spark, tmp_path):
    log, lake, whole = tmp_path / "log.db", tmp_path / "lake", Lake(spark, str(tmp_path / "whole"))
    asyncio.run(material.write(log, material.records(5, reports=20, steps=20)))
    given = ["--remote", server.url, "--lake", str(lake), "--log", f"sqlite:{log}"]
    ended(started([*LOADMANAGER, "ingest", *given], tmp_path / "said", {}), tmp_path / "said")
    Ingest(whole, SqliteSource(log), Options(partitions=material.PARTITIONS)).run_available()
    assert differences(Lake(spark, str(lake)), whole) == {}


def test_a_server_that_is_killed_is_named_and_another_one_answers(server, recorded, tmp_path):
    log, there = tmp_path / "log", tmp_path / "there"
    running = job(log, "analyse", server, recorded.root, there)
    try:
        seen(lambda: "[1/" in log.read_text() or None, running, log)
        server.kill()
        assert running.wait(PATIENCE_S) == 3
    finally:
        end(running)
    *_, last = log.read_text().splitlines()
    assert last.startswith(ENDED), log.read_text()
    assert "Traceback" not in log.read_text()
    whole = {f"{each.name}.json" for each in published.listed(there)}
    assert {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()} == whole
    server.start()
    ended(job(log, "analyse", server, recorded.root, there, "--analysis", "imbalance"), log)


def test_a_server_that_is_started_again_in_between_is_named(server, recorded, tmp_path):
    log, there = tmp_path / "log", tmp_path / "there"
    running = job(log, "analyse", server, recorded.root, there)
    try:
        seen(lambda: "[1/" in log.read_text() or None, running, log)
        server.kill()
        server.start()
        assert running.wait(PATIENCE_S) == 3
    finally:
        end(running)
    assert ENDED in log.read_text()


def test_a_server_that_writes_other_digits_is_refused(only: ConnectServer, tmp_path: Path):
    asyncio.run(material.write(tmp_path / "log.db", {}))
    only.kill()
    only.start(_JAVA_OPTIONS="-Duser.language=ar -Duser.country=EG")  # counts more than the options of a command
    given = ["--remote", only.url, "--lake", str(tmp_path / "lake"), "--log", f"sqlite:{tmp_path}/log.db"]
    run = subprocess.run(
        [*LOADMANAGER, "ingest", *given], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    only.kill()
    assert run.returncode == 1
    assert "the Spark Connect server writes other digits than 0 to 9" in run.stderr
    assert not (tmp_path / "lake").exists()
