"""A replica starts from a snapshot and the log after it, and loads again where it fell behind a trimmed log."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from zlib import crc32

import msgspec
import pytest

from statechannel.errors import BadSnapshot, LogRetired, NewerRecord
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record, Role
from statechannel.law.snapshot import INDEX_KEY, SNAPSHOTS, SnapshotInfo, SnapshotsReader, closing, encode
from statechannel.law.verdict import Change, Unknown
from statechannel.ports import Log, Payload
from statechannel.runtime.channel import Channel, ChannelSettings
from tests.loadmanager.small_world import A, B, Hand, process, replica, virtually
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World
from tests.statechannel.test_service import TOPIC, noop

SNAPSHOTS_TOPIC = TOPIC + SNAPSHOTS


async def snapshot(channel: Channel, log: Log, name: str, keep: Collection[str] = ()) -> SnapshotInfo:
    """Write a snapshot of partition 0, as its channel owner would."""
    reader = SnapshotsReader(0)
    async for batch in log.read(SNAPSHOTS_TOPIC, 0, 0):
        for entry in batch:
            reader.take(entry)
    *chunks, info = encode(channel.table.cut(0), name, 0)
    assert isinstance(info, SnapshotInfo)
    cluster_identity = channel.table.cluster_identity
    assert cluster_identity is not None
    writer = await log.exclusive("test")
    payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
    await writer.commit(SNAPSHOTS_TOPIC, 0, [*payloads, *closing(reader.index, cluster_identity, 0, info, keep)])
    await writer.close()
    return info


async def claimed(channel: Channel) -> tuple[Bundle, ...]:
    """The channel of a cluster with one namespace, one of whose bundles A owns."""
    await channel.claim_cluster("c", A)
    bundles = await Hand(channel).create(4)
    await Hand(channel).write(Action.OWN, bundles[0], A, A)
    await Hand(channel).write(Action.RETURN, bundles[0], A)
    return bundles


def late(world: World) -> Channel:
    """One that was not there so far."""
    settings = ChannelSettings(TOPIC, partitions=1, publish_timeout_s=1.0)
    return Channel(world.log_client(process(world, "late:1")), settings, nonce="late", wall_ms=world.wall_ms)


async def trim(world: World, log: Log) -> int:
    """Forget all that there is in the log of partition 0."""
    (end, *_) = await log.ends(TOPIC)
    await log.trim(TOPIC, 0, end)
    return end


@virtually
async def test_it_starts_from_the_newest_snapshot_and_the_log_after_it(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        bundles = await claimed(channel)
        await snapshot(channel, log, "one")
        await trim(world, log)
        await Hand(channel).write(Action.OWN, bundles[1], B, B)
        other = late(world)
        await other.open()
        assert [info and info.snapshot_id for info in other.loaded] == ["one"]
        assert other.table.get(bundles[0]) == channel.table.get(bundles[0])
        async with other.running():
            await other.catch_up(5)
            assert other.table.digest(0) == channel.table.digest(0)
            assert (await other.claim_cluster("c", B)) == channel.table.cluster_identity


@virtually
async def test_without_a_snapshot_a_trimmed_log_is_refused(world: World):
    async with replica(world) as channel:
        await claimed(channel)
        await trim(world, channel.replica.log)
        with pytest.raises(BadSnapshot, match=r"there is none.*from a backup"):
            await late(world).open()


@virtually
async def test_damaged_newest_snapshot_is_refused_for_an_equal_older_one(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        bundles = await claimed(channel)
        await snapshot(channel, log, "one")
        await Hand(channel).write(Action.OWN, bundles[1], B, B)
        await snapshot(channel, log, "two", keep={"one"})
        await log.append(SNAPSHOTS_TOPIC, 0, [Payload(b"two/0", b"LS01 00000000 junk")])
        other = late(world)
        await other.open()
        assert [info and info.snapshot_id for info in other.loaded] == ["one"]
        async with other.running():
            await other.catch_up(5)
            assert other.table.digest(0) == channel.table.digest(0)


@virtually
async def test_a_damaged_snapshot_with_nothing_else_to_start_from_is_refused(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        await claimed(channel)
        await snapshot(channel, log, "one")
        await log.append(SNAPSHOTS_TOPIC, 0, [Payload(b"one/0", None)])
        await trim(world, log)
        with pytest.raises(BadSnapshot, match="lacks 1 of 1 chunks"):
            await late(world).open()


@virtually
async def test_a_snapshot_beyond_the_logs_end_is_refused(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        await claimed(channel)
        info = await snapshot(channel, log, "one")
        cluster_identity = channel.table.cluster_identity
        assert cluster_identity is not None
        ahead = msgspec.structs.replace(info, next_offset=1_000)
        await log.append(SNAPSHOTS_TOPIC, 0, [closing(None, cluster_identity, 0, ahead, ())[0]])
        with pytest.raises(BadSnapshot, match="up to 1000, but the log ends at"):
            await late(world).open()


@virtually
async def test_snapshots_of_another_log_are_refused(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        await claimed(channel)
        info = await snapshot(channel, log, "one")
        cluster_identity = channel.table.cluster_identity
        assert cluster_identity is not None
        foreign = msgspec.structs.replace(cluster_identity, identity="another")
        await log.append(SNAPSHOTS_TOPIC, 0, [closing(None, foreign, 0, info, ())[0]])
        other = late(world)
        with pytest.raises(BadSnapshot, match="restore both from one backup"):
            await other.open()
        await trim(world, log)  # then it does not say any more whose it is, until somebody claims it
        await other.open()
        async with other.running():
            await other.catch_up(5)
            with pytest.raises(BadSnapshot, match="restore both from one backup"):
                await other.claim_cluster("c", B)


@virtually
async def test_an_index_of_a_newer_format_is_left_to_newer_releases(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        await claimed(channel)
        head, body = b"LS7f", b"unknown"
        await log.append(
            SNAPSHOTS_TOPIC, 0, [Payload(INDEX_KEY, head + b" %08x " % crc32(body, crc32(head)) + body)]
        )  # fmt: skip
        with pytest.raises(NewerRecord, match="upgrade"):
            await late(world).open()


@virtually
async def test_replica_behind_the_trimmed_log_loads_a_snapshot_and_tells_listeners(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        bundles = await claimed(channel)
        other = late(world)
        await other.open()
        await Hand(channel).write(Action.OWN, bundles[1], B, B)
        await snapshot(channel, log, "one")
        await trim(world, log)
        await Hand(channel).write(Action.OWN, bundles[2], B, B)
        reloaded: list[int] = []
        changes: list[Change] = []
        other.replica.on_reload(reloaded.append)
        other.listen(changes.append)
        waiting = other.next_change(bundles[1])
        async with other.running():
            await waiting
            await other.catch_up(5)
            assert other.table.digest(0) == channel.table.digest(0)
        assert reloaded == [0]
        assert [change.transitions[0].bundle for change in changes] == [bundles[2]], "only what came after it"
        assert other.counts["reloads"] == 1


@virtually
async def test_replica_without_log_and_snapshot_stops_and_skips_nothing(world: World):
    async with replica(world) as channel:
        await claimed(channel)
        other = late(world)
        await other.open()
        await trim(world, channel.replica.log)
        async with other.running():
            await other.stopped.wait()
            assert isinstance(other.stopped_by, BadSnapshot)
            assert other.table.next_offset(0) == 0


@virtually
async def test_publishes_with_a_verdict_in_the_unread_part_end_as_unknown(world: World):
    async with replica(world) as channel:
        log = channel.replica.log
        await claimed(channel)
        async with replica(world, "b:1", publish_timeout_s=60.0) as behind:
            await behind.catch_up(5)
            world.network.cut("b:1", LOG_SERVER, requests=False)
            publishing = asyncio.ensure_future(behind.publish(noop(B), 0))
            (end, *_) = await log.ends(TOPIC)
            await world.until(lambda: channel.table.next_offset(0) > end, 5, "it was appended")
            for _ in range(20):  # more than is under way to it
                await channel.publish(noop(), 0)
            await snapshot(channel, log, "one")
            await trim(world, log)
            behind.replica.announce_reload(0)
            verdict = await publishing
            assert isinstance(verdict, Unknown)
            assert "fell behind" in verdict.detail


@virtually
async def test_a_retired_log_stops_its_replicas_and_is_not_opened_again(world: World):
    async with replica(world) as channel:
        await claimed(channel)
        channel.write_version = 2
        verdict = await channel.publish(Record("", Action.RETIRE, A, Role.ADMIN, moved_to="kafka://elsewhere:9092"), 0)
        assert isinstance(verdict, Change)
        await channel.stopped.wait()
        assert isinstance(channel.stopped_by, LogRetired)
        other = late(world)
        await other.open()
        async with other.running():
            await other.stopped.wait()
            assert "kafka://elsewhere:9092" in str(other.stopped_by)
            assert not await other.read_back(0, B), "nothing is proved by it any more"
