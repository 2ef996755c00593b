"""What decides whether the tests that take minutes are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import guarded
from tests.guarded import GUARDED, ROOT, changed, digest


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Code that is guarded under the name `it`, and has passed."""
    (tmp_path / "it").mkdir()
    file = tmp_path / "it" / "code.py"
    file.write_text('"""One."""\n\n\ndef one():\n    """Two."""\n    return 1  # three\n')
    monkeypatch.setattr(guarded, "ROOT", tmp_path)
    monkeypatch.setattr(guarded, "PASSED", tmp_path / "guarded.txt")
    monkeypatch.setattr(guarded, "GUARDED", {"it": ("it",)})
    (tmp_path / "guarded.txt").write_text(f"it {digest(('it',))}\n")
    assert changed() == set()
    return file


def test_other_comments_change_nothing(code: Path):
    code.write_text('"""Four."""\n\n\ndef one():\n    return 1\n')
    assert changed() == set()


@pytest.mark.parametrize("text", ["def one():\n    return 2\n", "def one(): ...\n", ""])
def test_other_code_changes_it(code: Path, text: str):
    code.write_text(text)
    assert changed() == {"it"}


def test_a_file_more_a_file_less_and_another_name_change_it(code: Path):
    (code.parent / "more.txt").write_text("")
    assert changed() == {"it"}
    (code.parent / "more.txt").unlink()
    assert changed() == set()
    code.rename(code.parent / "other.py")
    assert changed() == {"it"}


def test_what_never_passed_is_changed(code: Path):
    guarded.PASSED.write_text("")
    assert changed() == {"it"}


def test_each_name_has_its_code_and_its_tests():
    used = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r'guards\("(\w+)"\)', file.read_text())
    }
    assert used == set(GUARDED)
    assert [path for paths in GUARDED.values() for path in paths if not (ROOT / path).exists()] == []
