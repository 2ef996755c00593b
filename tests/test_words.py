"""One word for one thing: replaced words do not come back as names. `docs/glossary.md` has those that hold."""

from __future__ import annotations

import re
import subprocess
import tokenize
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = {
    "accusation": "suspicion",
    "chronicle": "channel history",
    "condemned": "suspected",
    "desk": "what it does: AdminWriter, WriterThread, ReplayQueue",
    "door": "endpoint, or http",
    "governor": "rebalancer",
    "mood": "behaviour",
    "office": "lease",
    "refold": "replay",
    "sitting": "batch",
    "standing": "status, evidence, or what it is",
    "station": "backend",
    "storm": "fault phase",
    "survey": "what it asks for: keys",
    "surrounding": "dependencies",
    "weather": "fault profile",
}
"""A word that was replaced, in the singular, and what to write."""

PHRASES = {
    "somebody": "the noun: a broker, a client, a person",
    "anybody": "the noun, or `anyone`",
    "whoever": "the noun",
    "anew": "again",
    "for ever": "forever, or for how long",
}
"""What a native reader stumbles over, and what to write, in all that people read of the product."""
PHRASE = re.compile(r"\b(?:[Ss]omebody|[Aa]nybody|[Ww]hoever|[Aa]new|[Ff]or ever)\b")
STORED = {"somebody at", '"somebody"', "'anew'", "kills whoever takes it"}
"""Names in records, output that scripts read, anchors."""

ANYWHERE = [word.encode() for word in RETIRED]
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words_of(name: str) -> set[str]:
    """The words of a name, in the singular."""
    return {word.lower().removesuffix("s") if len(word) > 4 else word.lower() for word in WORDS.findall(name)}


def python_files() -> list[Path]:
    said = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in said.split()]


def names_in(path: Path) -> set[str]:
    names, source = set[str](), path.read_bytes()
    if any(map(source.lower().__contains__, ANYWHERE)):  # quick: most files need no tokens
        tokens = tokenize.tokenize(BytesIO(source).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in names if not name.startswith("test_")} | {path.stem.removeprefix("test_")}


def retired_in(path: Path) -> list[str]:
    """`file: name: what to write`, for each name that has a retired word in it."""
    where = str(path.relative_to(ROOT))
    return [
        f"{where}: {name}: say {RETIRED[word]}"
        for name in sorted(names_in(path))
        for word in words_of(name) & RETIRED.keys()
    ]


def test_retired_words_do_not_come_back() -> None:
    files = python_files()
    assert len(files) > 500
    assert not [found for path in files for found in retired_in(path)]


def test_text_is_in_plain_english() -> None:
    patterns = ("statechannel/*.py", "loadmanager/*.py", "api/*.py", "docs/*.md", "docs/*.py", "*.md")
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.split() if not name.startswith(("docs/decisions/", "bench/", "tests/"))]
    assert len(files) > 500
    found: list[str] = []
    for name in files:
        text = (ROOT / name).read_text()
        for hit in PHRASE.finditer(text):
            line = text[text.rfind("\n", 0, hit.start()) + 1 :].partition("\n")[0]
            if not any(each in line for each in STORED):
                found.append(f"{name}: {line.strip()[:80]}: write {PHRASES[hit[0].lower()]}")
    assert not found


@pytest.mark.parametrize(
    ("name", "words"),
    [("RefoldDesk", {"refold", "desk"}), ("_offices", {"office"}), ("ACCUSATION_TTL_S", {"accusation", "ttl", "s"})],
)
def test_names_are_taken_apart_into_words(name: str, words: set[str]) -> None:
    assert words_of(name) == words
