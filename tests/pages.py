"""What pages of the documentation show in fenced blocks, for the tests that run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>[\w-]+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^(?P=indent)```$', re.M | re.S
)


class Block(NamedTuple):
    """A fenced block: `title` is the file that it shows, "" if it names none."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page, which is named from the root of the repository, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(found["language"], found["title"] or "", found["text"]) for found in _BLOCK.finditer(text)]
