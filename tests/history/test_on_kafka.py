"""The load history on real Kafka and ZooKeeper: brokers move bundles under traffic while a job reads what they write
into a lakehouse and is killed ten times. The tables are those of a run that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.failpoints import POINTS, VARIABLE
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, KafkaSource
from stack.servers import KafkaServer, ZooKeeperServer
from tests.history.conftest import QUICK
from tests.history.ingest.comparing import differences, missed
from tests.integration.long_life.cluster import Cluster
from tests.integration.long_life.commands import ROOT, loadmanager
from tests.integration.long_life.waiting import until, until_told
from tests.integration.test_balanced_life import BUNDLES, NAMESPACE, Balanced, drifting, settings_on

DEADLY = tuple(f"{point}:1" for point in POINTS)
FROM_OUTSIDE = 3
"""Kills besides, of a run whose first batch is behind it: in all there are ten."""
PARTITIONS = 3
"""As `settings_on` has it."""

WITHIN_S = 240.0

pytestmark = [
    pytest.mark.release,
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.timeout(1200),
]


class Job:
    """`loadmanager history …` over one lake, as a process group of its own: killed, its JVM goes with it."""

    def __init__(self, settings: dict[str, object], lake: Path) -> None:
        self.lake = lake
        self._source = ["--log", str(settings["log"])]
        for name in ("topic_prefix", "cluster", "development"):
            self._source += ["--set", f"{name}={settings[name]}"]

    async def ingest(self, *options: str, failpoint: str = "") -> Process:
        """Start it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LOADMANAGER_")}
        if failpoint:
            environment[VARIABLE] = failpoint
        conf = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
        arguments = ["history", "ingest", "--lake", str(self.lake), "--memory", "700m", *conf, *self._source, *options]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", *arguments),
            cwd=ROOT, env=environment, stdout=PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def commits(self) -> int:
        """How many batches bronze has."""
        return len(list((self.lake / "tables" / "bronze" / "_delta_log").glob("*.json")))


async def _ended(process: Process, why: str) -> str:
    """What it printed. Raises AssertionError if it goes on for too long."""
    telling = asyncio.create_task(process.communicate())
    done, _ = await asyncio.wait([telling], timeout=WITHIN_S)
    if not done:
        os.killpg(process.pid, signal.SIGKILL)
    told = (await telling)[0].decode()
    assert done, f"it did not end within {WITHIN_S:g} s at {why}: {told}"
    return told


async def _killed_everywhere(job: Job, moved: Callable[[], Awaitable[bool]]) -> None:
    """Ten times: at each point of a batch, and from outside while it writes. Traffic goes on: there is always more."""
    for failpoint in DEADLY:
        process = await job.ingest("--follow", "--trigger-s", "0", "--gold-s", "1", failpoint=failpoint)
        told = await _ended(process, failpoint)
        assert process.returncode == -signal.SIGKILL, told
    for _ in range(FROM_OUTSIDE):
        commits = job.commits()
        process = await job.ingest("--follow", "--trigger-s", "0")
        await until(lambda seen=commits: job.commits() > seen, "one more batch", WITHIN_S)
        os.killpg(process.pid, signal.SIGKILL)
        await _ended(process, "a kill from outside")
    await until_told(moved, "bundles have moved meanwhile")


async def test_a_job_that_is_killed_ten_times_has_the_tables_of_one_that_was_not(
    tmp_path: Path, spark: SparkSession, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    assert len(DEADLY) + FROM_OUTSIDE == 10
    settings = settings_on(kafka_server, zookeeper_server)
    killed = Job(settings, tmp_path / "killed")
    async with Cluster(tmp_path, settings) as cluster:
        await cluster.start()
        here = Balanced(cluster)
        await loadmanager(
            *("namespaces", "create", NAMESPACE, "--bundles", str(BUNDLES)),
            *("--admin-url", f"http://{cluster.members[0].name}"),
        )

        async def moved() -> bool:
            return any(each["moves"] for each in await here.decisions())

        async with drifting(cluster):
            await _killed_everywhere(killed, moved)
        await cluster.stop()
    source = KafkaSource(kafka_server.address, str(settings["topic_prefix"]))
    lake, other = Lake(spark, str(killed.lake)), Lake(spark, str(tmp_path / "whole"))
    for each in (lake, other):
        Ingest(each, source, Options(partitions=PARTITIONS)).run_available()
    assert lake.table("transition").count() > BUNDLES
    assert differences(lake, other) == {}
    assert missed(lake, source.read(spark, TOPICS)) == ""
