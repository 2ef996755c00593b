"""`docs/security.md` lists the rules of `rules.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_current() -> None:
    script = [sys.executable, str(DOCS / "draw_security.py"), "--check"]
    result = subprocess.run(script, capture_output=True, text=True, timeout=240, check=False, cwd=DOCS.parent)
    assert result.returncode == 0, result.stderr
