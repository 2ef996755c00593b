"""Altair and vl-convert, imported when a picture is drawn: they take long, and come with an extra only."""

from __future__ import annotations

import importlib
from typing import Any

from loadmanager.errors import Invalid


def altair(extra: str) -> Any:
    """Altair, for pictures of any number of rows. Raises Invalid where `extra` was not installed."""
    try:
        importlib.import_module("vl_convert")
        library = importlib.import_module("altair")
    except ImportError:
        raise Invalid(f"drawing needs the extra `{extra}`: pip install 'loadmanager[{extra}]'") from None
    library.data_transformers.disable_max_rows()
    return library
