"""`docs/state-machine.md` says what `transitions.py` says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from statechannel.law.record import Action
from statechannel.law.transitions import TABLE, State

DOCS = Path(__file__).parents[2] / "docs"


def check(docs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(docs / "draw_state_machine.py"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, timeout=240, check=False, cwd=DOCS.parent)


def test_the_page_is_current():
    result = check(DOCS, "--check")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def copy_of_docs(tmp_path: Path) -> Path:
    for name in ("drawing.py", "draw_state_machine.py", "state-machine.md"):
        shutil.copy(DOCS / name, tmp_path / name)
    return tmp_path


def test_a_stale_page_is_noticed_and_drawn_anew(copy_of_docs: Path):
    page = copy_of_docs / "state-machine.md"
    current = page.read_text(encoding="utf-8")
    page.write_text(current.replace("revoking --> assigning: release (leader)", "", 1), encoding="utf-8")
    stale = check(copy_of_docs, "--check")
    assert stale.returncode == 1
    assert "draw_state_machine.py" in stale.stderr
    assert check(copy_of_docs).returncode == 0
    assert page.read_text(encoding="utf-8") == current


def test_a_page_that_lost_its_markers_is_refused(copy_of_docs: Path):
    page = copy_of_docs / "state-machine.md"
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- end: steps -->", ""), encoding="utf-8")
    assert "end: steps" in check(copy_of_docs).stderr


def test_the_page_names_every_state_and_every_action():
    page = (DOCS / "state-machine.md").read_text(encoding="utf-8")
    assert all(f"| {state} |" in page for state in State)
    assert all(f"`{action}`" in page for action in Action)
    assert all(f"{row.state} --> {row.next}: {row.action}" in page for row in TABLE)
