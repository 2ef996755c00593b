"""What `ports.Log` promises, sentence by sentence, on every adapter.

What it promises of a log that lives for years is in `test_log_years_contract.py` and `test_log_exclusive_contract.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

import pytest

from statechannel.errors import LogUnavailable, RecordTooLarge, TopicMismatch
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from tests.contracts.entries import WAIT_S, keyed, latest, tailed, take, texts, value


@pytest.fixture
async def log(logs) -> Log:
    return await logs.open()


@pytest.fixture
async def topic(logs, log) -> str:
    """A plain topic of two partitions, opened by `log`."""
    name = logs.topic("channel")
    assert await log.open_topic(TopicSpec(name, partitions=2)) == 2
    return name


# --- topics
async def test_a_topic_keeps_the_number_of_partitions_it_was_created_with(logs, log, topic):
    other = await logs.open()
    assert await other.open_topic(TopicSpec(topic)) == 2
    assert await other.open_topic(TopicSpec(topic, partitions=2)) == 2


async def test_a_topic_without_a_wished_partition_count_gets_the_adapters_default(logs, log):
    name = logs.topic("default")
    created = await log.open_topic(TopicSpec(name))
    assert created >= 1
    assert await (await logs.open()).open_topic(TopicSpec(name)) == created
    assert len(await log.ends(name)) == created


async def test_another_partition_count_is_refused_and_the_message_names_both(logs, log, topic):
    other = await logs.open()
    with pytest.raises(TopicMismatch, match=r"\b2\b.*\b3\b|\b3\b.*\b2\b"):
        await other.open_topic(TopicSpec(topic, partitions=3))
    assert await other.open_topic(TopicSpec(topic)) == 2


@pytest.mark.parametrize("compacted", [False, True])
async def test_another_cleanup_policy_is_refused_and_the_message_names_the_topic(logs, log, compacted):
    name = logs.topic("policy")
    await log.open_topic(TopicSpec(name, partitions=1, compacted=compacted))
    with pytest.raises(TopicMismatch, match=name):
        await (await logs.open()).open_topic(TopicSpec(name, partitions=1, compacted=not compacted))


async def test_two_clients_that_create_the_same_topic_at_once_share_it(logs):
    one, two = await logs.open(), await logs.open()
    name = logs.topic("race")
    counts = await asyncio.gather(*(c.open_topic(TopicSpec(name, partitions=3)) for c in (one, two)))
    assert counts == [3, 3]
    await one.append(name, 0, [value("a")])
    assert texts(await tailed(two, name, [0, 0, 0], 1)) == ["a"]


async def test_a_client_learns_whether_a_topic_exists_and_creates_nothing(logs, log, topic):
    other, missing = await logs.open(), logs.topic("missing")
    assert await other.has_topic(topic)
    assert not await other.has_topic(missing)
    assert not await log.has_topic(missing)


async def test_topics_do_not_mix(logs, log, topic):
    second = logs.topic("second")
    await log.open_topic(TopicSpec(second, partitions=1))
    await log.append(topic, 0, [value("first topic")])
    await log.append(second, 0, [value("second topic")])
    assert texts(await tailed(log, topic, [0, 0], 1)) == ["first topic"]
    assert texts(await tailed(log, second, [0], 1)) == ["second topic"]


# --- what is read is what was appended
async def test_an_entry_carries_key_value_place_and_time(log, topic):
    await log.append(topic, 1, [Payload(b"key", b"\x00\xffvalue"), Payload(None, b""), Payload(b"", None)])
    entries = await tailed(log, topic, [0, 0], 3)
    assert [(e.key, e.value) for e in entries] == [(b"key", b"\x00\xffvalue"), (None, b""), (b"", None)]
    assert {e.partition for e in entries} == {1}
    assert all(e.appended_ms > 0 for e in entries)


async def test_an_empty_append_appends_nothing(log, topic):
    before = await log.ends(topic)
    await log.append(topic, 0, [])
    assert await log.ends(topic) == before


# --- order
async def test_the_payloads_of_one_append_keep_their_order(log, topic):
    await log.append(topic, 0, [value(i) for i in range(2_500)])
    entries = await tailed(log, topic, [0, 0], 2_500)
    assert texts(entries) == [str(i) for i in range(2_500)]


async def test_appends_made_one_after_the_other_keep_their_order(log, topic):
    for i in range(30):
        await log.append(topic, 0, [value(i)])
    assert texts(await tailed(log, topic, [0, 0], 30)) == [str(i) for i in range(30)]


async def test_appends_that_do_not_wait_for_each_other_keep_their_order(log, topic):
    async with asyncio.TaskGroup() as group:
        for i in range(300):
            group.create_task(log.append(topic, 0, [value(i)]))
    assert texts(await tailed(log, topic, [0, 0], 300)) == [str(i) for i in range(300)]


async def test_offsets_of_a_partition_strictly_increase(log, topic):
    for i in range(5):
        await log.append(topic, 0, [value(i)] * 3)
    offsets = [e.offset for e in await tailed(log, topic, [0, 0], 15)]
    assert all(a < b for a, b in itertools.pairwise(offsets))


@pytest.mark.slow
async def test_every_reader_sees_the_same_entries_in_the_same_order(logs, log, topic):
    writers = [log, await logs.open(), await logs.open()]
    for writer in writers[1:]:
        await writer.open_topic(TopicSpec(topic))

    async def write(name: int, writer: Log) -> None:
        for i in range(40):
            await writer.append(topic, 0, [value(f"{name}.{i}.{j}") for j in range(3)])

    reads = [asyncio.ensure_future(tailed(reader, topic, [0, 0], 360)) for reader in writers]
    async with asyncio.TaskGroup() as group:
        for name, writer in enumerate(writers):
            group.create_task(write(name, writer))
    first, second, third = await asyncio.gather(*reads)
    assert first == second == third
    for name in range(3):
        own = [text for text in texts(first) if text.startswith(f"{name}.")]
        assert own == [f"{name}.{i}.{j}" for i in range(40) for j in range(3)]


async def test_two_tails_of_one_client_do_not_disturb_each_other(log, topic):
    async with aclosing(log.tail(topic, [0, 0])) as one, aclosing(log.tail(topic, [0, 0])) as two:
        await log.append(topic, 0, [value("a")])
        assert texts(await take(one, 1)) == ["a"]
        await log.append(topic, 0, [value("b")])
        assert texts(await take(two, 2)) == ["a", "b"]
        assert texts(await take(one, 1)) == ["b"]


# --- durability
async def test_what_was_acknowledged_is_there_after_everybody_has_left(logs, log, topic):
    await log.append(topic, 0, [value("a"), value("b")])
    await log.append(topic, 1, [value("c")])
    ends = await log.ends(topic)
    await log.close()
    again = await logs.open()
    assert await again.open_topic(TopicSpec(topic)) == 2
    assert await again.ends(topic) == ends
    assert sorted(texts(await tailed(again, topic, [0, 0], 3))) == ["a", "b", "c"]


async def test_closing_flushes_what_was_handed_over(logs, log, topic):
    appends = [asyncio.ensure_future(log.append(topic, 0, [value(i)])) for i in range(20)]
    await asyncio.sleep(0)  # each has begun: handed over, none acknowledged
    await log.close()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    again = await logs.open()
    await again.open_topic(TopicSpec(topic))
    assert outcomes == [None] * 20
    assert texts(await tailed(again, topic, [0, 0], 20)) == [str(i) for i in range(20)]


# --- visibility and tails
async def test_a_waiting_tail_sees_what_another_client_appends_without_asking(logs, log, topic):
    other = await logs.open()
    await other.open_topic(TopicSpec(topic))
    async with aclosing(log.tail(topic, [0, 0])) as tail:
        waiting = asyncio.ensure_future(take(tail, 1))
        await other.append(topic, 1, [value("news")])
        assert texts(await waiting) == ["news"]


async def test_a_tail_starts_at_the_given_offset_of_each_partition(log, topic):
    await log.append(topic, 0, [value(f"zero {i}") for i in range(10)])
    await log.append(topic, 1, [value(f"one {i}") for i in range(10)])
    entries = await tailed(log, topic, [0, 0], 20)
    starts = [[e.offset for e in entries if e.partition == p][at] for p, at in ((0, 4), (1, 7))]
    found = await tailed(log, topic, starts, 9)
    assert texts([e for e in found if e.partition == 0]) == [f"zero {i}" for i in range(4, 10)]
    assert texts([e for e in found if e.partition == 1]) == [f"one {i}" for i in range(7, 10)]


async def test_a_tail_from_the_ends_gives_only_what_comes_after(log, topic):
    await log.append(topic, 0, [value("before")])
    ends = await log.ends(topic)
    await log.append(topic, 0, [value("after")])
    entries = await tailed(log, topic, ends, 1)
    assert texts(entries) == ["after"]
    assert entries[0].offset >= ends[0]


async def test_batches_are_of_one_partition_and_of_at_most_1000_entries(log, topic):
    for partition in (0, 1):
        await log.append(topic, partition, [value(i) for i in range(2_100)])
    seen = 0
    async with asyncio.timeout(WAIT_S), aclosing(log.tail(topic, [0, 0])) as tail:
        while seen < 4_200:
            batch = await anext(tail)
            assert 1 <= len(batch) <= 1_000
            assert len({e.partition for e in batch}) == 1
            seen += len(batch)


async def test_a_slow_reader_loses_nothing(log, topic):
    async with aclosing(log.tail(topic, [0, 0])) as tail:
        await log.append(topic, 0, [value("first")])
        seen = texts(await take(tail, 1))
        for chunk in range(30):  # far more than any reading ahead, while the reader takes nothing
            await log.append(topic, 0, [value(f"{chunk}.{i}") for i in range(1_000)])
        seen += texts(await take(tail, 30_000))
    assert seen == ["first", *(f"{chunk}.{i}" for chunk in range(30) for i in range(1_000))]


async def test_a_closed_tail_is_free_and_the_client_goes_on(log, topic):
    tail = log.tail(topic, [0, 0])
    await log.append(topic, 0, [value("a")])
    await take(tail, 1)
    await tail.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(tail)
    await log.append(topic, 0, [value("b")])
    assert texts(await tailed(log, topic, [0, 0], 2)) == ["a", "b"]


async def test_a_cancelled_reader_can_be_replaced(log, topic):
    tail = log.tail(topic, [0, 0])
    waiting = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await tail.aclose()
    await log.append(topic, 0, [value("a")])
    assert texts(await tailed(log, topic, [0, 0], 1)) == ["a"]


# --- ends
async def test_ends_are_zero_or_more_and_pass_every_acknowledged_entry(log, topic):
    before = await log.ends(topic)
    assert len(before) == 2
    await log.append(topic, 1, [value("a"), value("b")])
    after = await log.ends(topic)
    (*_, last) = await tailed(log, topic, before, 2)
    assert after[0] == before[0]
    assert after[1] > last.offset


async def test_ends_show_what_another_client_has_appended(logs, log, topic):
    other = await logs.open()
    await other.open_topic(TopicSpec(topic))
    before = await log.ends(topic)
    await other.append(topic, 0, [value("a")])
    assert (await log.ends(topic))[0] > before[0]


# --- size
async def test_a_large_payload_is_taken(logs, log, topic):
    large = b"x" * (logs.max_payload_bytes * 9 // 10)
    await log.append(topic, 0, [Payload(None, large), value("next")])
    entries = await tailed(log, topic, [0, 0], 2)
    assert [e.value for e in entries] == [large, b"next"]


async def test_a_payload_that_is_too_large_is_refused_and_changes_nothing(logs, log, topic):
    await log.append(topic, 0, [value("before")])
    ends = await log.ends(topic)
    too_large = Payload(None, b"x" * (2 * logs.max_payload_bytes))
    with pytest.raises(RecordTooLarge):
        await log.append(topic, 0, [value("same append"), too_large])
    assert await log.ends(topic) == ends
    await log.append(topic, 0, [value("after")])
    assert texts(await tailed(log, topic, [0, 0], 2)) == ["before", "after"]


# --- compacted topics
@pytest.fixture
async def table(logs, log) -> str:
    """A compacted topic of one partition, opened by `log`."""
    name = logs.topic("table")
    await log.open_topic(TopicSpec(name, partitions=1, compacted=True))
    return name


async def read_to(log: Log, topic: str, end: int, start: int = 0) -> list[LogEntry]:
    """A compacted topic's entries up to, without, the entry at `end`, which must exist."""
    entries: list[LogEntry] = []
    async with asyncio.timeout(WAIT_S), aclosing(log.tail(topic, [start])) as tail:
        while not entries or entries[-1].offset < end:
            entries += await anext(tail)
    return [entry for entry in entries if entry.offset < end]


async def test_compaction_keeps_at_least_the_last_entry_of_each_key(logs, log, table):
    for turn in range(20):
        await log.append(table, 0, [keyed(f"key {i}", f"{i} at {turn}") for i in range(10)])
    (end,) = await log.ends(table)
    await log.append(table, 0, [keyed("mark", "")])
    reader = await logs.open()
    await reader.open_topic(TopicSpec(table, compacted=True))
    assert latest(await read_to(reader, table, end)) == {f"key {i}".encode(): f"{i} at 19".encode() for i in range(10)}


async def test_keys_of_different_partitions_do_not_supersede_each_other(logs, log):
    name = logs.topic("wide-table")
    await log.open_topic(TopicSpec(name, partitions=2, compacted=True))
    await log.append(name, 0, [keyed("same", "in zero")])
    await log.append(name, 1, [keyed("same", "in one")])
    assert sorted(texts(await tailed(log, name, [0, 0], 2))) == ["in one", "in zero"]


async def test_a_tombstone_is_seen_by_readers_and_after_it_the_key_is_gone(logs, log, table):
    await log.append(table, 0, [keyed("gone", "was here"), keyed("stays", "here")])
    await log.append(table, 0, [keyed("gone", None)])
    (end,) = await log.ends(table)
    await log.append(table, 0, [keyed("mark", "")])
    assert latest(await read_to(log, table, end)) == {b"gone": None, b"stays": b"here"}


async def test_a_tail_of_a_compacted_topic_sees_each_new_value_that_it_waits_for(log, table):
    async with aclosing(log.tail(table, [0])) as tail:
        for turn in range(10):
            await log.append(table, 0, [keyed("key", str(turn))])
            assert texts(await take(tail, 1)) == [str(turn)]


async def test_offsets_of_a_compacted_topic_never_come_back(log, table):
    await log.append(table, 0, [keyed("key", "1")])
    (first,) = await log.ends(table)
    await log.append(table, 0, [keyed("key", "2")])
    (second,) = await log.ends(table)
    (*_, entry) = await read_to_last(log, table)
    assert first < second
    assert entry.offset >= first


async def read_to_last(log: Log, topic: str) -> list[LogEntry]:
    (end,) = await log.ends(topic)
    await log.append(topic, 0, [keyed("mark", "")])
    return await read_to(log, topic, end)


# --- life
async def test_close_is_idempotent_and_a_closed_client_says_that_it_is_unavailable(logs, log, topic):
    await log.close()
    await log.close()
    with pytest.raises(LogUnavailable):
        await log.append(topic, 0, [value("late")])
    with pytest.raises(LogUnavailable):
        await log.ends(topic)


async def test_closing_one_client_leaves_the_others_alone(logs, log, topic):
    other = await logs.open()
    await other.close()
    await log.append(topic, 0, [value("the others go on")])
    assert texts(await tailed(log, topic, [0, 0], 1)) == ["the others go on"]
