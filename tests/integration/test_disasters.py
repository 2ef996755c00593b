"""The procedures of `docs/disaster-recovery.md`, on real servers that really lose their data, under traffic.

Each test runs the commands of the page as they stand there. In the end no request has failed, no acknowledged increment
is lost or doubled, and no key was written under an older token than before (`rehearsal.py`).
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from statechannel.law.record import Token
from tests.integration.rehearsal import NAMESPACE, Rehearsal, rehearsal

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
]

PREPARE = f"""
loadmanager policies set namespace {NAMESPACE} '{{"weight": 2}}' --reason "a policy to keep"
loadmanager config set bundle_rest_s 7 --reason "a setting to keep"
loadmanager namespaces split-bundle {NAMESPACE} --bundle 0x00000000_0x20000000 --parts 4
"""
KEPT = f"""
loadmanager policies show namespace {NAMESPACE} -o json | grep '"weight": 2'
loadmanager config get bundle_rest_s -o json | grep '"value": 7'
loadmanager namespaces bundles {NAMESPACE} | grep 0x08000000_0x10000000
"""
FORGOTTEN = f"""
if loadmanager policies show namespace {NAMESPACE}; then exit 1; fi
if loadmanager namespaces bundles {NAMESPACE} | grep 0x08000000_0x10000000; then exit 1; fi
"""
SHUFFLE = f"loadmanager namespaces unload {NAMESPACE} --yes"
"""Every bundle gets a later token than the backup knows."""


def generations(cluster: Rehearsal) -> set[int]:
    """Those of all tokens under which anything was stored."""
    with closing(sqlite3.connect(cluster.store)) as db:
        return {Token.parse(text).generation for (text,) in db.execute("SELECT DISTINCT token FROM increment")}


def moved_to_new_log(cluster: Rehearsal) -> dict[str, str]:
    """The settings of all brokers are those of the new log from now on; the variables of the page for it."""
    old = cluster.settings["coordination"]
    new = old.rpartition("/")[0] + "/second"
    cluster.settings |= {"topic_prefix": "second.", "coordination": new}
    return {"OLD_COORDINATION": old, "NEXT_GENERATION": "1"}


async def prepared_and_backed_up(cluster: Rehearsal) -> None:
    await cluster.shell(PREPARE)
    await cluster.follow("Back up")
    await cluster.shell(SHUFFLE)
    await cluster.whole()


async def restored(cluster: Rehearsal, title: str = "Restore into a new log") -> None:
    """Everything of the page, from the stop of all brokers to the end."""
    await cluster.kill()
    await cluster.follow(title, **moved_to_new_log(cluster))
    await cluster.start()
    await cluster.whole()
    await cluster.follow("Look whether it is whole")
    assert generations(cluster) == {0, 1}


async def test_all_topics_are_deleted(tmp_path: Path):
    async with rehearsal(tmp_path) as cluster:
        await prepared_and_backed_up(cluster)
        cluster.lose_topics()
        await cluster.counted(100, "they serve on without their log")
        assert "has no topic 'bundle-state'" in await cluster.refused()
        assert not [name for name in cluster.topics() if name.startswith("loadmanager")]
        await cluster.counted(100, "a broker that was started in vain ends nobody")
        assert not any(service.ended for service in cluster.services)
        await restored(cluster)
        await cluster.shell(KEPT)


async def test_data_of_zookeeper_is_lost(tmp_path: Path):
    async with rehearsal(tmp_path) as cluster:
        await cluster.shell(PREPARE)
        cluster.zookeeper.kill()
        shutil.rmtree(cluster.zookeeper.data_dir / "data")
        await asyncio.to_thread(cluster.zookeeper.start)
        await cluster.counted(100, "they serve on without their coordination root")
        assert "and the root here is empty" in await cluster.refused()
        await cluster.follow("ZooKeeper's data are lost")
        await cluster.whole()
        await cluster.follow("Look whether it is whole")
        await cluster.shell(KEPT)
        assert not any(service.ended for service in cluster.services)
        assert generations(cluster) == {0}


@pytest.mark.parametrize("backup", [True, False], ids=["with a backup", "without a backup"])
async def test_both_are_lost(tmp_path: Path, backup: bool):
    async with rehearsal(tmp_path, forgets=not backup) as cluster:
        await prepared_and_backed_up(cluster)
        cluster.down()
        await cluster.kill()
        shutil.rmtree(cluster.kafka_data)
        shutil.rmtree(cluster.zookeeper.data_dir / "data")
        await cluster.set_up_anew()
        title = "If the coordination root is lost as well" if backup else "If there is no backup"
        await restored(cluster, title)
        await cluster.shell(KEPT if backup else FORGOTTEN)


async def test_old_copy_of_kafkas_data_is_restored(tmp_path: Path):
    async with rehearsal(tmp_path) as cluster:
        await cluster.shell(PREPARE)
        copy = tmp_path / "copy"
        await cluster.copy_kafka(copy)
        await cluster.shell(SHUFFLE)
        await cluster.whole()
        cluster.kafka.kill()
        shutil.rmtree(cluster.kafka_data)
        shutil.copytree(copy, cluster.kafka_data)
        await asyncio.to_thread(cluster.kafka.start)
        await cluster.until(lambda: all(each.ended for each in cluster.services), "who has read further ends")
        assert all("the log was damaged, or replaced" in service.said() for service in cluster.services)
        await cluster.follow("An old copy of Kafka's data")
        await restored(cluster)
        await cluster.shell(KEPT)


async def test_records_of_one_partition_are_lost(tmp_path: Path):
    async with rehearsal(tmp_path) as cluster:
        await prepared_and_backed_up(cluster)
        cluster.kafka.stop()
        for partition in cluster.kafka_data.glob("loadmanager.bundle-state-[01]"):
            shutil.rmtree(partition)
        await asyncio.to_thread(cluster.kafka.start)
        await cluster.until(lambda: all(each.ended for each in cluster.services), "who has read further ends")
        assert "it is another log or lost its end" in await cluster.refused()
        await restored(cluster)
        await cluster.shell(KEPT)
