"""Real brokers on one SQLite file: snapshots, a trimmed log, and a broker that starts after all that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from tests.api.conftest import WAIT_S, Cluster


async def test_a_broker_that_starts_on_a_trimmed_log_knows_what_the_others_know(tmp_path: Path):
    cluster = Cluster(tmp_path, AsyncExitStack())
    try:
        await cluster.start(2, snapshot_records=1, log_retention_s=0.0)
        await cluster.create("t/n", 64)
        for i in range(20):
            await cluster.assign(f"t/n/topic-{i}")
        node = cluster.brokers[0].node
        partition = node.channel.table.partition_of("t/n")

        def trimmed() -> bool:
            keepers = [b.node.current.channel_owner.keepers.get(partition) for b in cluster.brokers]
            return any(keeper is not None and keeper.begin > 20 for keeper in keepers)

        bundle = await cluster.assign("t/n/topic-0")
        async with asyncio.timeout(WAIT_S):
            while not trimmed():  # to the snapshot before the last: a record makes one due
                await node.current.operations.transfer(bundle, cluster.other(cluster.owner(bundle)).name)
        assert (await node.world.log.begins("bundle-state"))[partition] > 20
        await cluster.start(1, snapshot_records=1, log_retention_s=0.0)
        late = cluster.brokers[2].node
        assert late.channel.loaded[partition] is not None
        await cluster.until(
            lambda: (
                late.channel.table.next_offset(partition) == node.channel.table.next_offset(partition)
                and late.channel.table.digest(partition) == node.channel.table.digest(partition)
            )
        )
    finally:
        await cluster.close()
