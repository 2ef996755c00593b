"""Consumers of a real Kafka, whose group is coordinated by real brokers: what is read once, what again, and never not.

Planned changes repeat nothing: consumers that come and go, moves of the coordinator, also its broker's death.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.consumers.backlog.metrics import backlog_metrics
from loadmanager.consumers.coordinator.records import Mode, Settings
from loadmanager.errors import Conflict, NotFound
from statechannel.adapters.kafka.group_commits import GroupCommits
from tests.loadmanager.consumers.kafka_world import (
    PARTITIONS,
    WAIT_S,
    Reading,
    World,
    assert_read_once,
    finished,
    world,
)

__all__ = ["world"]

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.mark.slow
async def test_consumers_come_and_go_and_each_record_is_read_once(world: World) -> None:
    first = Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == PARTITIONS)
    second = Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == len(second.consumer.assignment) == 3)
    third = Reading(world)
    await world.until(lambda: [len(each.consumer.assignment) for each in (first, second, third)] == [2, 2, 2])
    await first.stop()
    await world.until(lambda: len(second.consumer.assignment) == len(third.consumer.assignment) == 3)
    await finished(world, first, second, third)
    assert_read_once(world, first, second, third)
    assert ("revoke", 3) in first.told
    assert not any(what == "lost" for each in (first, second, third) for what, _ in each.told)


@pytest.mark.slow
async def test_people_see_which_program_a_member_is_and_where_and_its_name_counts(world: World) -> None:
    shares = {"even": {world.topic: (0, 2, 4)}, "odd": {world.topic: (1, 3, 5)}}
    await world.coordinator.configure(world.group, Settings(strategy="CONFIG", config=shares))
    even = Reading(world, name="even", kafka={**world.options["kafka"], "client.id": "billing-7"})
    odd = Reading(world, name="odd")
    await world.until(lambda: len(even.consumer.assignment) == len(odd.consumer.assignment) == 3)
    found = await world.coordinator.describe(world.group)
    members = {each.name: (each.client_id, each.host) for each in found.members.values()}
    assert members == {"even": ("billing-7", socket.gethostname()), "odd": ("", socket.gethostname())}
    assert {found.members[holder].name for (_, number), holder in found.holders.items() if number % 2} == {"odd"}
    await finished(world, even, odd)
    assert_read_once(world, even, odd)


@pytest.mark.slow
async def test_consumers_in_a_rack_read_what_is_led_there_and_the_others_nothing(world: World) -> None:
    """All servers of this Kafka are in rack-1. `client.rack` is what Kafka's own consumers call it."""
    await world.coordinator.configure(world.group, Settings(strategy="MACHINE_ROOM_NEARBY-AVG"))
    there = Reading(world, kafka={**world.options["kafka"], "client.rack": "rack-1"})
    elsewhere = Reading(world, rack="rack-2")
    await world.until(lambda: len(there.consumer.assignment) == PARTITIONS)
    found = await world.coordinator.describe(world.group)
    await world.until(lambda: not elsewhere.consumer.assignment)
    assert sorted(each.rack for each in found.members.values()) == ["rack-1", "rack-2"]
    await finished(world, there, elsewhere)
    assert_read_once(world, there, elsewhere)


@pytest.mark.slow
async def test_latest_loses_nothing_over_a_restart_before_the_first_record(world: World) -> None:
    await asyncio.to_thread(world.send, PARTITIONS)
    commits = GroupCommits(world.kafka)
    assert await commits.retention_s() == 604_800.0, "Kafka's default"
    late: dict[str, Any] = {**world.options, "kafka": {**world.options["kafka"], "auto.offset.reset": "latest"}}
    with GroupConsumer(world.group, [world.topic], **late) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(consumer.assignment) < PARTITIONS:
                assert await asyncio.to_thread(consumer.poll, 0.1) is None
    partitions = [(world.topic, number) for number in range(PARTITIONS)]
    found = await commits.committed(world.group.partition("://")[2], partitions)
    assert found == dict.fromkeys(partitions, (1, 1))
    await asyncio.to_thread(world.send, PARTITIONS)
    seen = set[str]()
    with GroupConsumer(world.group, [world.topic], **late) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(seen) < PARTITIONS:
                message = await asyncio.to_thread(consumer.poll, 0.1)
                if message is not None:
                    seen.add((message.value() or b"").decode())
    assert seen == {str(number) for number in range(PARTITIONS, 2 * PARTITIONS)}


@pytest.mark.slow
async def test_latest_reads_nothing_of_before_also_where_kafka_takes_no_commits_of_the_group(world: World) -> None:
    """Members of Kafka's own protocol are in the group: so it has no committed offsets, and `poll` says so later."""
    await asyncio.to_thread(world.send, PARTITIONS)
    other = Consumer(
        {
            "bootstrap.servers": world.kafka,
            "broker.address.family": "v4",
            "group.id": world.group.partition("://")[2],
            "enable.auto.commit": False,
        }
    )
    other.subscribe([world.topic])
    late: dict[str, Any] = {**world.options, "kafka": {**world.options["kafka"], "auto.offset.reset": "latest"}}
    seen: list[str] = []

    def read() -> None:
        with GroupConsumer(world.group, [world.topic], **late) as consumer:
            while True:
                message = consumer.poll(0.1)
                if message is not None:
                    seen.append((message.value() or b"").decode())
                if len(consumer.assignment) == PARTITIONS:
                    world.send(1)

    try:
        async with asyncio.timeout(WAIT_S):
            while not other.assignment():
                await asyncio.to_thread(other.poll, 0.1)
            while not seen:  # the refused commit may come before the first record
                with pytest.raises(Conflict):
                    await asyncio.to_thread(read)
    finally:
        other.close()
    assert min(map(int, seen)) >= PARTITIONS


@pytest.mark.slow
async def test_latest_goes_on_at_the_begin_where_its_place_is_cut_off(world: World) -> None:
    """Kafka's own consumer jumps to the end, and never reads what came while it was away."""
    late: dict[str, Any] = {**world.options, "kafka": {**world.options["kafka"], "auto.offset.reset": "latest"}}
    first = Reading(world, **late)
    await world.until(lambda: bool(first.seen))
    await first.stop()
    begun = world.sent
    await asyncio.to_thread(world.send, 20 * PARTITIONS)
    ends = {each: (world.sent - each + PARTITIONS - 1) // PARTITIONS for each in range(PARTITIONS)}
    cut = [TopicPartition(world.topic, each, end - 5) for each, end in ends.items()]
    for done in world.admin.delete_records(cut).values():
        await asyncio.to_thread(done.result, WAIT_S)
    left = {str(each) for each in range(world.sent - 5 * PARTITIONS, world.sent)}
    assert begun <= world.sent - 5 * PARTITIONS
    second = Reading(world, **late)
    await world.until(lambda: left <= second.seen.keys())
    await second.stop()


@pytest.mark.slow
async def test_behind_a_transactional_producer_a_group_that_has_read_everything_has_no_lag(world: World) -> None:
    settings = {"bootstrap.servers": world.kafka, "broker.address.family": "v4", "transactional.id": world.topic}
    producer = Producer(settings)
    await asyncio.to_thread(producer.init_transactions, WAIT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(2 * PARTITIONS):
            producer.produce(world.topic, str(number).encode(), partition=number % PARTITIONS)
        await asyncio.to_thread(producer.flush, WAIT_S)
        await asyncio.to_thread(end, WAIT_S)
    reading = Reading(world)
    async with asyncio.timeout(WAIT_S):
        while reading.seen.total() < 2 * PARTITIONS:
            await asyncio.sleep(0.1)
        while (read := await world.coordinator.lag.read(world.group)).lags != dict.fromkeys(read.ends, 0):
            await asyncio.sleep(0.1)
    assert len(read.ends) == PARTITIONS
    assert set(read.ends.values()) == {6}, "two records, two that were aborted, two marks"
    await reading.stop()
    assert reading.seen.total() == 2 * PARTITIONS


@pytest.mark.slow
async def test_moves_and_death_of_the_coordinator_are_not_noticed(world: World) -> None:
    readings = [Reading(world), Reading(world)]
    await world.until(lambda: all(len(each.consumer.assignment) == 3 for each in readings))
    before = [each.consumer.assignment for each in readings]
    owner = world.cluster.owner(world.group)
    for broker in [*(each for each in world.cluster.brokers if each is not owner), owner]:
        assert broker is not None
        await world.cluster.transfer(world.group, broker)
        mark = world.sent
        await world.until(lambda mark=mark: world.sent > mark + 30)
    owner = world.cluster.owner(world.group)
    assert owner is not None
    await world.cluster.kill(owner)
    await world.cluster.settled()
    mark = world.sent
    await world.until(lambda: world.sent > mark + 60)
    assert [each.consumer.assignment for each in readings] == before
    await finished(world, *readings)
    assert_read_once(world, *readings)


@pytest.mark.slow
async def test_a_consumer_that_closes_tells_what_it_gives_up(world: World) -> None:
    reading = Reading(world)
    await world.until(lambda: len(reading.seen) > 50)
    await finished(world, reading)
    assert [what for what, _ in reading.told] == ["assign", "revoke"]
    assert reading.told[0][1] == reading.told[1][1] == PARTITIONS


@pytest.mark.slow
async def test_who_hangs_is_no_member_until_it_asks_for_records_again(world: World) -> None:
    """Its heartbeats go on, so without that nobody would ever read its partitions."""
    told = list[str]()
    hangs = GroupConsumer(
        world.group, [world.topic], max_poll_interval_s=1.0, on_lost=lambda _: told.append("lost"), **world.options
    )
    with hangs:
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(world.send, PARTITIONS)
            while (record := await asyncio.to_thread(hangs.poll, 0.2)) is None:
                pass
        other = Reading(world)
        await world.until(lambda: len(other.consumer.assignment) == PARTITIONS)
        async with asyncio.timeout(WAIT_S):
            while other.seen[(record.value() or b"").decode()] == 0:
                await asyncio.sleep(0.05)
        assert told == []
        await world.until(lambda: bool(hangs.poll(0.01)) or len(hangs.assignment) == PARTITIONS // 2)
        assert told == ["lost"]
        assert not any(what == "lost" for what, _ in other.told)
    await other.stop()


@pytest.mark.slow
async def test_who_comes_back_goes_on_where_it_stopped(world: World) -> None:
    first = Reading(world)
    await world.until(lambda: len(first.seen) > 50)
    await finished(world, first)
    await asyncio.to_thread(world.send, 30)
    second = Reading(world)
    await finished(world, first, second)
    assert len(second.seen) == 30
    assert_read_once(world, first, second)


@pytest.mark.slow
async def test_a_slow_record_is_in_flight_and_not_available(world: World) -> None:
    """A commit stands at the first record that is not done; what was taken behind it is known all the same."""
    await asyncio.to_thread(world.send, 20 * PARTITIONS)
    taken = Counter[int]()
    with GroupConsumer(world.group, [world.topic], auto_done=False, **world.options) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(taken) < PARTITIONS:
                message = await asyncio.to_thread(consumer.poll, 0.2)
                if message is not None:
                    taken[message.partition() or 0] += 1
                    if message.offset():
                        consumer.done(message)
            shown = dict[str, float]()
            while shown.get("inflight_messages") != taken.total():
                await asyncio.sleep(0.05)
                backlogs, at_ms = world.coordinator.lag.backlogs, int(time.time() * 1000)
                found = [sample for metric in backlog_metrics(backlogs, at_ms) for sample in metric.samples]
                shown = {each.name.removeprefix("loadmanager_consumer_"): each.value for each in found}
            assert shown["ready_messages"] == world.sent - taken.total()
            assert shown["lag_messages"] == world.sent
            assert shown["lag_latency_seconds"] >= shown["queueing_latency_seconds"] > 0


@pytest.mark.slow
async def test_offsets_are_reset_while_consumers_read(world: World) -> None:
    first, second = Reading(world), Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == len(second.consumer.assignment) == 3)
    before, kept = first.consumer.assignment, second.consumer.assignment
    mine = {number for _, number in before}
    await world.until(lambda: world.sent > 300)
    mark, told = world.sent, list(second.told)
    async with asyncio.timeout(WAIT_S):
        while len(first.seen + second.seen) < mark:
            await asyncio.sleep(0.05)
    sending = asyncio.create_task(world.until(lambda: world.sent > mark + 300))
    await world.coordinator.reset(world.group, dict.fromkeys(before, 0), WAIT_S)
    await sending
    await world.until(lambda: first.consumer.assignment == before)
    async with asyncio.timeout(WAIT_S):
        while any((first.seen + second.seen)[str(each)] < 2 for each in range(mark) if each % PARTITIONS in mine):
            await asyncio.sleep(0.05)
    assert second.consumer.assignment == kept
    assert second.told == told, "who reads nothing there notices nothing"
    assert not any(what == "lost" for what, _ in first.told)
    await finished(world, first, second)
    seen = first.seen + second.seen
    assert len(seen) == world.sent, "none is lost"
    assert all(times == 1 for value, times in seen.items() if int(value) % PARTITIONS not in mine), "nor repeated there"
    more = {value: times for value, times in seen.items() if times > 2}
    assert not more, f"no former commit took the group back: {mark=}, {mine=}, {first.told=}"
    found = await world.coordinator.offsets.committed(world.group.partition("://")[2])
    assert found is not None
    assert sum(found[0][world.topic].values()) == world.sent, "all commits since then are there"


async def test_who_reads_nothing_of_a_reset_group_begins_there(world: World) -> None:
    await asyncio.to_thread(world.send, 60)
    await world.coordinator.reset(world.group, {(world.topic, number): 7 for number in range(PARTITIONS)}, WAIT_S)
    reading = Reading(world)
    async with asyncio.timeout(WAIT_S):
        while len(reading.seen) < 60 - 7 * PARTITIONS:
            await asyncio.sleep(0.05)
    await reading.stop()
    assert min(map(int, reading.seen)) == 7 * PARTITIONS


@pytest.mark.slow
async def test_a_group_with_members_of_kafkas_own_protocol_is_told_so(world: World) -> None:
    plain = Consumer({
        "bootstrap.servers": world.kafka,
        "broker.address.family": "v4",
        "group.id": world.group.partition("://")[2],
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    plain.subscribe([world.topic])
    async with asyncio.timeout(WAIT_S):
        while not plain.assignment():
            await asyncio.to_thread(plain.poll, 0.2)
    await asyncio.to_thread(world.send, 20)
    reading = Reading(world)
    async with asyncio.timeout(WAIT_S):
        while reading.error is None:
            await asyncio.to_thread(plain.poll, 0.2)
    with pytest.raises(Conflict, match="members of the group"):
        await reading.stop()
    plain.close()


@pytest.mark.slow
async def test_a_topic_that_is_deleted_stops_no_other(world: World) -> None:
    """Records of it are under way, and commits for it."""
    old = f"old-{world.topic}"
    await asyncio.to_thread(world.create, old)
    producer = Producer({"bootstrap.servers": world.kafka, "broker.address.family": "v4"})
    readings = [Reading(world, old) for _ in range(2)]
    members = [each.consumer for each in readings]
    await world.until(lambda: all(len(each.assignment) == PARTITIONS for each in members))
    for number in range(500):
        producer.produce(old, b"old", partition=number % PARTITIONS)
    await asyncio.to_thread(producer.flush, WAIT_S)
    await asyncio.to_thread(world.admin.delete_topics([old])[old].result, WAIT_S)
    await world.until(lambda: not any(topic == old for each in members for topic, _ in each.assignment))
    async with asyncio.timeout(WAIT_S):
        while any(topic == old for topic, _ in (await world.coordinator.describe(world.group)).holders):
            await asyncio.sleep(0.05)
    assert sum(len(each.assignment) for each in members) == PARTITIONS
    for each in readings:
        each.seen.pop("old", None)
    await finished(world, *readings)
    assert_read_once(world, *readings)


@pytest.mark.slow
async def test_a_group_is_deleted_with_its_offsets_and_begins_again(world: World) -> None:
    first = Reading(world)
    await world.until(lambda: len(first.seen) > 20)
    with pytest.raises(Conflict, match="has 1 members: stop them first"):
        await world.coordinator.delete(world.group, offsets=True)
    await finished(world, first)
    await world.coordinator.delete(world.group, offsets=True)
    assert await world.coordinator.offsets.committed(world.group.partition("://")[2]) is None
    with pytest.raises(NotFound, match="Kafka has no offsets of it"):
        await world.coordinator.delete(world.group, offsets=True)
    again = Reading(world)
    await finished(world, again)
    assert again.seen == first.seen, "it begins at the beginning"
    await world.coordinator.delete(world.group)
    assert await world.coordinator.offsets.committed(world.group.partition("://")[2]) is not None
    await world.coordinator.delete(world.group, offsets=True)
    assert await world.coordinator.offsets.committed(world.group.partition("://")[2]) is None


@pytest.mark.slow
async def test_consumers_divide_the_partitions_themselves(world: World) -> None:
    """From `set-mode client` on, while they read; the coordinator only grants what they claim."""
    readings = [Reading(world) for _ in range(2)]
    await world.until(lambda: sorted(len(each.consumer.assignment) for each in readings) == [3, 3])
    await world.coordinator.configure(world.group, Settings(Mode.CLIENT, "AVG_BY_CIRCLE"))
    readings.append(Reading(world))
    await world.until(lambda: [len(each.consumer.assignment) for each in readings] == [2, 2, 2])
    await world.until(lambda: all(its[0][1] + 3 == its[1][1] for each in readings if (its := each.consumer.assignment)))
    members = world.coordinator._hosted[world.group].group._members.values()
    assert [sorted(each.claim.partitions) == sorted(each.granted) for each in members if each.claim] == [True] * 3
    await readings[2].stop()
    await world.until(lambda: [len(each.consumer.assignment) for each in readings[:2]] == [3, 3])
    await finished(world, *readings)
    assert_read_once(world, *readings)
