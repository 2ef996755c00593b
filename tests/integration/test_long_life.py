"""The channel's whole life, as real processes under a load that never stops.

Bundles split and merge all the time, snapshots are written and the log is trimmed every few seconds. The channel owner
is killed in the middle of each of these; then everything is stopped and started from snapshots; then it moves from
SQLite to Kafka and ZooKeeper and goes on there. No request fails, no increment is lost or counted twice, tokens only
grow, and all replicas agree throughout.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from stack.servers import KafkaServer, ZooKeeperServer
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.record import Action, Token
from tests.integration.long_life.agreement import Agreement
from tests.integration.long_life.churn import Churn, Range
from tests.integration.long_life.cluster import Cluster
from tests.integration.long_life.commands import as_options, loadmanager, verify
from tests.integration.long_life.counting import PATIENCE_S, Counting, tokens_by_topic
from tests.integration.long_life.losses import Losses
from tests.integration.long_life.onlooker import Onlooker
from tests.integration.long_life.points import Point
from tests.integration.long_life.waiting import until, until_told
from tests.servers import coordination_root, topic_prefix

NAMESPACE = "life/counters"
BUNDLES = tile(NAMESPACE, even_boundaries(16))
CHURNED, PLACE = BUNDLES[:3], BUNDLES[8]
OLD_AGE, NEW_AGE = 200, 100
"""Splits after which the first log, and the second, count as old."""

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.timeout(900),
    pytest.mark.slow,
]


def common_settings() -> dict[str, object]:
    return {
        "cluster": "life",
        "topic_prefix": topic_prefix("life"),
        "development": True,
        "balancing": False,
        "quarantine_deaths": 0,  # brokers are killed here while they take bundles, and no bundle is to blame
        "session_timeout_s": 4.0,
        "snapshot_records": 200,
        "snapshot_interval_s": 3.0,
        "log_retention_s": 2.0,
    }


class Life:
    """What all of the acts have in common."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.counting = Counting(cluster, NAMESPACE)
        self.agreement = Agreement(cluster)
        self._began_s = time.monotonic()

    def note(self, text: str) -> None:
        """For whoever has to find out what went wrong."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}; {self.counting.ok} requests answered", flush=True)

    async def check(self, after: str) -> None:
        """All agree, nothing failed, the store had to refuse nobody."""

        async def is_whole_or_never_will_be() -> bool:
            return bool(self.cluster.refused) or await self.cluster.is_whole(NAMESPACE)

        await until_told(is_whole_or_never_will_be, f"every bundle has an owner after {after}")
        assert self.cluster.refused == []
        self.counting.assert_none_failed()
        await self.agreement.until_equal()
        await self.verify()
        self.note(after)

    async def verify(self) -> None:
        """An auditor of its own folds the log, and compares with the snapshots and the living brokers."""
        await verify(self.cluster.settings, [member.name for member in self.cluster.up()])

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[Onlooker]:
        """With an onlooker that reads the present log from its beginning."""
        async with Onlooker(self.cluster.settings).running() as onlooker:
            self.agreement.onlooker = onlooker
            try:
                yield onlooker
                assert onlooker.read_everything
            finally:
                self.agreement.onlooker = None


async def test_a_cluster_lives_long(tmp_path: Path, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer):
    on_sqlite = {**common_settings(), "log": f"sqlite:{tmp_path}/cluster.db", "partitions": 4}
    on_kafka = {
        **on_sqlite,
        "log": f"kafka://{kafka_server.address}",
        "coordination": f"zookeeper://{zookeeper_server.address}{coordination_root('life')}",
        "partitions": 3,  # of which a lower one has the namespace: tokens would go back, were it not for the generation
    }
    async with Cluster(tmp_path, on_sqlite) as cluster, AsyncExitStack() as until_the_move:
        life = Life(cluster)
        onlooker = await until_the_move.enter_async_context(life.watched())  # before the first snapshot
        await cluster.start()
        await loadmanager(
            *("namespaces", "create", NAMESPACE, "--bundles", str(len(BUNDLES))),
            *("--admin-url", f"http://{cluster.members[0].name}"),
        )
        async with life.agreement.watched(), life.counting.patiently():
            async with life.counting.steadily():
                await life.check("the start")
                await _grows_old(life, onlooker, OLD_AGE)
                await _loses_its_channel_owner(life, onlooker)
            async with life.counting.steadily(PATIENCE_S):  # without any broker, for as long as the machine needs
                await _is_stopped_and_started(life, onlooker)
            owners = await onlooker.owners(NAMESPACE)
            await until_the_move.aclose()
            await _moves(life, on_kafka)
            async with life.watched() as onlooker:
                assert await onlooker.owners(NAMESPACE) == owners, "the move lost owners"
                await cluster.start()
                await life.check("the move to Kafka")
                async with life.counting.steadily():
                    await _lives_on(life, onlooker)
                    async with Churn(cluster, CHURNED).running():
                        await until(lambda: _changed_often(tokens_by_topic(cluster.store)), "ownership changed often")
        life.counting.assert_each_counted_once()
        _assert_tokens_grew(cluster.store)
        life.note("the end")


async def _grows_old(life: Life, onlooker: Onlooker, splits: int) -> None:
    """Until the log is trimmed, and many bundles have come and gone."""
    partition = onlooker.replica.table.partition_of(NAMESPACE)
    churn = Churn(life.cluster, CHURNED)
    async with churn.running():
        await until(lambda: onlooker.accepted[Action.SPLIT] > splits, f"{splits} splits")

        async def is_trimmed() -> bool:
            return await onlooker.begin(partition) > 0

        await until_told(is_trimmed, "the log is trimmed")
        await life.verify()
    assert {"split 2", "split 5", "merge 2", "merge 5", "transfer"} <= churn.done.keys()
    await life.check("growing old")


async def _loses_its_channel_owner(life: Life, onlooker: Onlooker) -> None:
    """In the middle of each, two ways. Meanwhile everything goes on."""
    partition = onlooker.replica.table.partition_of(NAMESPACE)
    losses = Losses(life.cluster, onlooker, partition, Range(life.cluster, PLACE))
    for lose, points in (
        (losses.split, (Point.ASK_KEYS, Point.ACQUIRE)),
        (losses.merge, (Point.RELEASE, Point.ACQUIRE)),
        (losses.snapshot, (Point.SNAPSHOT_OPEN, Point.SNAPSHOT_COMMITTED)),
        (losses.trim, (Point.TRIM_ASKED, Point.TRIM_UNSWEPT)),
    ):
        for point in points:
            async with Churn(life.cluster, CHURNED).running():
                await lose(point)
            await life.check(f"a channel owner killed at {point}")


async def _is_stopped_and_started(life: Life, onlooker: Onlooker) -> None:
    """All brokers leave and come back; without snapshots they could not: the log does not say how it began."""
    begins = [await onlooker.begin(partition) for partition in range(onlooker.replica.table.partitions)]
    await life.cluster.stop()
    await life.cluster.start()
    partition = onlooker.replica.table.partition_of(NAMESPACE)
    assert begins[partition] > 0
    for member in life.cluster.members:
        assert all(max(loaded, 0) >= begin for loaded, begin in zip(member.loaded, begins, strict=True)), member.loaded
    await life.check("stopping and starting all brokers")


async def _moves(life: Life, on_kafka: dict[str, object]) -> None:
    """The brokers are killed, all at once and with all that they own, and the channel moves."""
    cluster, old = life.cluster, life.cluster.settings
    await cluster.kill()
    told = await loadmanager("migrate", "--from-log", str(old["log"]), "--wait", "30", *as_options(on_kafka))
    cluster.settings = on_kafka
    life.note(f"moved: {' '.join(told.split())}")


async def _lives_on(life: Life, onlooker: Onlooker) -> None:
    """On the new log all is as it was: it grows, and loses its owner."""
    await _grows_old(life, onlooker, NEW_AGE)
    partition = onlooker.replica.table.partition_of(NAMESPACE)
    losses = Losses(life.cluster, onlooker, partition, Range(life.cluster, PLACE))
    for lose, point in (
        (losses.split, Point.ASK_KEYS),
        (losses.snapshot, Point.SNAPSHOT_OPEN),
        (losses.trim, Point.TRIM_ASKED),
    ):
        async with Churn(life.cluster, CHURNED).running():
            await lose(point)
        await life.check(f"a channel owner killed at {point}, on Kafka")
    await losses.pause_and_succession()
    await life.check("a channel owner that paused in a transaction, on Kafka")


def _assert_tokens_grew(store: Path) -> None:
    """Of every key, over the whole life: two logs, many owners."""
    by_topic = tokens_by_topic(store)
    for topic, tokens in by_topic.items():
        assert tokens == sorted(set(tokens)), f"{topic} was written under {tokens}"
    first, second = {token.generation for tokens in by_topic.values() for token in tokens}
    assert second > first or first > second
    assert _changed_often(by_topic), "ownership hardly changed"


def _changed_often(by_topic: Mapping[str, Sequence[Token]]) -> bool:
    return sum(len(tokens) for tokens in by_topic.values()) > 10 * len(by_topic)
