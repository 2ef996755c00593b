"""Imports Altair and vl-convert when a picture is drawn: the import is slow, and they come only with an extra."""

from __future__ import annotations

import importlib
from typing import Any

from loadmanager.errors import needs_extra


def altair(extra: str) -> Any:
    """Altair, for pictures of any number of rows. Raises MissingExtra if `extra` is not installed."""
    with needs_extra(extra, "drawing"):
        importlib.import_module("vl_convert")
        library = importlib.import_module("altair")
    library.data_transformers.disable_max_rows()
    return library
