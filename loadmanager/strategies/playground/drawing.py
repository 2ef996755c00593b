"""Altair and vl-convert, imported when a picture is drawn: they take long, and come with an extra only."""

from __future__ import annotations

import importlib
from typing import Any

from loadmanager.errors import needs_extra


def altair(extra: str) -> Any:
    """Altair, for pictures of any number of rows. Raises MissingExtra where `extra` was not installed."""
    with needs_extra(extra, "drawing"):
        importlib.import_module("vl_convert")
        library = importlib.import_module("altair")
    library.data_transformers.disable_max_rows()
    return library
