"""The channel's shell on a simulated log: verdicts, batches, bounds, and what ends a replica or must not."""

from __future__ import annotations

import asyncio
from zlib import crc32

import pytest

from statechannel.errors import ForeignCluster, InvariantError, LogError, LogUnavailable, NewerRecord, RecordTooLarge
from statechannel.law import codec
from statechannel.law.bundle import even_boundaries
from statechannel.law.record import MAX_HAND_OFF_BYTES, NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.verdict import Change, Reason, Refusal, Unknown
from statechannel.ports import Payload
from statechannel.runtime.channel import Channel
from tests.loadmanager.small_world import ADMIN, A, B, Hand, process, replica, virtually
from tests.simulator.network import Faults
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

TOPIC = "bundle-state"


def noop(by: BrokerId = A) -> Record:
    return Record("", Action.NOOP, by)


def foreign(world: World, value: bytes) -> None:
    world.log.append(TOPIC, 0, [Payload(None, value)])


def of_a_later_format() -> bytes:
    head, body = b"LM63", b'{"new":1}'
    return head + b" %08x " % crc32(body, crc32(head)) + body


# --- verdicts


@virtually
async def test_of_two_that_own_one_bundle_the_first_wins_and_the_other_learns_it(world: World):
    async with replica(world, "a:1") as one, replica(world, "b:1") as two:
        (bundle,) = await Hand(one).create()
        await world.until(lambda: two.table.get(bundle) is not None, 1, "both have read it")
        mine, theirs = await asyncio.gather(
            Hand(one).write(Action.OWN, bundle, A, A), Hand(two).write(Action.OWN, bundle, B, B)
        )
        won, lost = (mine, theirs) if isinstance(mine, Change) else (theirs, mine)
        assert isinstance(won, Change)
        assert isinstance(lost, Refusal)
        assert lost.reason is Reason.STALE
        assert lost.winner is not None
        assert lost.winner.by == won.record.actor


@virtually
async def test_a_publish_that_is_not_read_back_is_unknown_and_settled_later(world: World):
    async with replica(world) as channel:
        world.network.cut("a:1", LOG_SERVER, requests=False)
        verdict = await channel.publish(noop(), 0)
        assert isinstance(verdict, Unknown)
        assert channel.settled(verdict.record_id) is None
        world.network.heal("a:1", LOG_SERVER)
        await world.until(lambda: channel.settled(verdict.record_id) is not None, 5, "the verdict is read late")
        assert isinstance(channel.settled(verdict.record_id), Change)


@virtually
async def test_unknown_says_what_the_log_answered_and_comes_in_time(world: World):
    async with replica(world) as channel:
        world.set_down(LOG_SERVER, True)
        began_s = world.now_s
        verdict = await channel.publish(noop(), 0)
        assert isinstance(verdict, Unknown)
        assert "did not answer" in verdict.detail
        assert world.now_s - began_s == pytest.approx(1.0, abs=0.05)


@virtually
async def test_log_that_always_refuses_leaves_the_channel_up_and_says_why(world: World):
    async with replica(world) as channel:

        async def refuse(*_: object) -> None:
            raise LogError("this user may not write here")

        channel._log.append = refuse  # type: ignore[method-assign]
        verdict = await channel.publish(noop(), 0)
        assert isinstance(verdict, Unknown)
        assert "may not write" in verdict.detail
        assert channel.counts["append_failed"] == 1


@virtually
async def test_repeated_copies_of_a_record_do_not_change_its_verdict(world: World):
    async with replica(world, publish_timeout_s=5.0) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        world.network.faults = Faults(lost_answer=1.0, repeated=1.0, repeat_within_s=0.5)
        verdict = await hand.write(Action.OWN, bundle, A, A)
        assert isinstance(verdict, Change)
        await world.until(lambda: channel.counts["refused stale"] >= 1, 5, "the copy was read, and refused")
        assert hand.entry(bundle).holder == A


# --- batches and bounds


@virtually
async def test_publishes_of_one_instant_travel_in_one_append(world: World):
    async with replica(world) as channel:
        appended: list[int] = []
        append = world.log.append

        def count(topic: str, partition: int, payloads: list[Payload]) -> None:
            appended.append(len(payloads))
            append(topic, partition, payloads)

        world.log.append = count  # type: ignore[method-assign]
        await asyncio.gather(*(channel.publish(noop(), 0) for _ in range(250)))
        assert appended == [250]


@virtually
async def test_no_more_than_the_limit_is_in_flight(world: World):
    async with replica(world, publish_limit=10) as channel:
        publishes = [asyncio.ensure_future(channel.publish(noop(), 0)) for _ in range(35)]
        most = 0
        while not all(publish.done() for publish in publishes):
            most = max(most, len(channel._verdicts))
            await asyncio.sleep(0.0001)
        assert most == 10
        assert all(isinstance(publish.result(), Change) for publish in publishes)


@virtually
async def test_a_proof_does_not_queue_behind_publishes_that_wait_for_room(world: World):
    async with replica(world, publish_limit=1, publish_timeout_s=60.0) as channel:
        world.network.cut("a:1", LOG_SERVER)
        stuck = [asyncio.ensure_future(channel.publish(noop(), 0)) for _ in range(100)]
        await asyncio.sleep(0.6)  # the append in flight is given up: it will have no verdict for a minute
        world.network.faults = Faults(late=0.0)
        world.network.heal("a:1", LOG_SERVER)
        async with asyncio.timeout(1.0):
            assert await channel.read_back(0, A)
        assert not any(publish.done() for publish in stuck)
        for publish in stuck:
            publish.cancel()


@virtually
async def test_only_the_record_that_is_too_large_fails_not_those_beside_it(world: World):
    async with replica(world) as channel:
        world.log.max_entry_bytes = 10_000
        large = Record(
            "", Action.CREATE_NAMESPACE, ADMIN, Role.ADMIN,
            namespace="t/large", seen_namespace=NEVER, boundaries=even_boundaries(4_000),
        )  # fmt: skip
        results = await asyncio.gather(
            channel.publish(noop(), 0), channel.publish(large, 0), channel.publish(noop(), 0), return_exceptions=True
        )
        assert [type(result) for result in results] == [Change, RecordTooLarge, Change]


@virtually
async def test_a_record_that_cannot_be_written_leaves_nothing_behind(world: World):
    async with replica(world) as channel:
        (bundle,) = await Hand(channel).create()
        subject = Subject(bundle, 0, b"x" * (MAX_HAND_OFF_BYTES + 1))
        with pytest.raises(RecordTooLarge):
            await channel.publish(Record("", Action.RELEASE, A, subjects=(subject,)))
        assert not channel._verdicts
        assert not channel.replica.core._waiting


@virtually
async def test_a_publish_that_is_cancelled_gives_its_room_back(world: World):
    async with replica(world, publish_limit=1) as channel:
        world.network.cut("a:1", LOG_SERVER)
        waiting = asyncio.ensure_future(channel.publish(noop(), 0))
        await asyncio.sleep(0.1)
        waiting.cancel()
        world.network.heal("a:1", LOG_SERVER)
        assert isinstance(await channel.publish(noop(), 0), Change)


@virtually
async def test_waiting_for_a_change_that_never_comes_leaves_nothing_behind(world: World):
    async with replica(world) as channel:
        (bundle,) = await Hand(channel).create()
        for _ in range(3):
            channel.next_change(bundle).cancel()
        await asyncio.sleep(0)
        assert not channel.replica._watchers


@virtually
async def test_publishing_to_a_closed_channel_is_unknown_at_once(world: World):
    async with replica(world) as channel:
        pass
    assert isinstance(await channel.publish(noop(), 0), Unknown)


@virtually
async def test_closing_resolves_who_still_waits(world: World):
    async with replica(world, publish_timeout_s=60.0) as channel:
        world.network.cut("a:1", LOG_SERVER)
        waiting = asyncio.ensure_future(channel.publish(noop(), 0))
        await asyncio.sleep(0.1)
    verdict = await waiting
    assert isinstance(verdict, Unknown)
    assert verdict.detail == "the channel is closed"


# --- what ends a replica, and what must not


@virtually
async def test_what_is_no_record_is_skipped_counted_and_reported_with_its_offset(world: World):
    async with replica(world) as channel:
        foreign(world, b"not ours")
        assert isinstance(await channel.publish(noop(), 0), Change)
        (skipped,) = channel.skipped
        assert (skipped.partition, skipped.offset, skipped.detail) == (0, 0, "not a record of this channel")
        assert channel.counts["skipped"] == 1


@virtually
async def test_a_newer_record_stops_the_replica_with_its_place_and_what_to_do(world: World):
    async with replica(world) as channel:
        await channel.publish(noop(), 0)
        foreign(world, of_a_later_format())
        foreign(world, codec.encode(Record("later", Action.LEAD, A, Role.LEADER, 1)))
        await channel.stopped.wait()
        assert isinstance(channel.stopped_by, NewerRecord)
        assert "partition 0, offset 1" in str(channel.stopped_by)
        assert "upgrade" in str(channel.stopped_by)
        assert channel.table.next_offset(0) == 1, "nothing after it is folded"
        with pytest.raises(NewerRecord):
            await channel.catch_up(1)
        assert not await channel.read_back(0, A), "nothing is proved by a replica that does not read"


@virtually
async def test_a_listener_that_fails_stops_the_replica_before_it_proves_anything(world: World):
    """Who did not hear of a revocation may serve what is not his."""
    async with replica(world) as channel:
        (bundle,) = await Hand(channel).create()

        def fail(_: Change) -> None:
            raise LookupError("a bug")

        channel.listen(fail)
        writing = asyncio.ensure_future(Hand(channel).write(Action.OWN, bundle, A, A))
        proving = asyncio.ensure_future(channel.read_back(0, A))
        await channel.stopped.wait()
        assert isinstance(channel.stopped_by, InvariantError)
        assert "LookupError" in str(channel.stopped_by)
        await writing
        assert not await proving


@virtually
async def test_catching_up_with_a_log_that_stalls_ends_in_time(world: World):
    async with replica(world, "a:1") as channel:
        await channel.publish(noop(), 0)
        log = world.log_client(process(world, "b:1"))
        late = Channel(log, channel._settings, nonce="late", wall_ms=world.wall_ms)
        await late.open()
        async with late.running():
            await late.catch_up(3)
            world.log.detach(world.log._tails[-1])
            late_start = world.now_s
            await channel.publish(noop(), 0)
            with pytest.raises(LogUnavailable, match="partition 0 ends at offset 2, and is read up to 1"):
                await late.catch_up(3)
            assert world.now_s - late_start == pytest.approx(3, abs=0.1)


# --- whose log


@virtually
async def test_the_first_cluster_to_claim_a_log_has_it(world: World):
    async with replica(world, "a:1") as one, replica(world, "b:1") as two:
        first, second = await asyncio.gather(one.claim_cluster("blue", A), two.claim_cluster("blue", B))
        assert first == second
        with pytest.raises(ForeignCluster, match=r"belongs to cluster 'blue', the settings say 'green'.*--cluster"):
            await two.claim_cluster("green", B)


@virtually
async def test_of_two_clusters_that_claim_at_once_one_is_refused(world: World):
    async with replica(world, "a:1") as one, replica(world, "b:1") as two:
        claims = await asyncio.gather(
            one.claim_cluster("blue", A), two.claim_cluster("green", B), return_exceptions=True
        )
        assert sorted(type(claim).__name__ for claim in claims) == ["ClusterIdentity", "ForeignCluster"]


@virtually
async def test_claiming_without_a_log_says_so(world: World):
    async with replica(world) as channel:
        world.set_down(LOG_SERVER, True)
        with pytest.raises(LogUnavailable, match="took no record"):
            await channel.claim_cluster("blue", A)
