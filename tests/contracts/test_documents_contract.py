"""Documents on every log: compare-and-set between two processes, history, deletion, restart, and a log that fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import ABSENT
from loadmanager.errors import Conflict, Invalid, NotFound
from statechannel.errors import LogUnavailable
from statechannel.ports import Payload
from tests.contracts.entries import WAIT_S

_NONCES = itertools.count()


def only_small_numbers(name: str, value: int | None, present: Mapping[str, int]) -> None:
    if value is not None and value > 100:
        raise Invalid(f"{name}: {value} is too large: give 100 at most")


@asynccontextmanager
async def documents_on(log, topic) -> AsyncGenerator[Documents[int]]:
    documents: Documents[int] = Documents(
        log,
        topic,
        decode=msgspec.json.Decoder(int).decode,
        check=only_small_numbers,
        wall_ms=lambda: 1_000,
        nonce=f"process-{next(_NONCES)}",
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(documents.run())
        assert await documents.wait_ready(WAIT_S)
        yield documents
        running.cancel()


@pytest.fixture
async def pair(logs):
    """The documents of two processes."""
    topic = logs.topic("documents")
    async with documents_on(await logs.open(), topic) as one, documents_on(await logs.open(), topic) as other:
        yield one, other


async def reads(documents: Documents[int], expected: Mapping[str, int]) -> None:
    changed = asyncio.Event()
    stop = documents.on_change(lambda *_: changed.set())
    async with asyncio.timeout(WAIT_S):
        while documents.values() != expected:
            changed.clear()
            await changed.wait()
    stop()


async def test_what_one_process_sets_the_other_reads_with_author_and_reason(pair):
    one, other = pair
    version = await one.put("a", 1, seen=ABSENT, author="ann", reason="a start")
    assert (version.version, version.value, version.author, version.reason, version.at_ms) == (
        1, 1, "ann", "a start", 1_000,
    )  # fmt: skip
    assert one.get("a") == version
    await reads(other, {"a": 1})
    assert other.get("a") == version
    assert other.revision == one.revision == version.offset


async def test_who_names_an_old_version_is_told_who_was_faster_and_nothing_changes(pair):
    one, other = pair
    await one.put("a", 1, seen=ABSENT, author="ann", reason="a start")
    with pytest.raises(Conflict, match=r"version 1 by ann \(a start\).*try again with 1"):
        await other.put("a", 2, seen=ABSENT, author="bob", reason="")
    assert one.values() == {"a": 1}


async def test_of_many_writers_of_one_version_exactly_one_wins_and_all_agree(pair):
    attempts = [
        pair[number % 2].put("a", number, seen=ABSENT, author=f"author-{number}", reason="") for number in range(8)
    ]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    won = [each for each in outcomes if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert all(isinstance(each, Conflict) for each in outcomes if each is not won[0])
    for documents in pair:
        await reads(documents, {"a": won[0].value})


async def test_changes_that_name_no_version_all_count_one_after_the_other(pair):
    one, other = pair
    await asyncio.gather(
        one.put("a", 1, seen=None, author="ann", reason=""), other.put("a", 2, seen=None, author="bob", reason="")
    )
    for documents in pair:
        await documents.catch_up()  # each has read back its own change: the other's may still be on its way
        assert [version.version for version in documents.history("a")] == [1, 2]
        assert sorted((version.value, version.author) for version in documents.history("a")) == [(1, "ann"), (2, "bob")]


async def test_document_shown_by_another_process_can_be_named_before_it_is_read(pair):
    one, other = pair
    for number in range(5):
        version = await one.put("a", number, seen=number, author="ann", reason="")
        assert (await other.put("b", number, seen=number, author="bob", reason="")).version == number + 1
    assert (await other.put("a", 9, seen=version.version, author="bob", reason="")).version == 6


async def test_history_and_the_past_outlive_all_processes(logs):
    topic = logs.topic("documents")
    async with documents_on(await logs.open(), topic) as documents:
        first = await documents.put("a", 1, seen=None, author="ann", reason="one")
        await documents.put("b", 7, seen=None, author="ann", reason="")
        await documents.delete("a", seen=1, author="bob", reason="away with it")
        assert [(v.name, v.version) for v in documents.newest()] == [("b", 1)]
        last = await documents.put("a", 3, seen=2, author="ann", reason="again")
    async with documents_on(await logs.open(), topic) as documents:
        assert documents.values() == {"a": 3, "b": 7}
        assert [(v.version, v.value, v.author) for v in documents.history("a")] == [
            (1, 1, "ann"), (2, None, "bob"), (3, 3, "ann"),
        ]  # fmt: skip
        assert len(documents.history()) == 4
        assert documents.at(first.offset) == {"a": 1}
        assert documents.at(first.offset - 1) == {}
        assert documents.at(last.offset - 1) == {"b": 7}
        assert documents.at(last.offset) == documents.values()


async def test_what_the_check_refuses_is_not_written(pair):
    one, _ = pair
    with pytest.raises(Invalid, match="100 at most"):
        await one.put("a", 101, seen=None, author="ann", reason="")
    assert one.history() == ()


async def test_deleting_what_is_not_there_says_so(pair):
    one, _ = pair
    with pytest.raises(NotFound, match="'a'"):
        await one.delete("a", seen=None, author="ann", reason="")


async def test_foreign_entries_are_counted_and_stop_nothing(logs):
    log, topic = await logs.open(), logs.topic("documents")
    async with documents_on(log, topic) as documents:
        await log.append(topic, 0, [Payload(b"a", b"what?"), Payload(None, b"{}")])
        await documents.put("a", 1, seen=None, author="ann", reason="")
        assert (documents.skipped, documents.values()) == (2, {"a": 1})


async def test_a_listener_that_fails_stops_nobody(pair):
    one, _ = pair
    told: list[tuple[str, int | None, int | None]] = []

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of the listener's")

    one.on_change(broken)
    one.on_change(lambda name, old, new: told.append((name, old and old.value, new.value)))
    await one.put("a", 1, seen=None, author="ann", reason="")
    await one.delete("a", seen=None, author="ann", reason="")
    assert told == [("a", None, 1), ("a", 1, None)]


async def test_a_closed_log_is_said_to_be_unavailable_and_what_was_read_stays(logs):
    log, topic = await logs.open(), logs.topic("documents")
    async with documents_on(log, topic) as documents:
        await documents.put("a", 1, seen=None, author="ann", reason="")
        await log.close()
        with pytest.raises(LogUnavailable):
            await documents.put("a", 2, seen=None, author="ann", reason="")
        assert documents.values() == {"a": 1}
