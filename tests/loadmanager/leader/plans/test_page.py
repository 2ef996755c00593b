"""docs/plans.md shows the table of plans as it is, docs/advice.md the settings that advice may change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def draw(docs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(docs / "draw_plans.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_the_page_is_drawn_from_the_table():
    checked = draw(ROOT / "docs", "--check")
    assert checked.returncode == 0, checked.stderr


def test_a_page_that_says_something_else_is_found_out(tmp_path: Path):
    for name in ("drawing.py", "draw_plans.py", "plans.md", "advice.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    page = tmp_path / "plans.md"
    page.write_text(page.read_text().replace("| proposed | `approve` |", "| proposed | `accept` |"))
    assert "is stale" in draw(tmp_path, "--check").stderr
    assert draw(tmp_path).returncode == 0
    assert page.read_text() == (ROOT / "docs" / "plans.md").read_text()
