"""ARCHITECTURE.md names files and symbols that exist, and its walks are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
FILES_OF_A_WALK = 8
ROOTS = ("", "loadmanager", "statechannel", "api/loadmanager_api", "statechannel/law", "statechannel/runtime")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w./-]+(?:\.(?:py|md|mjs|sql|svg)|/)")


def named(line: str) -> list[str]:
    """The paths of a line, in order; a symbol after a colon is left out."""
    return [text for quoted in QUOTED.findall(line) if PATH.fullmatch(text := quoted.partition(": ")[0])]


def found(path: str, beside: Path) -> Path | None:
    """The file or folder: from the root, from a package, or beside the path named before it."""
    places = [ROOT / root / path for root in ROOTS] + [beside / path, beside.parent / path]
    return next((place for place in places if place.exists()), None)


def test_every_path_exists():
    missing: list[str] = []
    for line in PAGE.splitlines():
        beside = ROOT
        for path in named(line):
            place = found(path, beside)
            if place is None:
                missing.append(f"{path} in: {line[:80]}")
            else:
                beside = place
    assert not missing


@pytest.mark.parametrize("quoted", re.findall(r"`([\w./]+\.py: \w+)`", PAGE))
def test_every_symbol_exists(quoted: str):
    path, symbol = quoted.split(": ")
    place = found(path, ROOT)
    assert place is not None
    assert re.search(rf"^\s*(?:def|class) {symbol}\b", place.read_text(), re.MULTILINE)


def test_no_walk_is_longer_than_eight_files():
    walks = PAGE.partition("## Five walks")[2].partition("\n## ")[0]
    rows = [line for line in walks.splitlines() if " → " in line]
    assert len(rows) == 5
    assert all(len(named(row)) <= FILES_OF_A_WALK for row in rows), [len(named(row)) for row in rows]
