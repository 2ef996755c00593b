"""A broker whose coordination root belongs to a log begins no other one: brokers that still serve would read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import ForeignCluster
from statechannel.ports import TopicSpec
from tests.loadmanager.embedded import embedded

CHANNEL = "bundle-state"


@pytest.fixture
async def lost(tmp_path: Path) -> Path:
    """The log's file, which is gone; its coordination root is there."""
    broker = embedded(tmp_path)
    await broker.start()
    await broker.stop(0)
    lose_log(tmp_path)
    return tmp_path / "cluster.db"


def lose_log(directory: Path) -> None:
    for each in directory.glob("cluster.db*"):
        if "coordination" not in each.name:
            each.unlink()


async def test_broker_creates_no_log_if_that_of_its_root_is_gone(lost: Path, tmp_path: Path):
    with pytest.raises(ForeignCluster, match=r"belongs to cluster .* with log .* no topic 'bundle-state'"):
        await embedded(tmp_path).start()
    log = SqliteLog(lost)
    await log.start(5)
    try:
        assert not await log.has_topic(CHANNEL)
    finally:
        await log.close()


async def test_broker_writes_nothing_into_an_empty_log_if_its_root_has_another(lost: Path, tmp_path: Path):
    log = SqliteLog(lost)
    await log.start(5)
    try:
        await log.open_topic(TopicSpec(CHANNEL))
        with pytest.raises(ForeignCluster, match="the log here is empty"):
            await embedded(tmp_path).start()
        assert set(await log.ends(CHANNEL)) == {0}
    finally:
        await log.close()
