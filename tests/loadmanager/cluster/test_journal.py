"""Trimming by age where the log's times neither grow nor are right: on SQLite they are those of the writers' clocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadmanager.cluster.journal import Journal
from statechannel.adapters.sqlite import log_writer
from statechannel.adapters.sqlite.log import SqliteLog

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


@pytest.mark.parametrize(
    ("ages_days", "trimmed"),
    [
        ((40, 35, 31, 29, 1), 3),
        ((1, 1, 1, 400, 400, 400), 0),  # written by a clock that was behind
        ((40, 1, 400, 400, 400, 1), 1),
        ((40, -400, 40, 1), 3),  # by one that was ahead: it goes with its neighbours
        ((-400, 1, 1), 0),
        ((40, 40, 40, -400), 3),
        ((40, 40, 40), 3),
    ],
)
async def test_nothing_young_is_trimmed_whatever_the_writers_clocks_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ages_days: Sequence[int], trimmed: int
):
    clock = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda: written_ms * 1_000_000)
    monkeypatch.setattr(log_writer, "time", clock)
    log = SqliteLog(tmp_path / "log.db")
    await log.start(60)
    journal: Journal[bytes] = Journal(
        log, "audit", lambda value: value, retention_s=lambda: 30 * DAY_MS / 1000, now_ms=lambda: None
    )
    await journal.open()
    for age in ages_days:
        written_ms = NOW_MS - age * DAY_MS
        await journal.append(b"k", b"v")
    assert await journal.trim(NOW_MS) == trimmed
    assert await journal.begin() == trimmed
    await log.close()
