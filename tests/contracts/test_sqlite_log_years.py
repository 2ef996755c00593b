"""What only the SQLite log promises of trims, reads and groups: room on disk, crashes, files of an older format."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path

import msgspec
import pytest

from statechannel.adapters.sqlite import log_file, log_reader, log_tables, log_writer
from statechannel.adapters.sqlite.file import APPLICATION_ID
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.adapters.sqlite.log_tables import CHUNKS_AT_ONCE, OFFSET_BITS
from statechannel.adapters.sqlite.log_writer import Sweeper
from statechannel.errors import LogError, LogUnavailable, TopicMismatch, Trimmed, WriterFenced
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.contracts.entries import held, keyed, latest, texts, value, values
from tests.contracts.sqlite_clients import TOPIC, WAIT_S, at_last, line, locked, opened_log, process, rows

ONE = 1 << OFFSET_BITS
"""The place of the first entry of the first partition in a file."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def swept(path: Path) -> None:
    """Wait until nothing is left of what was trimmed but, perhaps, the chunk in which the begin lies."""
    sql = f"""
        SELECT count(*) FROM begins JOIN partitions USING (id) JOIN chunks
        ON place >= id << {OFFSET_BITS} AND place < (id << {OFFSET_BITS}) + begin_offset
        AND (begin_offset = next_offset OR EXISTS (
            SELECT 1 FROM chunks AS later WHERE later.place > chunks.place
            AND later.place <= (id << {OFFSET_BITS}) + begin_offset))"""
    async with asyncio.timeout(WAIT_S):
        while rows(path, sql) != [(0,)]:
            await asyncio.sleep(0.005)


async def drain(reading: AsyncIterator[Sequence[LogEntry]], seen: list[str]) -> None:
    async for batch in reading:
        seen += texts(batch)


# --- room
async def test_a_reader_of_the_file_that_works_slowly_does_not_keep_the_write_ahead_log(path):
    async with opened_log(path) as log:
        for number in range(2 * CHUNKS_AT_ONCE + 1):
            await log.append(TOPIC, 0, values(str(number)))
        with log_file.opened(path) as db:
            topic = log_file.stored_topic(db, TOPIC)
            assert topic is not None
            found = [next(reading := log_file.runs(db, topic, 0, 1, 1_000))]
            async with asyncio.timeout(WAIT_S):
                while rows(path, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:  # busy, at most as long as the log reads
                    await asyncio.sleep(0.005)
            found += reading
    assert [run.first for run in found] == list(range(1, 2 * CHUNKS_AT_ONCE + 1))


async def test_the_file_does_not_grow_over_many_rounds_of_appends_and_trims(path):
    """Each of 40 rounds appends 2 MB, in chunks of very different sizes, and trims those of the round before."""
    async with opened_log(path) as log:
        writer = await log.exclusive("writer")
        for _ in range(40):
            (end,) = await log.ends(TOPIC)
            for kb in (1, 30, 170, 300):
                await log.append(TOPIC, 0, [Payload(None, os.urandom(kb << 10))])
            await writer.commit(TOPIC, 0, [Payload(None, os.urandom(150 << 10))] * 10)
            await log.trim(TOPIC, 0, end)
            assert await log.begins(TOPIC) == (end,)
            await swept(path)
            assert os.stat(path).st_size < 6 << 20
            assert os.stat(f"{path}-wal").st_size < 20 << 20  # a checkpoint may have to wait for a reader


async def test_group_of_tens_of_megabytes_leaves_no_large_write_ahead_log(path):
    async with opened_log(path) as log:
        writer = await log.exclusive("writer")
        await writer.commit(TOPIC, 0, [Payload(None, bytes(1_000_000))] * 24)
        async with asyncio.timeout(WAIT_S):
            while os.stat(f"{path}-wal").st_size > 9 << 20:
                await log.append(TOPIC, 0, values("the next to write begins the write-ahead log anew"))


async def test_trim_removes_whole_chunks_and_keeps_the_one_with_the_begin(path):
    async with opened_log(path) as log:
        for first in (0, 10, 20):
            await log.append(TOPIC, 0, values(*range(first, first + 10)))
        for before, places in ((5, [0, 10, 20]), (10, [10, 20]), (19, [10, 20]), (20, [20]), (29, [20]), (30, [])):
            await log.trim(TOPIC, 0, before)
            await swept(path)
            assert [place - ONE for (place,) in rows(path, "SELECT place FROM chunks ORDER BY place")] == places
            assert texts(await held(log, TOPIC)) == [str(number) for number in range(before, 30)]


async def test_a_long_trim_is_swept_in_small_steps(path, monkeypatch):
    monkeypatch.setattr(log_writer, "_STEP_CHUNKS", 10)
    async with opened_log(path) as log:
        for number in range(60):
            await log.append(TOPIC, 0, values(number))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO begins VALUES (1, 55)")
    file = log_writer.SqliteFile(path, "", WAIT_S)
    sweeper = Sweeper(file)
    left = []
    while sweeper.wait_s is not None:
        sweeper.step()
        left += rows(path, "SELECT count(*) FROM chunks")
    file.close()
    counts = [count for count, _ in itertools.groupby(count for (count,) in left)]
    assert counts == [60, 50, 40, 30, 20, 10, 5]


async def test_a_step_that_cannot_be_made_now_is_made_later(path, monkeypatch):
    monkeypatch.setattr(log_writer, "_STEP_WAIT_S", 0.01)
    monkeypatch.setattr(log_writer, "_RETRY_S", 0.05)
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, values("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO begins VALUES (1, 1)")
    file = log_writer.SqliteFile(path, "", WAIT_S)
    sweeper = Sweeper(file)
    with locked(path):
        while (sweeper.wait_s or 0.0) < 0.02:
            sweeper.step()
    assert rows(path, "SELECT count(*) FROM chunks") == [(1,)]
    while sweeper.wait_s is not None:
        sweeper.step()
    file.close()
    assert rows(path, "SELECT count(*) FROM chunks") == [(0,)]


# --- crashes
async def test_a_sweep_that_a_crash_cut_off_is_gone_on_with_by_the_next_process(path):
    async with opened_log(path) as log:
        for number in range(20):
            await log.append(TOPIC, 0, values(number))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:  # a trim that got no further than its first step
        db.execute("INSERT INTO begins VALUES (1, 15)")
    async with opened_log(path) as log:
        assert await log.begins(TOPIC) == (15,)
        with pytest.raises(Trimmed):
            await held(log, TOPIC, start=14)
        assert texts(await held(log, TOPIC)) == ["15", "16", "17", "18", "19"]
        await swept(path)
        assert rows(path, "SELECT count(*) FROM chunks") == [(5,)]


async def test_a_process_killed_while_it_trims_leaves_a_log_without_a_hole(path):
    async with process(path, "churn", "killed", "1000000") as child:
        for expected in range(60):
            assert await line(child) == str(expected)
        child.send_signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
    async with opened_log(path) as log:
        (begin,), (end,) = await log.begins(TOPIC), await log.ends(TOPIC)
        assert begin >= 3 * 60 - 60
        whole = [f"killed.{i}.{j}" for i, j in itertools.product(range(end // 3), range(3))]
        assert texts(await held(log, TOPIC)) == whole[begin:]
        await log.trim(TOPIC, 0, end)
        await swept(path)
        await log.append(TOPIC, 0, values("goes on"))
        assert texts(await held(log, TOPIC)) == ["goes on"]


async def test_a_process_killed_while_it_commits_leaves_whole_groups(path):
    async with process(path, "commit", "killed", "1000000") as child:
        for expected in range(8):
            assert await line(child) == str(expected)
        child.send_signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
    async with opened_log(path) as log:
        said = [text.rstrip() for text in texts(await held(log, TOPIC))]
        assert len(said) >= 800
        assert said == [f"killed.{i // 100}" for i in range(len(said))]
        assert len(said) % 100 == 0


async def test_a_writer_of_one_process_fences_that_of_another(path):
    async with opened_log(path) as log, process(path, "commit", "shared id", "1000000") as child:
        assert await line(child) == "0"
        writer = await log.exclusive("shared id")
        (end,) = await log.ends(TOPIC)
        await child.wait()  # it ends with an error, as it is fenced
        assert child.returncode == 1
        assert await log.ends(TOPIC) == (end,)
        await writer.commit(TOPIC, 0, values("the heir's"))
        assert texts(await held(log, TOPIC))[-1] == "the heir's"


# --- what must be there
async def test_a_hole_above_the_begin_is_an_error_and_below_it_is_not(path):
    async with opened_log(path) as log:
        for number in range(10):
            await log.append(TOPIC, 0, values(number))
        await log.trim(TOPIC, 0, 4)
        await swept(path)
        assert texts(await held(log, TOPIC)) == [str(number) for number in range(4, 10)]
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("DELETE FROM chunks WHERE place = ?", (ONE + 7,))
        with pytest.raises(LogError, match=f"offset 7 of {TOPIC}/0 is missing"):
            await held(log, TOPIC)
        with pytest.raises(Trimmed, match=f"offset 3 of {TOPIC}/0 was trimmed, it begins at 4"):
            await held(log, TOPIC, start=3)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("DELETE FROM chunks WHERE place = ?", (ONE + 4,))
        with pytest.raises(LogError, match=f"offset 4 of {TOPIC}/0 is missing"):
            await held(log, TOPIC)


@pytest.mark.parametrize("kind", ["tail", "read"])
async def test_paused_reader_overtaken_by_a_trim_hears_it_after_its_read_ahead(path, monkeypatch, kind):
    monkeypatch.setattr(log_reader, "READ_AHEAD_BATCHES", 2)
    async with opened_log(path) as log, opened_log(path) as other:
        for chunk in range(20):
            await log.append(TOPIC, 0, values(*(chunk * 1_000 + number for number in range(1_000))))
        seen: list[str] = []
        async with (
            asyncio.timeout(WAIT_S),
            aclosing(log.tail(TOPIC, [0]) if kind == "tail" else log.read(TOPIC, 0, 0)) as reading,
        ):
            seen += texts(await anext(reading))
            await other.trim(TOPIC, 0, 19_500)
            await swept(path)
            with pytest.raises(Trimmed):
                await drain(reading, seen)
        assert seen == [str(number) for number in range(len(seen))]
        assert len(seen) <= 5_000
        assert texts(await held(log, TOPIC)) == [str(number) for number in range(19_500, 20_000)]


async def test_paused_read_of_a_compacted_topic_still_sees_a_superseded_key(path, monkeypatch):
    """The row it would have come to is gone by then, and the newer one lies beyond the end that it began with."""
    monkeypatch.setattr(log_reader, "READ_AHEAD_BATCHES", 2)
    async with opened_log(path) as log, opened_log(path) as other:
        for client in (log, other):
            await client.open_topic(TopicSpec("table", partitions=1, compacted=True))
        writer = await other.exclusive("writer")
        filling = [keyed(f"{number}", "filling") for number in range(20_000)]
        await writer.commit("table", 0, [*filling, keyed("index", "old")])
        (end,) = await other.ends("table")
        async with asyncio.timeout(WAIT_S), aclosing(log.read("table", 0, 0)) as reading:
            seen = list(await anext(reading))
            await writer.commit("table", 0, [keyed("index", "new"), keyed("19999", None)])
            seen += [entry async for batch in reading for entry in batch]
        assert seen[-1].offset >= end
        assert latest(seen)[b"index"] == b"new"
        assert latest(seen)[b"19999"] is None
        assert len(latest(seen)) == 20_001


async def test_an_early_closed_read_is_forgotten_by_the_thread(path):
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, values(*range(5_000)))
        reader = log._reader
        assert reader is not None
        for _ in range(3):
            async with aclosing(log.read(TOPIC, 0, 0)) as reading:
                await anext(reading)
        await log.ends(TOPIC)  # asked after the others: the thread has heard of them
        assert reader._tails == []
        assert log._tails == set()


async def test_a_file_that_cannot_be_read_makes_a_read_unavailable(path):
    async with opened_log(path, append_timeout_s=0.2) as log, opened_log(path) as patient:
        await patient.append(TOPIC, 0, values("a"))
        reader = log._reader
        assert reader is not None

        def refuse() -> None:
            raise sqlite3.OperationalError("disk I/O error")

        reader._refresh_extents = refuse  # type: ignore[method-assign]
        with pytest.raises(LogUnavailable, match=r"could not be read for 0\.2 s"):
            await held(log, TOPIC, start=0)
        del reader._refresh_extents
        assert texts(await at_last(lambda: held(log, TOPIC, start=0))) == ["a"]


async def test_a_compacted_topic_is_not_trimmed(path):
    async with opened_log(path) as log:
        await log.open_topic(TopicSpec("table", partitions=1, compacted=True))
        await log.append("table", 0, [keyed("key", "value")])
        with pytest.raises(TopicMismatch, match="delete its keys instead"):
            await log.trim("table", 0, 1)
        assert latest(await held(log, "table")) == {b"key": b"value"}


async def test_a_compacted_topic_begins_with_what_is_left_of_it(path):
    async with opened_log(path) as log:
        await log.open_topic(TopicSpec("table", partitions=2, compacted=True))
        for turn in range(5):
            await log.append("table", 0, [keyed("key", f"{turn}")])
        assert await log.begins("table") == (4, 0)


FOLLOWED = TopicSpec("table", partitions=1, compacted=True, followed=True)


async def test_a_followed_topic_keeps_what_was_replaced_in_one_append_too(path):
    async with opened_log(path, tombstone_s=0.0) as log:
        await log.open_topic(FOLLOWED)
        await log.append("table", 0, [keyed("a", "1"), keyed("b", "1"), keyed("a", "2")])
        await log.append("table", 0, [keyed("a", None)])
        await (await log.exclusive("writer")).commit("table", 0, [keyed("a", "3"), keyed("a", "4")])
        there = [(entry.offset, entry.key, entry.value) for entry in await held(log, "table")]
        assert there == [
            *((0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2")),
            *((3, b"a", None), (4, b"a", b"3"), (5, b"a", b"4")),
        ]
        assert rows(path, "SELECT count(*) FROM chunks WHERE dies_ms IS NULL") == [(2,)]


async def test_followed_topic_forgets_in_time_and_no_deleted_key_comes_back(path, monkeypatch):
    monkeypatch.setattr(log_writer, "_DROP_DEAD_EVERY_S", 0.0)
    slow, quick = {"tombstone_s": 0.0, "compaction_lag_s": 3_600}, {"tombstone_s": 0.0, "compaction_lag_s": 0.001}
    async with opened_log(path, **slow) as patient, opened_log(path, **quick) as log:
        for client in (patient, log):
            await client.open_topic(FOLLOWED)
        for value in ("1", "2"):
            await patient.append("table", 0, [keyed("gone", value), keyed("stays", value)])
        await log.append("table", 0, [keyed("gone", None)])
        async with asyncio.timeout(WAIT_S):
            while rows(path, "SELECT key FROM chunks WHERE key = x'676f6e65'"):
                await log.append("table", 0, [keyed("other", "z")])
                assert latest(await held(log, "table")).keys() <= {b"gone", b"stays", b"other"}
                assert latest(await held(log, "table")).get(b"gone") is None
        assert latest(await held(log, "table")) == {b"stays": b"2", b"other": b"z"}
        assert (b"stays", b"1") in [(entry.key, entry.value) for entry in await held(log, "table")]


async def test_much_that_is_dead_is_dropped_in_parts_oldest_first(path, monkeypatch):
    monkeypatch.setattr(log_writer, "_DROP_DEAD_EVERY_S", 0.0)
    monkeypatch.setattr(log_tables, "DROPPED_AT_ONCE", 2)
    async with opened_log(path, compaction_lag_s=0.001) as log:
        await log.open_topic(FOLLOWED)
        await log.append("table", 0, [keyed("a", f"{number}") for number in range(5)])
        left: list[int] = []
        async with asyncio.timeout(WAIT_S):
            while left[-1:] != [0]:
                await log.append("table", 0, [keyed("b", "x")])
                left += rows(path, "SELECT count(*) FROM chunks WHERE key = x'61' AND dies_ms IS NOT NULL")[0]
        assert all(before - after <= 2 for before, after in itertools.pairwise([4, *left]))


async def test_the_tombstones_of_a_group_are_dropped_by_a_later_one(path):
    async with opened_log(path, tombstone_s=0.0) as log:
        await log.open_topic(TopicSpec("table", partitions=1, compacted=True))
        writer = await log.exclusive("writer")
        await writer.commit("table", 0, [keyed("gone", "x"), keyed("stays", "y")])
        await writer.commit("table", 0, [keyed("gone", None)])
        async with asyncio.timeout(WAIT_S):
            while rows(path, "SELECT key FROM chunks WHERE key = x'676f6e65'"):
                await writer.commit("table", 0, [keyed("other", "z")])
        assert latest(await held(log, "table")) == {b"stays": b"y", b"other": b"z"}


# --- writers
async def test_a_group_that_nobody_waits_for_any_more_is_not_written_late(path):
    async with opened_log(path) as log:
        writer = await log.exclusive("writer")
        with locked(path):
            first = asyncio.ensure_future(writer.commit(TOPIC, 0, values("under way")))
            second = asyncio.ensure_future(writer.commit(TOPIC, 0, values("given up")))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
        await first
        await writer.commit(TOPIC, 0, values("last"))
        assert texts(await held(log, TOPIC)) == ["under way", "last"]


async def test_lasting_lock_makes_a_commit_unavailable_and_writes_nothing(path):
    async with opened_log(path, append_timeout_s=0.5) as log, opened_log(path) as patient:
        writer = await at_last(lambda: log.exclusive("writer"))
        with locked(path), pytest.raises(LogUnavailable, match="keeps it locked"):
            await writer.commit(TOPIC, 0, values("refused"))
        heir = await patient.exclusive("writer")
        with pytest.raises(WriterFenced):
            await writer.commit(TOPIC, 0, values("too late"))
        await heir.commit(TOPIC, 0, values("taken"))
        assert texts(await held(patient, TOPIC)) == ["taken"]


async def test_appends_go_on_while_groups_wait_for_each_other(path):
    """A group of 24 MB is encoded and copied to its place beside the appends; only its commit is in their way."""
    async with opened_log(path) as log:
        writer = await log.exclusive("writer")
        group = [Payload(None, bytes(800_000))] * 30
        committing = asyncio.gather(*(writer.commit(TOPIC, 0, group) for _ in range(3)))
        appended = 0
        while not committing.done():
            await log.append(TOPIC, 0, [value("between")])
            appended += 1
        await committing
        assert appended >= 2
        assert await log.ends(TOPIC) == (90 + appended,)


# --- times
async def test_an_offset_at_a_time_is_found_in_few_steps_among_10000_chunks(path):
    """Counted in SQLite's own steps: a scan would take some 100,000."""
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, values(0))
    encoded = msgspec.msgpack.encode([(None, b"x")] * 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM chunks")
        chunks = ((ONE + 3 * number, 1_000 + 10 * number, encoded) for number in range(10_000))
        db.execute("BEGIN")
        db.executemany("INSERT INTO chunks (place, appended_ms, entries) VALUES (?, ?, ?)", chunks)
        db.execute("UPDATE partitions SET next_offset = 30000 WHERE id = 1")
        db.execute("COMMIT")
        steps: list[None] = []
        db.set_progress_handler(lambda: steps.append(None), 100)
        for at_ms, expected in ((0, 0), (1_000, 0), (1_001, 3), (50_990, 14_997), (50_991, 15_000), (100_990, 29_997)):
            steps.clear()
            assert log_tables.offset_at(db, 1, at_ms) == expected
            assert len(steps) < 30
        assert log_tables.offset_at(db, 1, 100_991) == 30_000
        db.execute("INSERT INTO begins VALUES (1, 10000)")
        assert log_tables.offset_at(db, 1, 0) == 10_000
        assert log_tables.offset_at(db, 1, 34_331) == 10_002


# --- files of an older format
OLD_FILE = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY, first_id INTEGER NOT NULL, partitions INTEGER NOT NULL, compacted INTEGER NOT NULL);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE chunks (
    place INTEGER PRIMARY KEY, appended_ms INTEGER NOT NULL, entries BLOB NOT NULL, key BLOB, dies_ms INTEGER);
CREATE INDEX chunk_keys ON chunks (key, place) WHERE key IS NOT NULL;
CREATE INDEX dying_chunks ON chunks (dies_ms) WHERE dies_ms IS NOT NULL;
INSERT INTO topics VALUES ('channel', 1, 1, 0);
INSERT INTO partitions VALUES (1, 4);
INSERT INTO chunks VALUES ((1 << 40) + 0, 1000, x'9292C0C40366657792C0C4036F6C64', NULL, NULL);
INSERT INTO chunks VALUES ((1 << 40) + 2, 2000, x'9292C0C407656E747269657392C0C403796573', NULL, NULL)
"""
"""As releases without trims and exclusive writers wrote it: two appends of two entries each."""


def test_what_an_older_release_encoded_is_what_this_one_encodes():
    encoded = msgspec.msgpack.encode([(None, b"entries"), (None, b"yes")])
    assert encoded.hex().upper() in OLD_FILE


async def test_a_file_of_an_older_format_opens_and_gets_what_it_lacks(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(OLD_FILE)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
    async with opened_log(path) as log:
        assert await log.begins(TOPIC) == (0,)
        assert texts(await held(log, TOPIC)) == ["few", "old", "entries", "yes"]
        assert await log.offset_at(TOPIC, 0, 1_500) == 2
        await log.trim(TOPIC, 0, 3)
        writer = await log.exclusive("writer")
        await writer.commit(TOPIC, 0, values("new"))
    async with opened_log(path) as log:
        assert texts(await held(log, TOPIC)) == ["yes", "new"]
        assert rows(path, "PRAGMA user_version") == [(1,)]


async def test_clients_that_open_an_older_file_at_once_all_find_it_complete(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(OLD_FILE)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
    logs = [SqliteLog(path) for _ in range(4)]
    await asyncio.gather(*(log.start(timeout_s=WAIT_S) for log in logs))
    for log in logs:
        await log.open_topic(TopicSpec(TOPIC))
        assert await log.begins(TOPIC) == (0,)
        assert len(await held(log, TOPIC)) == 4
        await log.close()
