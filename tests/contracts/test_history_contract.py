"""History, watches and audits read the log in ways of their own: the same on every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loadmanager.channel.audit.verification import Outcome, PartitionAudit
from loadmanager.channel.bundle_history import history_of
from loadmanager.channel.log_status import SnapshotLists
from loadmanager.channel.replay_queue import TIMEOUT_S, ReplayQueue
from loadmanager.channel.watch import RecentChanges, Watching
from loadmanager.errors import Gone
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action
from statechannel.law.snapshot import SnapshotInfo, closing, encode
from statechannel.ports import Payload
from statechannel.runtime.channel import Channel, ChannelSettings
from statechannel.runtime.replay import Replay
from statechannel.runtime.view import wall_clock_ms
from tests.contracts.entries import WAIT_S
from tests.loadmanager.small_world import A, B, Hand


@pytest_asyncio.fixture
async def channel(logs) -> AsyncIterator[Channel]:
    settings = ChannelSettings(logs.topic("chronicle"), partitions=1)
    channel = Channel(await logs.open(), settings, nonce="n", wall_ms=wall_clock_ms)
    await channel.open()
    async with channel.running():
        await channel.claim_cluster("c", A)
        yield channel


@pytest_asyncio.fixture
async def bundles(channel) -> tuple[Bundle, ...]:
    return await Hand(channel).create(4)


async def snapshot(channel: Channel, name: str) -> SnapshotInfo:
    """Of what the channel's table says now; in place of all others."""
    log, cluster_identity = channel.replica.log, channel.table.cluster_identity
    assert cluster_identity is not None
    [known] = await SnapshotLists(log, channel.topic).all()
    *chunks, info = encode(channel.table.cut(0), name, 0)
    assert isinstance(info, SnapshotInfo)
    writer = await log.exclusive(f"{channel.topic}-writer")
    payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
    await writer.commit(channel.snapshots_topic, 0, [*payloads, *closing(known, cluster_identity, 0, info, ())])
    await writer.close()
    return info


async def told(channel: Channel, bundle: Bundle, since_ms: int | None = None) -> list[tuple[Action, bool]]:
    log = channel.replica.log
    replays = ReplayQueue(log, channel.topic, TIMEOUT_S)
    found = await history_of(replays, log, channel.topic, bundle, (0, 1), limit=10, since_ms=since_ms)
    return [(entry.action, entry.accepted) for entry in found.entries]


async def test_history_is_read_from_the_log_and_from_the_snapshot_before_it(channel, bundles):
    hand = Hand(channel)
    await hand.assign(bundles[0], A)
    await hand.write(Action.OWN, bundles[0], B, B)
    whole = [(Action.OWN, False), (Action.RETURN, True), (Action.OWN, True), (Action.CREATE_NAMESPACE, True)]
    assert await told(channel, bundles[0]) == whole
    info = await snapshot(channel, "one")
    await channel.replica.log.trim(channel.topic, 0, info.next_offset)
    await hand.accept(Action.UNLOAD, bundles[0], A)
    assert await told(channel, bundles[0]) == [(Action.UNLOAD, True)]
    assert await told(channel, bundles[0], since_ms=wall_clock_ms() + 60_000) == []


async def test_the_list_of_snapshots_is_read_without_the_snapshots(channel, bundles):
    lists = SnapshotLists(channel.replica.log, channel.topic)
    assert await lists.all() == [None]
    for name in ("one", "two", "three"):
        info = await snapshot(channel, name)
        [index] = await lists.all()
        assert index is not None
        assert index.snapshots == (info,)


async def test_an_audit_agrees_with_snapshots_and_finds_no_gap(channel, bundles):
    hand = Hand(channel)
    await hand.assign(bundles[0], A)
    await snapshot(channel, "one")
    await hand.assign(bundles[1], B)
    audit = PartitionAudit(channel.replica.log, channel.topic, 0, 1, ())
    findings = await audit.run()
    assert {(finding.who, finding.outcome) for finding in findings} == {
        ("snapshot one", Outcome.AGREES),
        ("log", Outcome.AGREES),
    }
    assert "no entries" not in findings[-1].detail
    assert audit.cluster_identity == channel.table.cluster_identity


async def test_a_fold_goes_on_while_the_log_grows(channel, bundles):
    hand, fold = Hand(channel), Replay(channel.replica.log, channel.topic, 0, 1)
    await fold.open()
    for bundle in bundles:
        await hand.assign(bundle, A)
        async for _ in fold.run(channel.table.next_offset(0)):
            pass
        assert fold.table.digest(0) == channel.table.digest(0)


async def test_a_watch_goes_on_from_the_log_until_that_was_trimmed(channel, bundles):
    recent = RecentChanges(channel.replica, changes_kept=1)
    watched = Watching(channel.replica, ReplayQueue(channel.replica.log, channel.topic, TIMEOUT_S), recent=recent)
    begun, hand = watched.revision(), Hand(channel)
    for bundle in bundles:
        await hand.assign(bundle, A)
    offsets: list[int] = []
    stream = (await watched.begin(None, str(begun))).pieces()
    async with asyncio.timeout(WAIT_S):
        while len(offsets) < 8:
            piece = await anext(stream)
            offsets += [piece.change.offset] if piece.change is not None else []
    await stream.aclose()
    assert offsets == sorted(set(offsets))
    info = await snapshot(channel, "one")
    await channel.replica.log.trim(channel.topic, 0, info.next_offset)
    with pytest.raises(Gone):
        await watched.begin(None, str(begun))
