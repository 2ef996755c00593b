"""Pages show code as it is: a block whose title is a file of the repository is found in that file."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from loadmanager.settings import descriptions
from tests.pages import ROOT, blocks

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def quotes(page: str) -> list[tuple[str, str]]:
    return [(block.title, block.text) for block in blocks(page) if "/" in block.title]


def test_pages_quote_the_examples():
    assert sum(len(quotes(page)) for page in PAGES) >= 6


@pytest.mark.parametrize("page", [page for page in PAGES if quotes(page)])
def test_what_a_page_quotes_is_in_the_file_that_it_names(page: str):
    for title, text in quotes(page):
        code = (ROOT / title).read_text(encoding="utf-8")
        assert any(indent(text, " " * depth) in code for depth in range(0, 20, 4)), f"{page} shows {title} as it is not"


def test_the_deployment_page_names_settings_that_exist():
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    named = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert len(named) > 10
    assert not named - set(descriptions())
