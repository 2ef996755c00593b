"""`docs/settings.md` says what `loadmanager/settings/` says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from loadmanager.settings import descriptions
from loadmanager.settings.removed import PULSARS, REMOVED

DOCS = Path(__file__).parents[3] / "docs"


def check(docs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(docs / "draw_settings.py"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, timeout=240, check=False, cwd=DOCS.parent)


def test_the_page_is_current() -> None:
    result = check(DOCS, "--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_page_is_noticed_and_drawn_anew(tmp_path: Path) -> None:
    for name in ("drawing.py", "draw_settings.py", "settings.md"):
        shutil.copy(DOCS / name, tmp_path / name)
    page = tmp_path / "settings.md"
    current = page.read_text(encoding="utf-8")
    page.write_text(current.replace("`balancing_budget`", "`balancing_purse`", 1), encoding="utf-8")
    stale = check(tmp_path, "--check")
    assert stale.returncode == 1
    assert "draw_settings.py" in stale.stderr
    assert check(tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8") == current


def test_the_page_names_every_setting_and_every_name_of_pulsars() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    for setting in descriptions().values():
        assert f"| `{setting.name}` |" in page
        assert all(f"`{name}`" in page for name in setting.pulsar)
    for name in (*REMOVED, *PULSARS):
        assert f"| `{name}` |" in page
