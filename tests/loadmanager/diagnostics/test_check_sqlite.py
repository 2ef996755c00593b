"""The audit of SQLite files: what it finds in them, and that it leaves no trace."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from statechannel.adapters.sqlite import audit as sqlite_audit
from statechannel.adapters.sqlite import file as sqlite_file
from statechannel.adapters.sqlite.audit import audit_coordination_file, audit_log_file, file_system_of
from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.audit import Finding, Severity
from statechannel.ports import Payload, TopicSpec

LOCAL = "22 1 8:1 / / rw - ext4 /dev/root rw\n"
LATE_MS = int(time.time() * 1000) + 3_600_000


def now_ms() -> int:
    return int(time.time() * 1000)


def texts(findings: Sequence[Finding], severity: Severity) -> str:
    return "\n".join(f"{f.found} -> {f.advice}" for f in findings if f.severity is severity)


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


async def make_log(path: Path, *, compacted: bool = False) -> None:
    log = SqliteLog(path)
    await log.start(5)
    await log.open_topic(TopicSpec("bundle-state", 2, compacted))
    await log.append("bundle-state", 0, [Payload(b"k", b"v")])
    await log.close()


async def make_coordination(path: Path, cluster: str) -> None:
    coordination = SqliteCoordination(path)
    await coordination.start(5)
    await coordination.identify(cluster, "log-1")
    await coordination.close()


def test_files_that_do_not_exist_yet_are_fine_and_stay_so(tmp_path: Path):
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    found += audit_coordination_file(tmp_path / "lm.db.coordination", "here", mounts=lambda: LOCAL)
    assert {f.severity for f in found} == {Severity.OK}
    assert not list(tmp_path.iterdir())


async def test_a_write_ahead_log_that_a_reader_keeps_is_reported_by_broker_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path, process = tmp_path / "lm.db", f"process {os.getpid()} "
    log = SqliteLog(path)
    await log.start(5)
    await log.open_topic(TopicSpec("bundle-state", 2, compacted=False))
    for module in (sqlite_audit, sqlite_file):
        monkeypatch.setattr(module, "WAL_LARGE_BYTES", 200_000)
    monkeypatch.setattr(sqlite_file, "_WAL_LOOKED_AT", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM topics").fetchall()
        while process not in caplog.text:
            await log.append("bundle-state", 0, [Payload(None, b"v" * 1_000)])
        found = texts(audit_log_file(path, now_ms=now_ms(), mounts=lambda: LOCAL), Severity.WARNING)
    assert "lm.db-wal has 0 MiB and grows" in caplog.text
    assert process in found
    assert "reads within a transaction that does not end -> end that transaction or process" in found
    await log.close()


async def test_a_stopped_reader_of_the_coordination_file_is_named_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path, large_bytes = tmp_path / "co.db", 6_000_000  # above 1,000 pages, at which SQLite empties the log
    for module in (sqlite_audit, sqlite_file):
        monkeypatch.setattr(module, "WAL_LARGE_BYTES", large_bytes)
    monkeypatch.setattr(sqlite_file, "_WAL_LOOKED_AT", 1)
    monkeypatch.setattr(sqlite_file, "_WAL_KEPT_BYTES", 100_000)
    coordination = SqliteCoordination(path)
    await coordination.start(5)
    await coordination.identify("here", "log-1")
    broker = await coordination.start_incarnation("a:1", 0)
    await coordination.register(broker, b"")

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "co.db-wal" in record.getMessage()]

    for number in (1, 2):  # a second reader is reported like the first
        with stopped_reader(path) as process:
            named = re.compile(rf"process {process} \([^)]*, stopped\).* reads within a transaction that does not end")
            while len(warnings()) < number:
                await coordination.prove(broker)
            assert named.search(warnings()[-1])
            assert sqlite_file.wal_bytes(path) < 1.5 * large_bytes
            found = texts(audit_coordination_file(path, "here", mounts=lambda: LOCAL), Severity.WARNING)
            assert named.search(found)
            assert "-> end that transaction or process (`kill -CONT PID` resumes a stopped one" in found
        while sqlite_file.wal_bytes(path) > large_bytes:
            await coordination.prove(broker)
        await coordination.prove(broker)
        found = texts(audit_coordination_file(path, "here", mounts=lambda: LOCAL), Severity.WARNING)
        assert "co.db-wal" not in found
    await coordination.close()


@contextmanager
def stopped_reader(path: Path) -> Iterator[int]:
    """A process that was stopped within a transaction in which it read the file; killed at the end."""
    code = (
        "import os, signal, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN'); db.execute('SELECT * FROM sessions').fetchall()\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            yield process.pid
        finally:
            process.kill()


async def test_files_at_rest_are_read_without_a_trace(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    await make_coordination(tmp_path / "co.db", "here")
    before = snapshot(tmp_path)
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    found += audit_coordination_file(tmp_path / "co.db", "here", mounts=lambda: LOCAL)
    assert {f.severity for f in found} == {Severity.OK}
    assert "2 partitions" in texts(found, Severity.OK)
    assert "cluster 'here'" in texts(found, Severity.OK)
    assert snapshot(tmp_path) == before


async def test_files_in_use_are_read_while_they_are_written(tmp_path: Path):
    log = SqliteLog(tmp_path / "lm.db")
    await log.start(5)
    await log.open_topic(TopicSpec("bundle-state", 2))
    await log.append("bundle-state", 1, [Payload(b"k", b"v")])
    try:
        found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    finally:
        await log.close()
    assert "newest entry is 0 s old" in texts(found, Severity.OK)


async def test_another_clusters_file_is_an_error(tmp_path: Path):
    await make_coordination(tmp_path / "co.db", "there")
    found = audit_coordination_file(tmp_path / "co.db", "here", mounts=lambda: LOCAL)
    assert "belongs to cluster 'there', not 'here'" in texts(found, Severity.ERROR)


async def test_a_wall_clock_that_was_set_back_is_told(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms() - 60_000, mounts=lambda: LOCAL)
    assert "set back" in texts(found, Severity.WARNING)


@pytest.mark.parametrize("off_s", [60, -60])
async def test_brokers_whose_clocks_differ_are_told(tmp_path: Path, off_s: int):
    """The clock of the second of three entries' writers is ahead, or behind."""
    path = tmp_path / "lm.db"
    await make_log(path)
    log = SqliteLog(path)
    await log.start(5)
    await log.open_topic(TopicSpec("bundle-state", 2))
    for _ in range(2):
        await log.append("bundle-state", 0, [Payload(None, b"v")])
    await log.close()
    found = texts(audit_log_file(path, now_ms=now_ms(), mounts=lambda: LOCAL), Severity.WARNING)
    assert "older than the entry before it" not in found
    with closing(sqlite3.connect(path)) as db:
        middle = "(SELECT place FROM chunks ORDER BY place LIMIT 1 OFFSET 1)"
        db.execute(f"UPDATE chunks SET appended_ms = appended_ms + ? WHERE place = {middle}", (off_s * 1000,))
        db.commit()
    found = texts(audit_log_file(path, now_ms=now_ms() + 60_000, mounts=lambda: LOCAL), Severity.WARNING)
    assert "one is 60 s older than the entry before it -> clocks of brokers differ" in found


async def test_a_channel_that_may_lose_records_is_an_error(tmp_path: Path):
    await make_log(tmp_path / "lm.db", compacted=True)
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "compacted" in texts(found, Severity.ERROR)


def test_what_is_no_file_of_ours_is_an_error(tmp_path: Path):
    (tmp_path / "text").write_text("hello")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("PRAGMA application_id = 77")
        db.execute("CREATE TABLE t (x)")
    db.close()
    for name in ("text", "other.db"):
        found = audit_log_file(tmp_path / name, now_ms=now_ms(), mounts=lambda: LOCAL)
        assert "loadmanager did not write" in texts(found, Severity.ERROR)
    found = audit_log_file(tmp_path / "none" / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "create it" in texts(found, Severity.ERROR)


async def test_a_file_of_a_newer_release_is_an_error(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    with sqlite3.connect(tmp_path / "lm.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "format 99" in texts(found, Severity.ERROR)


async def test_a_damaged_file_is_an_error(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    with sqlite3.connect(tmp_path / "lm.db") as db:  # what still stood beside the file would cover the damage
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    content = bytearray((tmp_path / "lm.db").read_bytes())
    content[100:4096] = bytes(3996)
    (tmp_path / "lm.db").write_bytes(content)
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "backup" in texts(found, Severity.ERROR)


async def test_a_file_that_every_user_may_write_is_told(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    (tmp_path / "lm.db").chmod(0o666)
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "every user may write" in texts(found, Severity.WARNING)
    (tmp_path / "lm.db").chmod(0o644)
    assert "every user may read" in texts(
        audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL), Severity.WARNING
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
async def test_a_file_that_is_read_only_is_an_error(tmp_path: Path):
    await make_log(tmp_path / "lm.db")
    (tmp_path / "lm.db").chmod(0o444)
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: LOCAL)
    assert "not readable and writable" in texts(found, Severity.ERROR)


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("nfs4", Severity.ERROR), ("cifs", Severity.ERROR), ("tmpfs", Severity.WARNING), ("xfs", Severity.OK)],
)
def test_where_the_file_lies_is_judged(tmp_path: Path, kind: str, severity: Severity):
    mounts = f"{LOCAL}23 22 0:5 / {os.path.realpath(tmp_path)} rw shared:1 - {kind} somewhere rw\n"
    found = audit_log_file(tmp_path / "lm.db", now_ms=now_ms(), mounts=lambda: mounts)
    assert kind in texts(found, severity)


def test_longest_mount_point_counts_and_a_later_mount_covers_an_earlier():
    mounts = (
        f"{LOCAL}1 1 0:1 / /data rw - nfs x rw\n1 1 0:1 / /database rw - tmpfs x rw\n1 1 0:1 / /data rw - xfs x rw\n"
    )
    assert file_system_of("/data/lm", mounts) == "xfs"
    assert file_system_of("/database", mounts) == "tmpfs"
    assert file_system_of("/var", mounts) == "ext4"
    assert file_system_of("/var", "nonsense\n") is None


@pytest.mark.parametrize(("free", "severity"), [(1 << 20, Severity.ERROR), (200 << 20, Severity.WARNING)])
def test_a_disk_that_is_nearly_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, severity: Severity
):
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[4] = free // real.f_frsize  # f_bavail
    monkeypatch.setattr(sqlite_audit.os, "statvfs", lambda _: os.statvfs_result(fields))
    assert "free some space" in texts(audit_log_file(tmp_path / "lm.db", now_ms=now_ms()), severity)
