"""What `ports.Log` promises of a log that lives for years, on every adapter: read, begins, offset_at, trim.

Exclusive writers are in `test_log_exclusive_contract.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

import pytest

from statechannel.errors import LogUnavailable, Trimmed
from statechannel.ports import Log, LogEntry, TopicSpec
from tests.contracts.entries import WAIT_S, held, keyed, latest, tailed, take, texts, value, values


@pytest.fixture
async def log(logs) -> Log:
    return await logs.open()


@pytest.fixture
async def other(logs, topic) -> Log:
    """A second client, which has opened `topic` as well."""
    client = await logs.open()
    await client.open_topic(TopicSpec(topic))
    return client


@pytest.fixture
async def topic(logs, log) -> str:
    """A plain topic of two partitions, opened by `log`."""
    name = logs.topic("years")
    await log.open_topic(TopicSpec(name, partitions=2))
    return name


@pytest.fixture
async def table(logs, log) -> str:
    """A compacted topic of one partition, opened by `log`."""
    name = logs.topic("years-table")
    await log.open_topic(TopicSpec(name, partitions=1, compacted=True))
    return name


async def filled(log: Log, topic: str, count: int, partition: int = 0) -> list[LogEntry]:
    """Append `count` numbers to a partition, in several appends and thus chunks; what it holds then."""
    for first in range(0, count, 7):
        await log.append(topic, partition, values(*range(first, min(first + 7, count))))
    return await held(log, topic, partition)


# --- read
async def test_a_read_gives_what_a_partition_holds_and_ends(log, topic):
    await log.append(topic, 0, values("a", "b"))
    await log.append(topic, 1, values("elsewhere"))
    await log.append(topic, 0, values("c"))
    entries = await held(log, topic, 0, start=0)
    assert texts(entries) == ["a", "b", "c"]
    assert {entry.partition for entry in entries} == {0}
    assert entries == await tailed(log, topic, [0, (await log.ends(topic))[1]], 3)


async def test_a_read_of_an_empty_partition_ends_at_once(log, topic):
    assert await held(log, topic, 1, start=0) == []


async def test_a_read_from_the_end_or_beyond_it_gives_nothing(log, topic):
    await log.append(topic, 0, values("a"))
    (end, _) = await log.ends(topic)
    assert await held(log, topic, 0, start=end) == []
    assert await held(log, topic, 0, start=end + 1_000) == []


async def test_a_read_starts_at_the_given_offset_wherever_it_stands_in_its_append(log, topic):
    entries = await filled(log, topic, 20)
    for at in (0, 1, 6, 7, 8, 13, 19):
        assert await held(log, topic, 0, start=entries[at].offset) == entries[at:]


async def test_a_read_shows_what_another_client_has_appended_before_it(log, other, topic):
    for turn in range(10):
        await other.append(topic, 0, values(turn))
        assert texts(await held(log, topic))[-1] == str(turn)


async def test_a_read_ends_although_somebody_goes_on_appending(log, other, topic):
    await log.append(topic, 0, values(*range(20_500)))
    async with asyncio.timeout(WAIT_S), aclosing(log.read(topic, 0, 0)) as reading:
        seen = texts(await anext(reading))
        await other.append(topic, 0, values("later"))
        seen += [text async for batch in reading for text in texts(batch)]
    assert seen == [str(number) for number in range(20_500)]


async def test_a_read_comes_in_batches_of_at_most_1000(log, topic):
    await log.append(topic, 0, values(*range(3_500)))
    async with asyncio.timeout(WAIT_S), aclosing(log.read(topic, 0, 0)) as reading:
        sizes = [len(batch) async for batch in reading]
    assert sum(sizes) == 3_500
    assert all(1 <= size <= 1_000 for size in sizes)


async def test_a_read_of_large_entries_gives_them_all(logs, log, topic):
    size_bytes = min(200_000, logs.max_payload_bytes // 2)
    for number in range(30):
        await log.append(topic, 0, [value(f"{number:02}" * (size_bytes // 2))])
    assert [text[:2] for text in texts(await held(log, topic))] == [f"{number:02}" for number in range(30)]


async def test_a_read_that_is_closed_early_is_free_and_the_client_goes_on(log, topic):
    await log.append(topic, 0, values(*range(3_500)))
    for _ in range(20):
        async with asyncio.timeout(WAIT_S):
            reading = log.read(topic, 0, 0)
            assert texts(await anext(reading))[0] == "0"
            await reading.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(reading)
    assert len(await held(log, topic)) == 3_500


async def test_reads_of_one_client_do_not_disturb_each_other_nor_a_tail(log, topic):
    await log.append(topic, 0, values(*range(3_000)))
    await log.append(topic, 1, values(*range(2_000)))
    zero, one, both = await asyncio.gather(held(log, topic, 0), held(log, topic, 1), tailed(log, topic, [0, 0], 5_000))
    assert [entry for entry in both if entry.partition == 0] == zero
    assert [entry for entry in both if entry.partition == 1] == one
    assert (len(zero), len(one)) == (3_000, 2_000)


async def test_a_read_of_a_compacted_topic_goes_on_where_its_start_is_no_more(log, table):
    for turn in range(5):
        await log.append(table, 0, [keyed(key, f"{key} at {turn}") for key in ("a", "b", "c")])
    await log.append(table, 0, [keyed("b", None)])
    (end,) = await log.ends(table)
    whole = {b"a": b"a at 4", b"b": None, b"c": b"c at 4"}
    assert latest(await held(log, table, start=0)) == whole
    for start in range(end):
        entries = await held(log, table, start=start)
        assert all(entry.offset >= start for entry in entries)
        assert latest(entries).items() <= whole.items()


async def test_a_read_of_a_compacted_topic_that_is_overtaken_still_shows_each_key(log, other, table):
    await other.open_topic(TopicSpec(table, compacted=True))
    await other.append(table, 0, [keyed(f"key {number}", "old") for number in range(3_500)])
    async with asyncio.timeout(WAIT_S), aclosing(log.read(table, 0, 0)) as reading:
        seen = list(await anext(reading))
        await other.append(table, 0, [keyed(f"key {number}", "new") for number in range(3_500)])
        seen += [entry async for batch in reading for entry in batch]
    assert latest(seen).keys() == {f"key {number}".encode() for number in range(3_500)}


# --- begins
async def test_an_empty_partition_begins_at_its_end(log, topic):
    assert await log.begins(topic) == await log.ends(topic)


async def test_a_partition_that_was_never_trimmed_begins_with_its_first_entry(log, topic):
    await log.append(topic, 0, values("first", "second"))
    begins, ends = await log.begins(topic), await log.ends(topic)
    assert begins[0] <= (await held(log, topic))[0].offset < ends[0]
    assert begins[1] == ends[1]


# --- trim
async def test_a_trim_forgets_what_lies_below_and_keeps_the_rest(log, topic):
    for cut in (3, 7, 10, 14):
        entries = await filled(log, topic, 20)
        before = entries[cut].offset
        await log.trim(topic, 0, before)
        assert (await log.begins(topic))[0] == before
        assert await held(log, topic, start=before) == entries[cut:]
        assert await tailed(log, topic, [before, 0], len(entries) - cut) == entries[cut:]


async def test_a_trim_is_of_one_partition(log, topic):
    await filled(log, topic, 20)
    there = await filled(log, topic, 20, partition=1)
    begins, ends = await log.begins(topic), await log.ends(topic)
    await log.trim(topic, 0, ends[0])
    assert await log.begins(topic) == (ends[0], begins[1])
    assert await held(log, topic, 1) == there


async def test_another_client_sees_a_trim(log, other, topic):
    entries = await filled(log, topic, 20)
    await log.trim(topic, 0, entries[9].offset)
    assert (await other.begins(topic))[0] == entries[9].offset
    assert await held(other, topic) == entries[9:]


async def test_a_trim_outlives_those_who_made_it(logs, log, topic):
    entries = await filled(log, topic, 20)
    await log.trim(topic, 0, entries[9].offset)
    begins = await log.begins(topic)
    await log.close()
    again = await logs.open()
    await again.open_topic(TopicSpec(topic))
    assert await again.begins(topic) == begins
    assert await held(again, topic) == entries[9:]
    with pytest.raises(Trimmed):
        await held(again, topic, start=entries[8].offset)


async def test_a_trim_is_idempotent_and_an_earlier_one_brings_nothing_back(log, topic):
    entries = await filled(log, topic, 20)
    for cut in (9, 9, 4, 0):
        await log.trim(topic, 0, entries[cut].offset)
        assert (await log.begins(topic))[0] == entries[9].offset
    await log.trim(topic, 0, 0)
    assert await held(log, topic) == entries[9:]
    with pytest.raises(Trimmed):
        await held(log, topic, start=entries[8].offset)


async def test_a_trim_of_everything_leaves_an_empty_partition_whose_offsets_go_on(log, topic):
    await filled(log, topic, 20)
    (end, _) = await log.ends(topic)
    await log.trim(topic, 0, end)
    assert (await log.begins(topic))[0] == end
    assert (await log.ends(topic))[0] == end
    assert await held(log, topic, start=end) == []
    await log.append(topic, 0, values("goes on"))
    (entry,) = await held(log, topic)
    assert entry.offset >= end
    assert texts([entry]) == ["goes on"]


async def test_a_trim_beyond_the_end_forgets_nothing_in_advance(log, topic):
    await filled(log, topic, 20)
    (end, _) = await log.ends(topic)
    await log.trim(topic, 0, end + 1_000)
    assert (await log.begins(topic))[0] == end
    await log.append(topic, 0, values("after"))
    assert texts(await held(log, topic)) == ["after"]


async def test_a_trim_of_an_empty_partition_changes_nothing(log, topic):
    await log.trim(topic, 0, 0)
    await log.trim(topic, 0, 10)
    await log.append(topic, 0, values("first"))
    assert texts(await held(log, topic)) == ["first"]
    assert texts(await tailed(log, topic, [0, 0], 1)) == ["first"]


@pytest.mark.slow
async def test_trims_and_appends_take_turns_for_long(log, topic):
    for turn in range(30):
        await log.append(topic, 0, values(*(f"{turn}.{i}" for i in range(5))))
        entries = await held(log, topic)
        assert texts(entries)[-5:] == [f"{turn}.{i}" for i in range(5)]
        await log.trim(topic, 0, entries[-2].offset)
    assert texts(await held(log, topic)) == ["29.3", "29.4"]


async def test_appends_during_a_trim_are_not_lost(log, other, topic):
    old = await filled(log, topic, 700)
    (end, _) = await log.ends(topic)

    async def append() -> None:
        for turn in range(30):
            await log.append(topic, 0, values(f"new {turn}.0", f"new {turn}.1"))

    async def trim() -> None:
        for entry in old[::25]:
            await other.trim(topic, 0, entry.offset)
        await other.trim(topic, 0, end)

    async with aclosing(log.tail(topic, [end, 0])) as tail:
        await asyncio.gather(append(), trim())
        live = texts(await take(tail, 60))
    expected = [f"new {turn}.{i}" for turn, i in itertools.product(range(30), range(2))]
    assert (await log.begins(topic))[0] == end
    assert texts(await held(log, topic)) == live == expected


# --- readers that stand below the begin
async def test_a_read_below_the_begin_is_told(log, topic):
    entries = await filled(log, topic, 20)
    await log.trim(topic, 0, entries[10].offset)
    for start in (0, entries[9].offset):
        with pytest.raises(Trimmed):
            await held(log, topic, start=start)
    assert await held(log, topic, start=entries[10].offset) == entries[10:]


async def test_a_read_below_the_begin_of_what_is_empty_now_is_told(log, topic):
    await filled(log, topic, 20)
    (end, _) = await log.ends(topic)
    await log.trim(topic, 0, end)
    with pytest.raises(Trimmed):
        await held(log, topic, start=end - 1)


async def test_a_tail_below_the_begin_is_told(log, topic):
    entries = await filled(log, topic, 20)
    await filled(log, topic, 20, partition=1)
    await log.trim(topic, 0, entries[10].offset)
    for start in (0, entries[9].offset):
        with pytest.raises(Trimmed):
            await tailed(log, topic, [start, 0], 41)  # more than there are: it ends by being told
    assert texts(await tailed(log, topic, [entries[10].offset, 0], 30))


async def test_a_tail_below_the_begin_of_what_is_empty_now_is_told(log, topic):
    await filled(log, topic, 20)
    ends = await log.ends(topic)
    await log.trim(topic, 0, ends[0])
    with pytest.raises(Trimmed):
        await tailed(log, topic, [0, ends[1]], 1)


async def test_a_tail_that_has_read_all_that_is_trimmed_goes_on(log, other, topic):
    await filled(log, topic, 20)
    async with aclosing(log.tail(topic, [0, 0])) as tail:
        await take(tail, 20)
        for turn in range(5):
            await other.trim(topic, 0, (await other.ends(topic))[0])
            await other.append(topic, 0, values(turn))
            assert texts(await take(tail, 1)) == [str(turn)]


@pytest.mark.parametrize("kind", ["tail", "read"])
async def test_a_reader_that_a_trim_overtakes_skips_nothing_unless_it_is_told(log, other, topic, kind):
    """How far it reads ahead is its own affair: what it gives is without a gap, and then it is told or at the end."""
    for chunk in range(40):
        await log.append(topic, 0, values(*(chunk * 1_000 + number for number in range(1_000))))
    (end, last) = await log.ends(topic)
    reading = log.tail(topic, [0, last]) if kind == "tail" else log.read(topic, 0, 0)
    seen: list[str] = []
    async with asyncio.timeout(WAIT_S), aclosing(reading):
        seen += texts(await anext(reading))
        await other.trim(topic, 0, end)
        await other.append(topic, 0, values(40_000))
        told = False
        try:
            while len(seen) < 40_000:
                seen += texts(await anext(reading))
        except Trimmed:
            told = True
    assert seen == [str(number) for number in range(len(seen))]
    assert told or len(seen) >= 40_000


# --- offset_at
async def moments(log: Log, topic: str) -> list[LogEntry]:
    """Entries that the log took at three different times at least, several at a time; all that partition 0 holds."""
    taken: set[int] = set()
    async with asyncio.timeout(WAIT_S):
        entries: list[LogEntry] = []
        while len(taken) < 3 or len(entries) < 6:
            await log.append(topic, 0, values("a", "b", "c"))
            entries = await held(log, topic)
            taken = {entry.appended_ms for entry in entries}
            await asyncio.sleep(0.005)  # so that the wall clock goes on
    return entries


async def test_offset_at_a_time_is_that_of_the_first_entry_taken_then_or_later(log, topic):
    entries = await moments(log, topic)
    (end, _) = await log.ends(topic)
    times = sorted({entry.appended_ms for entry in entries})
    for at_ms in sorted({at + shift for at in times for shift in (-1, 0, 1)} | {0, times[-1] + 3_600_000}):
        offset = await log.offset_at(topic, 0, at_ms)
        later = [entry for entry in entries if entry.appended_ms >= at_ms]
        assert await held(log, topic, start=offset) == later
        assert offset == (later[0].offset if later else end)


async def test_the_offset_at_any_time_of_an_empty_partition_is_its_end(log, topic):
    for at_ms in (0, 1_000, 1 << 42):
        assert await log.offset_at(topic, 1, at_ms) == (await log.ends(topic))[1]


async def test_the_offset_at_a_time_before_what_was_trimmed_is_the_begin(log, topic):
    entries = await moments(log, topic)
    cut = entries[4]
    await log.trim(topic, 0, cut.offset)
    assert await log.offset_at(topic, 0, 0) == cut.offset
    assert await log.offset_at(topic, 0, entries[0].appended_ms) == cut.offset
    await log.trim(topic, 0, (await log.ends(topic))[0])
    assert await log.offset_at(topic, 0, 0) == (await log.ends(topic))[0]


async def test_partitions_have_offsets_at_a_time_of_their_own(log, topic):
    entries = await moments(log, topic)
    await log.append(topic, 1, values("latest"))
    (latest_entry,) = await held(log, topic, 1)
    assert await log.offset_at(topic, 1, entries[0].appended_ms) == latest_entry.offset


# --- life
async def test_a_closed_client_says_of_each_that_it_is_unavailable(log, topic):
    await log.append(topic, 0, values("a"))
    await log.close()
    for asking in (log.begins(topic), log.offset_at(topic, 0, 0), log.trim(topic, 0, 1), log.exclusive("id")):
        with pytest.raises(LogUnavailable):
            await asking
    with pytest.raises(LogUnavailable):
        await held(log, topic, start=0)


async def test_a_read_under_way_ends_with_its_client_and_says_so_unless_it_had_all(log, topic):
    await log.append(topic, 0, values(*range(40_000)))
    seen: list[str] = []
    async with asyncio.timeout(WAIT_S), aclosing(log.read(topic, 0, 0)) as reading:
        seen += texts(await anext(reading))
        await log.close()
        try:
            async for batch in reading:
                seen += texts(batch)
        except LogUnavailable:
            assert len(seen) < 40_000
        else:
            assert len(seen) == 40_000
    assert seen == [str(number) for number in range(len(seen))]
