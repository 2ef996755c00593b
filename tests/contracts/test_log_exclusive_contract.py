"""What `ports.Log.exclusive` and `ports.ExclusiveWriter` promise, on every adapter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from statechannel.errors import LogUnavailable, RecordTooLarge, WriterFenced
from statechannel.ports import ExclusiveWriter, Log, Payload, TopicSpec
from tests.contracts.entries import WAIT_S, held, keyed, latest, tailed, take, texts, value, values

GROUP = 50


@pytest.fixture
async def log(logs) -> Log:
    return await logs.open()


@pytest.fixture
async def other(logs, topic, table) -> Log:
    """A second client, which has opened both topics as well."""
    client = await logs.open()
    await client.open_topic(TopicSpec(topic))
    await client.open_topic(TopicSpec(table, compacted=True))
    return client


@pytest.fixture
async def topic(logs, log) -> str:
    """A plain topic of two partitions, opened by `log`."""
    name = logs.topic("groups")
    await log.open_topic(TopicSpec(name, partitions=2))
    return name


@pytest.fixture
async def table(logs, log) -> str:
    """A compacted topic of one partition, opened by `log`."""
    name = logs.topic("groups-table")
    await log.open_topic(TopicSpec(name, partitions=1, compacted=True))
    return name


@pytest.fixture
def writer_id(logs) -> str:
    """An id that no other test uses."""
    return logs.topic("writer")


def group(name: object) -> list[Payload]:
    return values(*(f"{name}:{number}" for number in range(GROUP)))


def whole_groups(said: Sequence[str]) -> list[str]:
    """The names of the groups, in their order; fails where one is not whole."""
    counted = Counter(text.split(":")[0] for text in said if ":" in text)
    assert set(counted.values()) <= {GROUP}, counted
    return list(counted)


# --- a commit
async def test_a_commit_is_read_as_it_was_written(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    await log.append(topic, 0, values("before"))
    await writer.commit(topic, 0, values("a", "b", "c"))
    await log.append(topic, 0, values("after"))
    expected = ["before", "a", "b", "c", "after"]
    assert texts(await held(log, topic, 0)) == expected
    assert texts(await tailed(log, topic, [0, 0], 5)) == expected
    assert await held(log, topic, 1) == []


async def test_a_commit_can_be_read_at_once_by_others(log, other, topic, writer_id):
    writer = await log.exclusive(writer_id)
    for turn in range(10):
        await writer.commit(topic, 0, values(f"{turn}.0", f"{turn}.1"))
        assert texts(await held(other, topic))[-2:] == [f"{turn}.0", f"{turn}.1"]


async def test_a_waiting_tail_sees_a_commit_without_asking(log, other, topic, writer_id):
    async with aclosing(other.tail(topic, [0, 0])) as tail:
        waiting = asyncio.ensure_future(take(tail, GROUP))
        writer = await log.exclusive(writer_id)
        await writer.commit(topic, 1, group("news"))
        assert whole_groups(texts(await waiting)) == ["news"]


async def test_a_writer_commits_to_several_topics_and_partitions(log, topic, table, writer_id):
    writer = await log.exclusive(writer_id)
    await writer.commit(topic, 0, values("zero"))
    await writer.commit(topic, 1, values("one"))
    await writer.commit(table, 0, [keyed("key", "of the table")])
    assert texts(await held(log, topic, 0)) == ["zero"]
    assert texts(await held(log, topic, 1)) == ["one"]
    assert latest(await held(log, table)) == {b"key": b"of the table"}


async def test_the_ends_pass_what_was_committed(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    for turn in range(3):
        before = await log.ends(topic)
        await writer.commit(topic, 0, values(f"{turn}.0", f"{turn}.1"))
        after = await log.ends(topic)
        assert after[1] == before[1]
        entries = await held(log, topic, start=before[0])
        assert texts(entries) == [f"{turn}.0", f"{turn}.1"]
        assert before[0] <= entries[0].offset < entries[1].offset < after[0]
        assert await held(log, topic, start=after[0]) == []


async def test_a_tail_from_the_ends_after_a_commit_gives_only_what_comes_after(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    await writer.commit(topic, 0, values("before"))
    ends = await log.ends(topic)
    await writer.commit(topic, 0, values("after"))
    assert texts(await tailed(log, topic, ends, 1)) == ["after"]


async def test_what_was_committed_can_be_trimmed(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    for name in range(3):
        await writer.commit(topic, 0, group(name))
    entries = await held(log, topic)
    await log.trim(topic, 0, entries[GROUP + 5].offset)
    assert (await log.begins(topic))[0] == entries[GROUP + 5].offset
    assert await held(log, topic) == entries[GROUP + 5 :]
    (end, _) = await log.ends(topic)
    await log.trim(topic, 0, end)
    assert await log.begins(topic) == await log.ends(topic)
    await writer.commit(topic, 0, values("goes on"))
    assert texts(await held(log, topic)) == ["goes on"]


async def test_an_offset_at_a_time_leads_to_what_was_committed_then(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    taken: set[int] = set()
    async with asyncio.timeout(WAIT_S):
        while len(taken) < 3:
            await writer.commit(topic, 0, values("a", "b"))
            entries = await held(log, topic)
            taken = {entry.appended_ms for entry in entries}
            await asyncio.sleep(0.005)  # so that the wall clock goes on
    for at_ms in taken:
        found = await held(log, topic, start=await log.offset_at(topic, 0, at_ms))
        assert found == [entry for entry in entries if entry.appended_ms >= at_ms]
    after_all = await log.offset_at(topic, 0, max(taken) + 3_600_000)
    assert await held(log, topic, start=after_all) == []


# --- all or nothing
@pytest.mark.slow
async def test_readers_see_groups_whole_or_not_at_all(log, other, topic, writer_id):
    """A reader that comes at any time finds whole groups, whatever others append in between."""
    writer = await log.exclusive(writer_id)
    done = asyncio.Event()

    async def commit() -> None:
        for name in range(20):
            await writer.commit(topic, 0, group(name))
        done.set()

    async def append() -> None:
        for number in range(100):
            await other.append(topic, 0, values(f"plain {number}"))

    async def look() -> int:
        looks = 0
        while not done.is_set():
            whole_groups(texts(await held(other, topic)))
            looks += 1
        return looks

    async with aclosing(log.tail(topic, [0, 0])) as tail:
        _, _, looks = await asyncio.gather(commit(), append(), look())
        live = texts(await take(tail, 20 * GROUP + 100))
    names = [str(name) for name in range(20)]
    assert looks > 0
    assert whole_groups(live) == names
    assert [text for text in live if text.startswith("plain")] == [f"plain {number}" for number in range(100)]
    assert texts(await held(log, topic)) == live


async def test_a_commit_of_many_large_payloads_is_one_group_too(logs, log, other, topic, writer_id):
    size_bytes = min(200_000, logs.max_payload_bytes * 9 // 10)
    payloads = [Payload(None, f"large:{number:03}".encode().ljust(size_bytes)) for number in range(60)]
    writer = await log.exclusive(writer_id)
    await log.append(topic, 0, values("before"))
    committing = asyncio.ensure_future(writer.commit(topic, 0, payloads))
    while not committing.done():
        assert len(await held(other, topic)) in (1, 61)
    await committing
    await log.append(topic, 0, values("after"))
    expected = ["before", *(f"large:{number:03}" for number in range(60)), "after"]
    assert [text.rstrip() for text in texts(await held(other, topic))] == expected
    assert [text.rstrip() for text in texts(await tailed(log, topic, [0, 0], 62))] == expected


async def test_a_payload_that_is_too_large_keeps_its_whole_group_out(logs, log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    await writer.commit(topic, 0, values("before"))
    ends = await log.ends(topic)
    too_large = Payload(None, b"x" * (2 * logs.max_payload_bytes))
    with pytest.raises(RecordTooLarge):
        await writer.commit(topic, 0, [value("same group"), too_large, value("same group")])
    assert await held(log, topic, start=ends[0]) == []
    await writer.commit(topic, 0, values("after"))
    assert texts(await held(log, topic)) == ["before", "after"]


async def test_a_commit_of_nothing_changes_nothing(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    ends = await log.ends(topic)
    await writer.commit(topic, 0, [])
    assert await held(log, topic) == []
    assert await log.ends(topic) == ends


# --- compacted topics
async def test_a_group_replaces_keys_and_drops_others_in_one_step(log, other, table, writer_id):
    """As the snapshots do it: new chunks, a new index, and tombstones of the chunks that the index drops."""
    writer = await log.exclusive(writer_id)
    done = asyncio.Event()

    def version(number: int) -> list[Payload]:
        chunks = [keyed(f"{number}/{chunk}", f"chunk of {number}") for chunk in range(5)]
        dropped = [keyed(f"{number - 1}/{chunk}", None) for chunk in range(5)] if number else []
        return [*chunks, keyed("index", str(number)), *dropped]

    async def commit() -> None:
        for number in range(1, 15):
            await writer.commit(table, 0, version(number))
        done.set()

    await writer.commit(table, 0, version(0))
    committing = asyncio.ensure_future(commit())
    while not done.is_set():
        found = {key: said for key, said in latest(await held(other, table, start=0)).items() if said is not None}
        number = int(found.pop(b"index"))
        assert found == {f"{number}/{chunk}".encode(): f"chunk of {number}".encode() for chunk in range(5)}
    await committing
    async with aclosing(other.tail(table, [0])) as tail:
        seen = await take(tail, 1)
        async with asyncio.timeout(WAIT_S):
            while latest(seen).get(b"index") != b"14" or latest(seen).get(b"13/4", b"") is not None:
                seen += await anext(tail)
    assert {key for key, said in latest(seen).items() if said} == {b"index", *(b"14/%d" % chunk for chunk in range(5))}


# --- who may write
async def test_a_second_writer_of_the_same_id_fences_the_first(log, other, topic, writer_id):
    first = await log.exclusive(writer_id)
    await first.commit(topic, 0, values("of the first"))
    second = await other.exclusive(writer_id)
    ends = await log.ends(topic)
    for _ in range(2):
        with pytest.raises(WriterFenced):
            await first.commit(topic, 0, group("too late"))
    assert await held(log, topic, start=ends[0]) == []
    await second.commit(topic, 0, values("of the second"))
    assert texts(await held(log, topic)) == ["of the first", "of the second"]
    assert texts(await tailed(other, topic, [0, 0], 2)) == ["of the first", "of the second"]


async def test_a_second_writer_of_the_same_client_fences_the_first_as_well(log, topic, writer_id):
    first, second = await log.exclusive(writer_id), await log.exclusive(writer_id)
    with pytest.raises(WriterFenced):
        await first.commit(topic, 0, values("too late"))
    await second.commit(topic, 0, values("in time"))
    assert texts(await held(log, topic)) == ["in time"]


async def test_a_writer_that_never_wrote_is_fenced_too_and_so_is_each_but_the_last(log, other, topic, writer_id):
    writers = [await client.exclusive(writer_id) for client in (log, other, log, other, log)]
    for fenced in writers[:-1]:
        with pytest.raises(WriterFenced):
            await fenced.commit(topic, 0, values("too late"))
    await writers[-1].commit(topic, 0, values("the last"))
    assert texts(await held(log, topic)) == ["the last"]


async def test_writers_of_different_ids_do_not_disturb_each_other(log, other, topic, writer_id):
    one, two = await log.exclusive(f"{writer_id}-one"), await other.exclusive(f"{writer_id}-two")
    for turn in range(5):
        await asyncio.gather(
            one.commit(topic, 0, group(f"one {turn}")),
            two.commit(topic, 0, group(f"two {turn}")),
            log.append(topic, 0, values(f"plain {turn}")),
        )
    names = whole_groups(texts(await held(log, topic)))
    assert [name for name in names if name.startswith("one")] == [f"one {turn}" for turn in range(5)]
    assert [name for name in names if name.startswith("two")] == [f"two {turn}" for turn in range(5)]


@pytest.mark.slow
async def test_what_the_former_writer_committed_can_be_read_once_the_next_has_come(log, other, topic, writer_id):
    """A commit that is under way as the next writer comes is there by then, or it never will be."""
    writer: ExclusiveWriter = await log.exclusive(writer_id)
    clients, readable = (other, log), []
    for turn in range(12):
        committing = asyncio.ensure_future(writer.commit(topic, 0, group(turn)))
        for _ in range(turn):
            await asyncio.sleep(0)  # the next comes a little later each time
        writer = await clients[turn % 2].exclusive(writer_id)
        readable = whole_groups(texts(await held(clients[turn % 2], topic)))
        (outcome,) = await asyncio.gather(committing, return_exceptions=True)
        match outcome:
            case None:
                assert str(turn) in readable
            case WriterFenced():
                assert str(turn) not in readable
            case _:
                assert isinstance(outcome, LogUnavailable)
        assert whole_groups(texts(await held(other, topic))) == readable
    await writer.commit(topic, 0, group("last"))
    assert whole_groups(texts(await held(log, topic))) == [*readable, "last"]


async def test_an_id_outlives_its_writers(logs, log, topic, writer_id):
    first = await log.exclusive(writer_id)
    await first.commit(topic, 0, values("a"))
    again = await logs.open()
    await again.open_topic(TopicSpec(topic))
    second = await again.exclusive(writer_id)
    with pytest.raises(WriterFenced):
        await first.commit(topic, 0, values("too late"))
    await second.commit(topic, 0, values("b"))
    await second.close()
    await log.close()
    third = await again.exclusive(writer_id)
    await third.commit(topic, 0, values("c"))
    assert texts(await held(again, topic)) == ["a", "b", "c"]


# --- life
async def test_a_closed_writer_writes_nothing_more_and_closing_is_idempotent(log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    await writer.commit(topic, 0, values("a"))
    await writer.close()
    await writer.close()
    with pytest.raises((LogUnavailable, WriterFenced)):
        await writer.commit(topic, 0, values("late"))
    assert texts(await held(log, topic)) == ["a"]


async def test_the_writers_of_a_closed_client_write_nothing_more(logs, log, topic, writer_id):
    writer = await log.exclusive(writer_id)
    await writer.commit(topic, 0, values("a"))
    await log.close()
    with pytest.raises((LogUnavailable, WriterFenced)):
        await writer.commit(topic, 0, values("late"))
    await writer.close()
    again = await logs.open()
    await again.open_topic(TopicSpec(topic))
    assert texts(await held(again, topic)) == ["a"]


async def test_a_fenced_writer_can_be_closed(log, topic, writer_id):
    fenced = await log.exclusive(writer_id)
    current = await log.exclusive(writer_id)
    await fenced.close()
    await current.commit(topic, 0, values("undisturbed"))
    assert texts(await held(log, topic)) == ["undisturbed"]
