"""The how-to page on batches: its example is the file, and does what the page says."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager import AutoBatch, BatchSettings
from statechannel.errors import LogUnavailable
from tests.pages import ROOT, blocks

PAGE = "docs/how-to/batching.md"


def test_the_page_shows_the_file() -> None:
    [shown] = [block for block in blocks(PAGE) if block.title]
    assert shown.text == (ROOT / shown.title).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_inserts_all_in_few_transactions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.batching", str(tmp_path / "views.db")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True).stdout
    transactions = [int(found) for found in re.findall(r"2000 views in (\d+) transactions", told)]
    assert transactions[0] == 2_000
    assert transactions[1] < 100
    with sqlite3.connect(tmp_path / "views.db") as db:
        assert db.execute("SELECT count(*) FROM view").fetchone() == (4_000,)


async def test_each_caller_gets_the_result_of_its_own_record_and_only_like_records_share_a_batch() -> None:
    batches: list[list[int]] = []

    async def write(records: list[int]) -> list[int]:
        batches.append(list(records))
        return [10 * each for each in records]

    async with AutoBatch(write, by=lambda each: each % 2) as batch:
        assert await asyncio.gather(*map(batch.send, range(6))) == [0, 10, 20, 30, 40, 50]
    assert sorted(batches) == [[0, 2, 4], [1, 3, 5]]
    assert batch.held_bytes == 0


async def test_what_the_function_raises_each_caller_gets_and_no_result_is_none() -> None:
    async def write(records: list[str]) -> None:
        if "bad" in records:
            raise ValueError("it does not take that")

    async with AutoBatch[str, None](write, BatchSettings(batch_max_delay_ms=1)) as batch:
        assert await batch.send("good") is None
        assert [
            str(each) for each in await asyncio.gather(batch.send("bad"), batch.send("x"), return_exceptions=True)
        ] == ["it does not take that"] * 2
        assert await asyncio.to_thread(batch.send_blocking, "good", 20.0) is None


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_write_that_is_cancelled_answers_its_callers_and_gives_its_bytes_back(is_begun: bool) -> None:
    """Its own doing, or that of a loop that ends."""

    async def write(records: list[str]) -> None:
        del records
        raise asyncio.CancelledError

    async with AutoBatch[str, None](write, BatchSettings(batch_max_delay_ms=1)) as batch:
        sending = asyncio.create_task(batch.send("x"))
        if not is_begun:
            async with asyncio.timeout(20):
                while not batch._tasks:
                    await asyncio.sleep(0)
            next(iter(batch._tasks)).cancel()
        with pytest.raises(LogUnavailable, match="was cancelled"):
            async with asyncio.timeout(20):
                await sending
        assert batch.held_bytes == 0
