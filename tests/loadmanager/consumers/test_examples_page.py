"""docs/group-examples.md shows what the code divides, and that is what the reports have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_page_is_drawn_by_the_code() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "draw_group_examples.py"), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    "row",
    [
        "C0: Q1 Q4 Q7; C1: Q2 Q5 Q8; C2: Q3 Q6",
        "C0: Q1 Q4 Q5 Q7; C2: Q2 Q3 Q6 Q8",
        "1: 0 1 2 3 4 5; 2: 6 7 8 9 10; 3: 11 12 13 14 15",
        "1: 0 1 2 3 4 5 6 7; 2: 8 9 10 11 12 13 14 15",
        "1: 0; 2: -",
        "1: 0; 2: 1; 3: -",
    ],
)
def test_the_page_has_what_the_reports_have(row: str) -> None:
    assert f"| {row} |" in (ROOT / "docs" / "group-examples.md").read_text()
