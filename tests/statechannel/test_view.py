"""Table views: what the fold shows at which time, and that the shell reads, writes, expires and sweeps accordingly."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import InvariantError, LogUnavailable
from statechannel.ports import LogEntry, Payload, TopicSpec
from statechannel.runtime import topic_reader
from statechannel.runtime.view import TableView
from statechannel.runtime.view_fold import Changed, Skipped, ViewFold, partition_of

TTL_MS = 1000


def read_number(data: bytes) -> int:
    return int(data)


def write_number(value: int) -> bytes:
    return str(value).encode()


def entry(key: str, value: bytes | None, offset: int = 0, partitions: int = 1, appended_ms: int = 0) -> LogEntry:
    return LogEntry(partition_of(key, partitions), offset, key.encode(), value, appended_ms)


def shown(fold: ViewFold[int], now_ms: int) -> dict[str, int | None]:
    return {key: fold.get(key, now_ms) for key in fold.shown(now_ms)}


# --- the fold


def test_a_value_has_the_time_of_its_own_entry() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0, appended_ms=70), 0)
    fold.apply(entry("a", b"unreadable", 1, appended_ms=90), 10)
    assert fold.appended_ms("a") == 70
    fold.apply(entry("a", b"2", 2, appended_ms=60), 20)
    assert fold.appended_ms("a") == 60


writes = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 99)), max_size=40)


def entries_of(history: list[tuple[str, int | None]]) -> list[LogEntry]:
    return [
        entry(key, None if value is None else write_number(value), offset)
        for offset, (key, value) in enumerate(history)
    ]


@settings(deadline=None)
@given(writes)
def test_it_shows_the_last_value_of_each_key_and_no_deleted_one(history: list[tuple[str, int | None]]) -> None:
    fold = ViewFold(read_number, 1)
    for each in entries_of(history):
        fold.apply(each, 0)
    assert shown(fold, 0) == {key: value for key, value in dict(history).items() if value is not None}


@settings(deadline=None)
@given(writes, st.data())
def test_compaction_changes_nothing_that_is_shown(history: list[tuple[str, int | None]], data: st.DataObject) -> None:
    entries = entries_of(history)
    last = {each.key: each.offset for each in entries}
    superseded = [each.offset for each in entries if each.offset != last[each.key]]
    removed = set(data.draw(st.lists(st.sampled_from(superseded)))) if superseded else set[int]()
    whole, compacted = ViewFold(read_number, 1), ViewFold(read_number, 1)
    for each in entries:
        whole.apply(each, 0)
        if each.offset not in removed:
            compacted.apply(each, 0)
    assert shown(compacted, 0) == shown(whole, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-500, 3000)), max_size=10), st.integers(0, 5000))
def test_a_value_is_shown_exactly_until_it_is_older_than_the_ttl(ages: list[tuple[str, int]], later_ms: int) -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    for offset, (key, age_ms) in enumerate(ages):
        fold.apply(entry(key, b"1", offset), 0, age_ms)
    fresh = {key for key, age_ms in dict(ages).items() if max(0, age_ms) + later_ms <= TTL_MS}
    assert set(fold.shown(later_ms)) == fresh
    assert set(fold.overdue(later_ms)) == set(dict(ages)) - fresh


def test_a_log_whose_clock_runs_ahead_prolongs_no_life() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0), 0, age_ms=-60_000)
    assert fold.get("a", TTL_MS) == 1
    assert fold.get("a", TTL_MS + 1) is None


def test_expiry_reports_each_value_once_and_knows_when_the_next_is_due() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0), 0)
    fold.apply(entry("b", b"2", 1), 500)
    assert fold.expire(1000) == []
    assert fold.next_deadline_ms() == 1001
    assert fold.expire(1001) == [Changed("a", 1, None)]
    assert fold.expire(1001) == []
    assert fold.next_deadline_ms() == 1501


def test_a_key_stays_overdue_until_its_tombstone_is_read() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0), 0)
    fold.expire(2000)
    assert fold.overdue(2000) == ["a"]
    fold.apply(entry("a", None, 1), 2000)
    assert fold.overdue(2000) == []


def test_a_new_value_gives_an_expired_key_a_new_life() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0), 0)
    fold.expire(2000)
    assert fold.apply(entry("a", b"2", 1), 2000) == Changed("a", None, 2)
    assert fold.overdue(2500) == []


def test_what_cannot_be_read_leaves_the_older_value_and_says_where_it_stands() -> None:
    fold = ViewFold(read_number, 1)
    fold.apply(entry("a", b"1", 0), 0)
    outcome = fold.apply(entry("a", b"not a number", 7), 0)
    assert isinstance(outcome, Skipped)
    assert (outcome.partition, outcome.offset) == (0, 7)
    assert "cannot be read" in outcome.detail
    assert shown(fold, 0) == {"a": 1}


def test_an_unreadable_newer_value_is_not_swept_for_the_age_of_the_older_one() -> None:
    fold = ViewFold(read_number, 1, TTL_MS)
    fold.apply(entry("a", b"1", 0), 0)
    fold.apply(entry("a", b"of a newer release", 1), 900)
    assert fold.get("a", 1500) is None
    assert fold.overdue(1500) == []
    assert fold.overdue(1901) == ["a"]


@pytest.mark.parametrize("key", [None, b"", b"\xff\xfe"])
def test_an_entry_without_a_readable_key_is_skipped(key: bytes | None) -> None:
    assert isinstance(ViewFold(read_number, 1).apply(LogEntry(0, 0, key, b"1", 0), 0), Skipped)


def test_an_entry_outside_its_keys_partition_is_skipped() -> None:
    wrong = 1 - partition_of("a", 2)
    assert isinstance(ViewFold(read_number, 2).apply(LogEntry(wrong, 0, b"a", b"1", 0), 0), Skipped)


# --- the shell


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db")
    await log.start(5)
    yield log
    await log.close()


def view_on(log: Any, ttl_s: float | None = None, **more: Any) -> TableView[int]:
    return TableView(log, "numbers", decode=read_number, encode=write_number, ttl_s=ttl_s, **more)


@contextlib.asynccontextmanager
async def running(view: TableView[int]) -> AsyncIterator[TableView[int]]:
    """The view, read up to the end as of now."""
    task = asyncio.create_task(view.run())
    try:
        assert await view.wait_ready(60)
        yield view
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_one_process_puts_and_deletes_and_another_sees_it(log: SqliteLog) -> None:
    async with running(view_on(log)) as writer, running(view_on(log)) as reader:
        for number in range(20):
            await writer.put(f"key-{number}", number)
        await writer.delete("key-7")
        await until(lambda: dict(reader) == {f"key-{n}": n for n in range(20) if n != 7})
        assert len(reader) == 19
        assert "key-7" not in reader


@pytest.mark.parametrize("partitions", [1, 3, 8])
async def test_what_was_there_before_is_complete_once_it_is_ready(log: SqliteLog, partitions: int) -> None:
    async with running(view_on(log, partitions=partitions)) as writer:
        for number in range(30):
            await writer.put(f"key-{number % 10}", number)
    async with running(view_on(log, partitions=partitions)) as reader:
        assert dict(reader) == {f"key-{n}": 20 + n for n in range(10)}


async def test_listeners_see_old_and_new_and_one_that_fails_stops_nobody(log: SqliteLog) -> None:
    seen: list[tuple[str, int | None, int | None]] = []

    def broken(key: str, old: int | None, new: int | None) -> None:
        raise RuntimeError("a bug of the listener's")

    async with running(view_on(log)) as view:
        view.on_change(broken)
        stop = view.on_change(lambda key, old, new: seen.append((key, old, new)))
        for number, value in enumerate((1, 2, None), start=1):  # one by one: the log drops what is replaced
            await (view.delete("a") if value is None else view.put("a", value))
            await until(lambda: len(seen) == number)  # noqa: B023 (it is called in this turn of the loop)
        stop()
        await view.put("a", 3)
        await until(lambda: view.get("a") == 3)
    assert seen == [("a", None, 1), ("a", 1, 2), ("a", 2, None)]


async def test_foreign_bytes_are_counted_and_stop_nothing(log: SqliteLog) -> None:
    async with running(view_on(log, partitions=1)) as view:
        await log.append("numbers", 0, [Payload(b"a", b"what?"), Payload(None, b"1"), Payload(b"b", b"2")])
        await until(lambda: "b" in view)
        assert dict(view) == {"b": 2}
        assert view.skipped == 2


async def test_a_value_that_grows_too_old_vanishes_and_listeners_are_told(log: SqliteLog) -> None:
    gone: list[str] = []
    async with running(view_on(log, ttl_s=0.3)) as view:
        view.on_change(lambda key, old, new: gone.append(key) if new is None else None)
        await view.put("a", 1)
        await until(lambda: "a" in view)
        await until(lambda: "a" not in view)
        await until(lambda: gone == ["a"])


async def test_a_shorter_life_holds_for_what_is_there_already(log: SqliteLog) -> None:
    async with running(view_on(log, ttl_s=3600)) as view:
        await view.put("a", 1)
        await until(lambda: "a" in view)
        gone: list[str] = []
        view.on_change(lambda key, old, new: gone.append(key) if new is None else None)
        view.set_ttl(0.2)
        await until(lambda: "a" not in view)
        await until(lambda: gone == ["a"])
        view.set_ttl(3600)
        await view.put("b", 2)
        await until(lambda: dict(view) == {"b": 2})


async def test_a_view_without_a_time_to_live_gets_none(log: SqliteLog) -> None:
    with pytest.raises(InvariantError, match="without"):
        view_on(log).set_ttl(1)


async def test_the_age_of_what_was_there_before_counts_by_the_logs_time(log: SqliteLog) -> None:
    async with running(view_on(log)) as writer:
        await writer.put("old", 1)
    two_hours_on = view_on(log, ttl_s=3600, clock_ms=lambda: time.time_ns() // 1_000_000 + 7_200_000)
    async with running(two_hours_on) as view:
        assert dict(view) == {}
        await view.put("new", 2)
        await until(lambda: dict(view) == {"new": 2})


async def test_of_a_followed_topic_only_what_may_still_count_is_read_at_the_start(log: SqliteLog) -> None:
    async with running(view_on(log, ttl_s=3600, followed=True)) as writer:
        await writer.put("old", 1)
        days_on = view_on(log, ttl_s=3600, followed=True, clock_ms=lambda: time.time_ns() // 1_000_000 + 172_800_000)
        async with running(days_on) as view:
            assert await view.sweep() == ()
            await writer.put("new", 2)
            await until(lambda: dict(view) == {"new": 2})
        async with running(view_on(log, ttl_s=3600, followed=True)) as view:
            assert dict(view) == {"old": 1, "new": 2}


async def test_a_sweep_deletes_for_everybody_what_is_too_old_and_nothing_else(log: SqliteLog) -> None:
    clock_ms = lambda: time.time_ns() // 1_000_000 + 7_200_000  # noqa: E731
    async with running(view_on(log)) as plain:
        await plain.put("old", 1)
        async with running(view_on(log, ttl_s=3600, clock_ms=clock_ms)) as leader:
            await plain.put("new", 2)
            assert await leader.sweep() == ("old",)
            await until(lambda: dict(plain) == {"new": 2})
            assert await leader.sweep() == ()


async def test_a_view_without_ttl_sweeps_nothing(log: SqliteLog) -> None:
    async with running(view_on(log)) as view:
        await view.put("a", 1)
        assert await view.sweep() == ()


async def test_it_is_not_ready_before_a_late_tail_has_brought_what_is_there(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_SETTLED_S", 0.01)
    async with running(view_on(log)) as writer:
        await writer.put("a", 1)
    late = Late(log)
    view = view_on(late)
    task = asyncio.create_task(view.run())
    try:
        assert not await view.wait_ready(0.3), "nothing was read yet"
        late.go.set()
        assert await view.wait_ready(60)
        assert dict(view) == {"a": 1}
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_it_is_ready_although_the_last_offsets_are_gaps(log: SqliteLog) -> None:
    """The last entry of a compacted topic may be gone: a tombstone that has had its time."""
    async with running(view_on(Gapped(log), partitions=1)) as view:
        assert dict(view) == {}


async def test_writing_before_the_start_is_a_bug(log: SqliteLog) -> None:
    with pytest.raises(InvariantError, match="start"):
        await view_on(log).put("a", 1)


async def test_log_that_breaks_off_keeps_what_was_read_and_resumes_there(log: SqliteLog) -> None:
    flaky = Flaky(log)
    read: list[tuple[str, int | None]] = []
    async with running(view_on(flaky, partitions=2)) as view:
        view.on_change(lambda key, old, new: read.append((key, new)))
        await view.put("a", 1)
        await until(lambda: "a" in view)
        flaky.broken = True
        await log.append("numbers", partition_of("b", 2), [Payload(b"b", b"2")])
        await until(lambda: flaky.failures > 0)
        assert dict(view) == {"a": 1}
        with pytest.raises(LogUnavailable):
            await view.put("a", 3)
        flaky.broken = False
        await until(lambda: dict(view) == {"a": 1, "b": 2})
    assert read == [("a", 1), ("b", 2)]


async def test_a_log_that_does_not_answer_at_all_is_given_up_in_time(log: SqliteLog) -> None:
    class Silent(Wrapped):
        async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
            await asyncio.Event().wait()

    async with running(view_on(Silent(log))) as view:
        view._reader._timeout_s = 0.05  # from now on: what comes before may take longer
        with pytest.raises(LogUnavailable, match="no answer"):
            await view.put("a", 1)


class Wrapped:
    """A log as it is, to be changed in one respect."""

    def __init__(self, inner: SqliteLog) -> None:
        self.inner = inner

    async def open_topic(self, spec: TopicSpec) -> int:
        return await self.inner.open_topic(spec)

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        await self.inner.append(topic, partition, payloads)

    async def ends(self, topic: str) -> tuple[int, ...]:
        return await self.inner.ends(topic)

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry]]:
        async for entries in self.inner.tail(topic, starts):
            yield entries

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        async for entries in self.inner.read(topic, partition, start):
            yield entries


class Late(Wrapped):
    """Its tails begin when they are let go: a slow machine, on which a first read takes long."""

    def __init__(self, inner: SqliteLog) -> None:
        super().__init__(inner)
        self.go = asyncio.Event()

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry]]:
        await self.go.wait()
        async for entries in super().tail(topic, starts):
            yield entries


class Gapped(Wrapped):
    """Its topics end later than their last entry."""

    async def ends(self, topic: str) -> tuple[int, ...]:
        return tuple(end + 3 for end in await self.inner.ends(topic))


class Flaky(Wrapped):
    """Refuses reads and writes while it is `broken`; what comes meanwhile is lost on the way, not in the log."""

    broken = False
    failures = 0

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        if self.broken:
            raise LogUnavailable("broken on purpose")
        await super().append(topic, partition, payloads)

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry]]:
        async for entries in super().tail(topic, starts):
            if self.broken:
                self.failures += 1
                raise LogUnavailable("broken on purpose")
            yield entries
