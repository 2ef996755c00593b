"""docs/pip-192.md shows scenarios and settings as they are."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.pages import ROOT


def test_the_page_is_drawn_from_the_scenarios_and_the_settings() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "draw_pip_192.py"), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
