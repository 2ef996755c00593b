"""A plain topic on SQLite has one row for a batch: its first offset is the row's key, so the rows are their own index.

They must say the same after a crash at any byte: a write-ahead log cut off, or damaged, anywhere.
"""

from __future__ import annotations

import bisect
import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from statechannel.adapters.sqlite import log_tables as queries
from statechannel.adapters.sqlite.log_tables import OFFSET_BITS
from statechannel.ports import Payload
from tests.contracts.entries import held, texts, value
from tests.contracts.sqlite_clients import TOPIC, opened_log, rows

SIZES = (1, 3, 700, 1, 1_500, 40, 2)
"""Records of each append; one of 1,500 is two rows."""
WANTED = [f"record {number}" for number in range(sum(SIZES))]
ENDS = [sum(SIZES[:count]) for count in range(len(SIZES) + 1)]
WAL_HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096
STRIDE_BYTES = 1_009


@pytest.fixture
async def crashed(tmp_path: Path) -> Path:
    """The file and its write-ahead log as a crash right after the last append leaves them."""
    path = tmp_path / "log.db"
    async with opened_log(path) as log:
        for begin, end in itertools.pairwise(ENDS):
            await log.append(TOPIC, 0, [Payload(None, text.encode()) for text in WANTED[begin:end]])
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"crashed.db{suffix}")
    return tmp_path / "crashed.db"


def cuts(size_bytes: int) -> Iterator[int]:
    """Around each border between frames, and in steps of a prime number of bytes between them."""
    for border in range(WAL_HEADER_BYTES, size_bytes + 1, FRAME_BYTES):
        yield from (border - 1, border, border + 1)
    yield from range(0, size_bytes, STRIDE_BYTES)


def checked_end(path: Path, at_ms: int) -> int:
    """The end of the partition, after a look at all that its rows say."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'chunks'").fetchone()[0]:
            return 0  # a crash before the file was made
        if 1 not in (found := queries.extents(db)):
            return 0  # a crash before the topic was
        base, end = 1 << OFFSET_BITS, found[1].end
        read, firsts = list[str](), list[int]()
        for first, _, entries in queries.chunks_between(db, base, 0, end + 1):
            assert first == len(read), "a row begins where the row before it ends"
            firsts.append(first)
            read += [(text or b"").decode() for _, text in entries]
        assert read == WANTED[:end]
        for offset in range(0, end, 37):
            found_at = queries._chunk_with(db, base, base + offset) - base
            assert found_at == firsts[bisect.bisect_right(firsts, offset) - 1]
        assert queries.offset_at(db, 1, 0) == 0
        assert queries.offset_at(db, 1, at_ms) == end
        return end


def wal(path: Path) -> Path:
    """The write-ahead log of a file."""
    return Path(f"{path}-wal")


@contextmanager
def crashed_with(crashed: Path, log: bytes | bytearray) -> Iterator[Path]:
    """A copy of the crashed file beside this write-ahead log."""
    path = crashed.with_name("copy.db")
    shutil.copy(crashed, path)
    wal(path).write_bytes(log)
    try:
        yield path
    finally:
        for left in path.parent.glob("copy.db*"):
            left.unlink()


def test_a_log_cut_off_at_any_byte_has_whole_appends_and_right_rows(crashed):
    log = wal(crashed).read_bytes()
    ends = set[int]()
    for cut in cuts(len(log)):
        with crashed_with(crashed, log[:cut]) as path:
            ends.add(checked_end(path, 1 << 50))
    assert ends == set(ENDS)


def test_a_log_with_a_wrong_byte_anywhere_ends_before_it(crashed):
    log = bytearray(wal(crashed).read_bytes())
    for at in range(0, len(log), STRIDE_BYTES):
        log[at] ^= 0xFF
        with crashed_with(crashed, log) as path:
            assert checked_end(path, 1 << 50) in ENDS
        log[at] ^= 0xFF


@pytest.mark.parametrize("third", [1, 2, 3])
async def test_a_client_goes_on_after_a_cut_where_the_whole_appends_end(crashed, third):
    log = wal(crashed).read_bytes()
    with crashed_with(crashed, log[: len(log) * third // 3 - 1]) as path:
        async with opened_log(path) as again:
            (end,) = await again.ends(TOPIC)
            assert end in ENDS
            await again.append(TOPIC, 0, [value("goes on")])
            assert texts(await held(again, TOPIC)) == [*WANTED[:end], "goes on"]


async def test_a_batch_is_one_row_and_a_trim_inside_it_keeps_the_row(tmp_path):
    path = tmp_path / "log.db"
    async with opened_log(path) as log:
        await log.append(TOPIC, 0, [value(number) for number in range(900)])
        await log.trim(TOPIC, 0, 450)
        assert rows(path, "SELECT count(*) FROM chunks") == [(1,)]
        assert texts(await held(log, TOPIC)) == [str(number) for number in range(450, 900)]
