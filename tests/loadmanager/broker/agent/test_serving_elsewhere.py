"""A host whose service is another process: its bundles are given up only when it says that the service has stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Bundle
from loadmanager.broker.node import Node
from statechannel.law.record import Action, Record, Role, Subject
from statechannel.law.verdict import Change
from tests.loadmanager.embedded import Host, bundles_of, cluster, until

NEVER_BY_THE_LEADER = {"proof_validity_s": 60.0, "session_timeout_s": 60.0}
"""A leader that revokes waits as long as proofs count before it releases in the holder's place."""


class Elsewhere(Host):
    """Says that its service has stopped when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = asyncio.Event()
        self.asked: list[Bundle] = []

    async def vacated(self, bundle: Bundle) -> None:
        self.asked.append(bundle)
        await self.stopped.wait()


async def unload(node: Node, bundle: Bundle) -> None:
    await node.current.operations.unload(bundle)


async def revoke(node: Node, bundle: Bundle) -> None:
    """As the leader does, which this broker is."""
    channel = node.channel
    entry = channel.table.get(bundle)
    lead = channel.table.lead(channel.table.partition_of(bundle.namespace))
    assert entry is not None
    assert lead.leader is not None
    subjects = (Subject(bundle, entry.revision),)
    record = Record("", Action.REVOKE, lead.leader, role=Role.LEADER, epoch=lead.epoch, subjects=subjects)
    assert isinstance(await channel.publish(record), Change)


@pytest.mark.parametrize("way", [unload, revoke])
async def test_bundle_is_given_up_only_when_its_service_has_stopped(tmp_path: Path, way: Any):
    host = Elsewhere()
    async with cluster(tmp_path, host, bundles=1, host_acquire_timeout_s=1.0, **NEVER_BY_THE_LEADER) as (broker,):
        (bundle,) = bundles_of(broker)
        given_up: list[bool] = []

        def look(change: Any) -> None:
            if change.record.action is Action.RELEASE:
                given_up.append(host.stopped.is_set())

        broker.node.channel.listen(look)
        moving = asyncio.create_task(broker.ask(lambda node: way(node, bundle)))
        await until(lambda: len(host.asked) >= 2)  # asked again after its time-out
        assert not broker.serving(bundle)
        host.stopped.set()
        await until(lambda: bool(given_up))
        assert given_up == [True]
        await moving
