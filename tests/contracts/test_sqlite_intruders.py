"""A SQLite log and coordination in a directory where another user may write: what he planted is not touched, and what
is written is not his to read."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.adapters.sqlite.file import ForeignFile, SqliteFile
from statechannel.adapters.sqlite.wakeup import Bell, Ear, socket_directory
from statechannel.ports import Payload
from tests.contracts.sqlite_clients import TOPIC, WAIT_S, opened_log

ANOTHER_UID = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A directory with all kinds of files that are none of the log's business, and a socket that nobody listens at."""
    directory = tmp_path / "treasure"
    directory.mkdir()
    (directory / "letter").write_text("dear")
    (directory / "link").symlink_to(directory / "letter")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(directory / "socket"))
    return directory


def planted_for(path: Path, treasure: Path, mode: int, uid: int = -1) -> Path:
    """The treasure, where the readers of the file at `path` would have their sockets."""
    directory = socket_directory(path)
    treasure.rename(directory)
    os.chown(directory, uid, -1)
    directory.chmod(mode)
    return directory


def modes_in(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def used(path: Path) -> None:
    """The log is written and read by two clients, and closed again."""
    async with opened_log(path) as log, opened_log(path) as reader:
        await log.append(TOPIC, 0, [Payload(None, b"news")])
        async for batch in reader.tail(TOPIC, [0]):
            assert batch[0].value == b"news"
            break


async def test_a_planted_link_leads_nowhere(tmp_path: Path, treasure: Path):
    planted = socket_directory(tmp_path / "lm.db")
    planted.symlink_to(treasure)
    try:
        await used(tmp_path / "lm.db")
        assert planted.is_symlink()
        assert names(treasure) == {"letter", "link", "socket"}
    finally:
        planted.unlink(missing_ok=True)


@needs_root
async def test_a_planted_directory_of_another_user_is_not_used(tmp_path: Path, treasure: Path):
    planted = planted_for(tmp_path / "lm.db", treasure, 0o700, ANOTHER_UID)
    await used(tmp_path / "lm.db")
    assert names(planted) == {"letter", "link", "socket"}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o711])
async def test_a_directory_that_others_may_enter_is_not_used(tmp_path: Path, treasure: Path, mode: int):
    planted = planted_for(tmp_path / "lm.db", treasure, mode)
    await used(tmp_path / "lm.db")
    assert names(planted) == {"letter", "link", "socket"}


async def test_of_the_own_directory_only_own_dead_sockets_are_removed(tmp_path: Path, treasure: Path):
    directory = planted_for(tmp_path / "lm.db", treasure, 0o700)
    await used(tmp_path / "lm.db")
    assert names(directory) == {"letter", "link"}


@needs_root
async def test_sockets_of_another_user_are_left_alone(tmp_path: Path):
    directory = socket_directory(tmp_path / "lm.db")
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(directory / "socket"))
    os.chown(directory / "socket", ANOTHER_UID, -1)
    await used(tmp_path / "lm.db")
    assert names(directory) == {"socket"}


async def test_nobody_is_woken_through_a_link(tmp_path: Path):
    path = tmp_path / "lm.db"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.bind(str(tmp_path / "elsewhere"))
        elsewhere.setblocking(False)
        ear, bell = Ear(path), Bell(path)
        (socket_directory(path) / "link").symlink_to(tmp_path / "elsewhere")
        bell.ring()
        ear.wait(WAIT_S)
        with pytest.raises(BlockingIOError):
            elsewhere.recv(1)
        bell.close()
        ear.close()


async def test_files_are_for_their_user_alone_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        async with opened_log(tmp_path / "lm.db") as log:
            coordination = SqliteCoordination(tmp_path / "co.db", request_timeout_s=WAIT_S)
            await coordination.start(WAIT_S)
            try:
                await log.append(TOPIC, 0, [Payload(None, b"news")])
                await coordination.register(await coordination.start_incarnation("a:1", 0), b"")
                modes = modes_in(tmp_path)
            finally:
                await coordination.close()
    finally:
        os.umask(before)
    assert {name for name in modes if not name.endswith("-wake")} == {
        f"{file}{end}" for file in ("lm.db", "co.db") for end in ("", "-wal", "-shm", "-turn")
    }
    for name, mode in modes.items():
        assert mode == (0o700 if name.endswith("-wake") else 0o600), name


@pytest.mark.parametrize("before", [0o644, 0o666, 0o604])
async def test_files_that_a_former_release_left_open_to_all_are_closed_on_open(
    tmp_path: Path, before: int, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "lm.db"
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, [Payload(None, b"news")])
        for name in modes_in(tmp_path):
            (tmp_path / name).chmod(0o700 if name.endswith("-wake") else before)
        async with opened_log(path) as again:
            await again.append(TOPIC, 0, [Payload(None, b"more")])
            modes = modes_in(tmp_path)
    assert {name for name in modes if not name.endswith("-wake")} == {
        f"lm.db{e}" for e in ("", "-wal", "-shm", "-turn")
    }
    assert {mode for name, mode in modes.items() if not name.endswith("-wake")} == {0o600}
    assert f"{path} was open to every user" in caplog.text


@needs_root
async def test_what_a_group_was_given_it_keeps(tmp_path: Path):
    path = tmp_path / "lm.db"
    await used(path)
    os.chown(path, -1, ANOTHER_UID)
    for before, after in ((0o640, 0o640), (0o660, 0o660), (0o644, 0o640), (0o666, 0o660)):
        path.chmod(before)
        await used(path)
        assert stat.S_IMODE(path.stat().st_mode) == after


@needs_root
async def test_a_file_of_another_user_stays_as_he_left_it(tmp_path: Path):
    path = tmp_path / "lm.db"
    await used(path)
    os.chown(path, ANOTHER_UID, -1)
    path.chmod(0o644)
    await used(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_a_file_of_another_application_stays_as_it_is(tmp_path: Path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE letters (text)")
    db.close()
    path.chmod(0o644)
    with pytest.raises(ForeignFile):
        SqliteFile(path, "CREATE TABLE entries (x)", time.monotonic() + WAIT_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
