"""What only the SQLite adapters promise: several real processes, full and locked disks, foreign and lost files."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from statechannel.adapters.sqlite import file as sqlite_file
from statechannel.adapters.sqlite import log as sqlite_log
from statechannel.adapters.sqlite import log_writer as sqlite_log_writer
from statechannel.adapters.sqlite.coordination import SqliteCoordination, boottime_s
from statechannel.adapters.sqlite.file import FORMAT_VERSION
from statechannel.adapters.sqlite.log import Intake, SqliteLog
from statechannel.adapters.sqlite.log_writer import Write
from statechannel.adapters.sqlite.wakeup import Bell, Ear, socket_directory
from statechannel.errors import (
    CoordinationUnavailable,
    Fenced,
    ForeignCluster,
    LogError,
    LogUnavailable,
    TopicMismatch,
)
from statechannel.ports import Connection, Payload, TopicSpec
from tests.contracts.sqlite_clients import (
    PROGRAM,
    TOPIC,
    WAIT_S,
    at_last,
    line,
    locked,
    opened_log,
    process,
    read,
    rows,
    turn_kept,
)
from tests.disks import every_write_fails


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


def beside(path: Path) -> set[str]:
    """The files that belong to a database."""
    return {each.name for each in path.parent.glob(f"{path.name}-*")}


@asynccontextmanager
async def opened_coordination(path: Path, **settings) -> AsyncIterator[SqliteCoordination]:
    client = SqliteCoordination(path, **{"session_timeout_s": 6.0, "request_timeout_s": WAIT_S, **settings})
    try:
        await client.start(timeout_s=WAIT_S)
        yield client
    finally:
        await client.close()


def value(text: object) -> list[Payload]:
    return [Payload(None, str(text).encode())]


# --- several processes
@pytest.mark.slow
async def test_processes_that_append_at_once_lose_and_reorder_nothing(path):
    names, appends = ("a", "b", "c"), 150
    async with opened_log(path) as log:
        reading = asyncio.ensure_future(read(log, 3 * 3 * appends))
        async with asyncio.timeout(WAIT_S):
            children = [
                await asyncio.create_subprocess_exec(
                    sys.executable, str(PROGRAM), str(path), "append", name, str(appends),
                    stdout=asyncio.subprocess.DEVNULL,
                )
                for name in names
            ]  # fmt: skip
            assert await asyncio.gather(*(child.wait() for child in children)) == [0, 0, 0]
        texts = await reading
        assert await log.ends(TOPIC) == (3 * 3 * appends,)
    for name in names:
        own = [text for text in texts if text.startswith(f"{name}.")]
        assert own == [f"{name}.{i}.{j}" for i, j in itertools.product(range(appends), range(3))]


async def test_process_killed_while_appending_leaves_all_that_it_was_promised(path):
    async with process(path, "append", "killed", "1000000") as child:
        for expected in range(40):
            assert await line(child) == str(expected)
        child.send_signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
    async with opened_log(path) as log:
        (end,) = await log.ends(TOPIC)
        texts = await read(log, end)
        assert end >= 3 * 40
        assert end % 3 == 0  # each append wholly or not at all
        assert texts == [f"killed.{i}.{j}" for i, j in itertools.product(range(end // 3), range(3))]
        await log.append(TOPIC, 0, value("goes on"))
        assert await read(log, 1, start=end) == ["goes on"]


async def test_a_reader_in_another_process_sees_an_append(path):
    async with opened_log(path) as log, process(path, "tail") as child:
        assert await line(child) == "ready"
        for i in range(20):
            await log.append(TOPIC, 0, value(i))
            assert await line(child) == str(i)


async def test_an_append_wakes_the_sockets_of_other_processes(path):
    ear = Ear(path)
    try:
        waiting = asyncio.ensure_future(asyncio.to_thread(ear.wait, WAIT_S))
        began_s = time.monotonic()
        async with process(path, "append", "a", "1") as child:
            assert await line(child) == "0"
            await waiting
        assert time.monotonic() - began_s < WAIT_S
    finally:
        ear.close()


async def test_a_reader_that_cannot_be_woken_looks_by_itself(path):
    async with opened_log(path) as log, opened_log(path) as reader:
        directory = socket_directory(path)
        for socket in directory.iterdir():
            socket.unlink()
        reading = asyncio.ensure_future(read(reader, 1))
        await log.append(TOPIC, 0, value("news"))
        assert await reading == ["news"]


async def test_sockets_of_killed_processes_go_and_the_directory_with_the_last(path):
    async with opened_log(path) as log:
        directory = socket_directory(path)
        assert len(str(directory)) < 100
        async with process(path, "listen") as child:
            assert await line(child) == "ready"
            assert any(socket.name.startswith(f"{child.pid}-") for socket in directory.iterdir())
            child.kill()
            await child.wait()
        bell = Bell(path)
        bell.ring()
        bell.close()
        assert [socket.name.split("-")[0] for socket in directory.iterdir()] == [str(os.getpid())]
        await log.append(TOPIC, 0, value("fine"))
    assert not directory.exists()


# --- disks and locks
async def limit_pages(log, pages):
    """From now on the disk is full at so many pages for the thread that appends; fewer than there are: as many."""
    done = asyncio.get_running_loop().create_future()
    log._writer.put(Write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall(), done))
    await done


async def test_full_disk_refuses_appends_while_reads_go_on_until_there_is_space(path):
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, value("before"))
        await limit_pages(log, 1)
        big = [Payload(None, b"x" * 200_000)]
        with pytest.raises(LogUnavailable, match="disk is full; free some space"):
            await log.append(TOPIC, 0, big)
        assert await read(log, 1) == ["before"]
        assert await log.ends(TOPIC) == (1,)
        await limit_pages(log, 1 << 30)
        await log.append(TOPIC, 0, value("after"))
        assert await read(log, 2) == ["before", "after"]


async def test_an_append_waits_for_a_lock_that_ends(path):
    async with opened_log(path) as log:
        with locked(path):
            appending = asyncio.ensure_future(log.append(TOPIC, 0, value("patient")))
            assert await log.ends(TOPIC) == (0,)  # reading needs no lock
        await appending
        assert await read(log, 1) == ["patient"]


async def test_a_lock_that_does_not_end_is_reported_and_afterwards_all_is_well(path):
    async with opened_log(path, append_timeout_s=0.1) as log:
        with locked(path), pytest.raises(LogUnavailable, match="keeps it locked"):
            await log.append(TOPIC, 0, value("refused"))
        await at_last(lambda: log.append(TOPIC, 0, value("taken")))
        assert set(await read(log, 1)) == {"taken"}


async def test_a_start_that_waits_for_a_locked_file_says_who_has_it(path, monkeypatch, caplog):
    async with opened_log(path):
        pass
    monkeypatch.setattr(sqlite_file, "_QUIET_S", 0.01)
    log = SqliteLog(path)
    with locked(path):
        starting = asyncio.ensure_future(log.start(WAIT_S))
        while "waits for it for another" not in caplog.text:
            await asyncio.sleep(0.001)
    await starting
    await log.close()
    assert f"starting: {path}: process {os.getpid()} (" in caplog.text


async def test_a_stopped_process_that_keeps_its_turn_is_reported_and_reads_go_on(path):
    async with opened_log(path, append_timeout_s=0.2) as log, opened_log(path) as patient:
        await patient.append(TOPIC, 0, value("before"))
        with turn_kept(path):
            with pytest.raises(
                LogUnavailable, match=r"has the lock of .*: resume or end it|another process .* is stopped"
            ):
                await log.append(TOPIC, 0, value("late"))
            assert await read(log, 1) == ["before"]
        await at_last(lambda: log.append(TOPIC, 0, value("after")))
        assert (await read(log, 2))[1] in ("late", "after")


async def test_the_queue_is_bounded(path):
    async with opened_log(path, append_timeout_s=0.3, queue_bytes=1_000) as log:
        with locked(path):
            appends = [log.append(TOPIC, 0, [Payload(None, b"x" * 500)]) for _ in range(4)]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert all(isinstance(outcome, LogUnavailable) for outcome in outcomes)
        assert any("queue of appends stayed full" in str(outcome) for outcome in outcomes)
        await at_last(lambda: log.append(TOPIC, 0, value("room again")))


async def test_a_full_queue_admits_in_the_order_of_arrival_and_forgets_who_left():
    intake, admitted = Intake(10), []

    async def enter(name: str, size_bytes: int) -> None:
        await intake.enter(size_bytes, timeout_s=WAIT_S)
        admitted.append(name)

    tasks = [asyncio.ensure_future(enter(name, size)) for name, size in (("a", 8), ("b", 8), ("c", 2), ("d", 2))]
    await asyncio.sleep(0)
    assert admitted == ["a"]
    tasks[1].cancel()
    await asyncio.wait(tasks[1:3])
    assert admitted == ["a", "c"]
    intake.leave(8)
    await tasks[3]
    assert admitted == ["a", "c", "d"]


async def test_a_removed_file_takes_no_appends_into_the_void(path):
    async with opened_log(path) as log:
        path.rename(path.with_suffix(".moved"))
        with pytest.raises(LogUnavailable, match="was removed"):
            await log.append(TOPIC, 0, value("lost"))
        path.write_bytes(b"")
        with pytest.raises(LogUnavailable, match="was replaced"):
            await log.append(TOPIC, 0, value("lost"))
        path.with_suffix(".moved").rename(path)
        await log.append(TOPIC, 0, value("kept"))
        assert await read(log, 1) == ["kept"]


async def test_a_hole_in_the_log_ends_the_tail_instead_of_being_skipped(path):
    async with opened_log(path) as log:
        for i in range(3):
            await log.append(TOPIC, 0, value(i))
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("DELETE FROM chunks WHERE place = (SELECT min(place) + 1 FROM chunks)")
        with pytest.raises(LogError, match=f"offset 1 of {TOPIC}/0 is missing"):
            await read(log, 3)


async def test_a_tombstone_is_dropped_after_its_time(path, monkeypatch):
    monkeypatch.setattr(sqlite_log_writer, "_DROP_DEAD_EVERY_S", 0.0)
    async with opened_log(path, tombstone_s=0.0) as log:
        await log.open_topic(TopicSpec("table", partitions=1, compacted=True))
        await log.append("table", 0, [Payload(b"gone", b"x")])
        await log.append("table", 0, [Payload(b"gone", None)])
        async with asyncio.timeout(WAIT_S):
            while rows(path, "SELECT count(*) FROM chunks WHERE dies_ms IS NOT NULL") != [(0,)]:
                await log.append("table", 0, [Payload(b"other", b"y")])
        assert rows(path, "SELECT key FROM chunks") == [(b"other",)]


# --- whose file it is
def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()


def no_database(path: Path) -> None:
    path.write_text("these are somebody's notes, not a database\n" * 200)


def newer_format(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")


FOREIGN = pytest.mark.parametrize(
    ("make", "says"),
    [
        (other_database, "another application; choose another path"),
        (no_database, "not an SQLite database; choose another path"),
        (newer_format, "newer release"),
    ],
)


@FOREIGN
async def test_a_log_refuses_a_foreign_file_and_leaves_it_alone(path, make: Callable[[Path], None], says: str):
    make(path)
    before = path.read_bytes()
    log = SqliteLog(path)
    with pytest.raises(TopicMismatch, match=says) as refusal:
        await log.start(timeout_s=WAIT_S)
    await log.close()
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == before


@FOREIGN
async def test_a_coordination_refuses_a_foreign_file_and_leaves_it_alone(path, make, says: str):
    make(path)
    before = path.read_bytes()
    with pytest.raises(ForeignCluster, match=says) as refusal:
        async with opened_coordination(path):
            pass
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == before


async def test_a_missing_directory_is_named(tmp_path):
    nowhere = tmp_path / "nowhere" / "log.db"
    log = SqliteLog(nowhere)
    with pytest.raises(LogUnavailable, match="create its directory") as refusal:
        await log.start(timeout_s=WAIT_S)
    await log.close()
    assert str(nowhere) in str(refusal.value)
    with pytest.raises(CoordinationUnavailable, match="create its directory"):
        async with opened_coordination(nowhere):
            pass


async def test_log_and_coordination_can_share_one_file(path):
    async with opened_log(path) as log, opened_coordination(path) as client:
        await client.register(await client.start_incarnation("a:1", above=0), b"")
        await log.append(TOPIC, 0, value("both"))
        assert await read(log, 1) == ["both"]


# --- sessions
async def test_a_locked_file_suspends_the_link_until_it_is_free(path, until):
    async with opened_coordination(path) as client:
        broker = await client.start_incarnation("a:1", above=0)
        await until(client, lambda: client.connection is Connection.CONNECTED)
        client.request_timeout_s = 0.2
        with locked(path):
            with pytest.raises(CoordinationUnavailable):
                await client.prove(broker)
            await until(client, lambda: client.connection is Connection.SUSPENDED)
        client.request_timeout_s = WAIT_S
        await until(client, lambda: client.connection is Connection.CONNECTED)
        await client.prove(broker)


async def test_stopped_process_that_keeps_its_turn_suspends_the_link_unasked(path, until):
    async with opened_coordination(path) as client:
        client.request_timeout_s = 0.2
        with turn_kept(path):
            await until(client, lambda: client.connection is Connection.SUSPENDED)
        client.request_timeout_s = WAIT_S
        await until(client, lambda: client.connection is Connection.CONNECTED)
        await client.start_incarnation("a:1", above=0)


async def test_a_removed_file_suspends_the_link_until_it_is_put_back(path, until):
    async with opened_coordination(path) as client:
        path.rename(path.with_suffix(".moved"))
        await until(client, lambda: client.connection is Connection.SUSPENDED)
        with pytest.raises(CoordinationUnavailable, match="removed"):
            await client.start_incarnation("a:1", above=0)
        path.with_suffix(".moved").rename(path)
        await until(client, lambda: client.connection is Connection.CONNECTED)
        assert (await client.start_incarnation("a:1", above=0)).incarnation == 1


async def test_heartbeats_that_cannot_be_written_suspend_the_link_by_themselves(path, until):
    async with opened_coordination(path) as client:
        with every_write_fails():
            await until(client, lambda: client.connection is Connection.SUSPENDED)
        await until(client, lambda: client.connection is Connection.CONNECTED)


async def test_proof_on_a_full_disk_is_the_check_alone_and_names_old_incarnations(path):
    async with opened_coordination(path) as one, opened_coordination(path) as other:
        me = await one.start_incarnation("a:1", above=0)
        await one._write(lambda db: db.execute("PRAGMA max_page_count = 1").fetchall())  # no page more than there are
        with pytest.raises(CoordinationUnavailable, match="the disk is full"):
            await one.register(me, bytes(1 << 20))
        await one.prove(me)  # would register it too
        assert one.connection is Connection.SUSPENDED
        await other.start_incarnation("a:1", above=me.incarnation)
        with pytest.raises(Fenced):
            await one.prove(me)


async def test_sessions_of_another_boot_are_over(path, until):
    async with opened_coordination(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        later_ms = int(boottime_s() * 1000) + 3_600_000
        db.execute("INSERT INTO sessions VALUES ('old', 'another boot', ?, 1000)", (later_ms,))
        db.execute("INSERT INTO members VALUES ('old:1', 1, x'', 'old', 0)")
        db.execute("UPDATE election SET epoch = 7, name = 'old:1', incarnation = 1, session = 'old'")
    async with opened_coordination(path) as client:
        await until(client, lambda: "old:1" not in client.members and client.leadership is None)
        leadership = await client.campaign(await client.start_incarnation("a:1", above=0))
        assert leadership is not None
        assert leadership.epoch == 8


async def test_a_machine_that_slept_longer_than_the_time_out_ends_nobodys_session(path, until):
    asleep_s = 0.0

    def clock() -> float:
        return boottime_s() + asleep_s

    async with opened_coordination(path, clock=clock) as one, opened_coordination(path, clock=clock) as two:
        for client, name in ((one, "a:1"), (two, "b:1")):
            await client.register(await client.start_incarnation(name, above=0), b"")
        await until(one, lambda: len(one.members) == 2)
        vanished = asyncio.Event()
        one.on_change(lambda: vanished.set() if len(one.members) < 2 else None)
        asleep_s = 1_000.0
        woken_ms = int(clock() * 1000)
        async with asyncio.timeout(WAIT_S):
            while rows(path, "SELECT min(heard_ms) FROM sessions")[0][0] < woken_ms:  # a heartbeat ends old sessions
                await asyncio.sleep(0.01)
        assert not vanished.is_set()
        assert len(one.members) == 2


async def test_a_client_that_closes_leaves_no_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever copies or checks the file afterwards finds all of it in one place."""
    monkeypatch.setattr(sqlite_log, "_CLOSE_S", WAIT_S)  # it gives up on a disk that hangs, not on a busy machine
    for number in range(40):  # its connections must not close at once, which is a race
        path = tmp_path / f"{number}.db"
        async with opened_log(path) as log:
            await log.append(TOPIC, 0, [Payload(b"k", b"v")])
        assert beside(path) <= {f"{path.name}-turn"}
