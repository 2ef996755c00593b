"""Where a lake may lie. Needs no Spark."""

from __future__ import annotations

import re

from loadmanager.errors import Invalid

_REFUSED = re.compile(r"[%\\\x00-\x1f\x7f]")
"""Spark, delta-rs and DuckDB take these in different ways, and would not find each other's files."""


def check_place(path: str) -> str:
    """The path itself. Raises Invalid for one that not every engine takes literally."""
    if found := _REFUSED.search(path):
        raise Invalid(f"a lake cannot lie at {path!r}, because of {found[0]!r}: name a folder without it")
    return path
