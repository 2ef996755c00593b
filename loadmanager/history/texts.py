"""SQL texts that Spark and DuckDB both run: how values get into them, and how Spark runs them on DataFrames.

`duck.py` gives DuckDB the few functions of Spark that it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READ = re.compile(r"\b(FROM|JOIN) (\w+)\b")
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")


def filled(text: str, **values: float | str) -> str:
    """The text without comments, with a value for each `:name`: a number, or a piece of SQL. Raises KeyError."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return _PARAMETER.sub(lambda found: str(values[found[1]]), code)


def on_spark(text: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The answer to a text that reads the inputs by these names."""
    session = next(iter(inputs.values())).sparkSession
    return session.sql(
        _READ.sub(lambda found: f"{found[1]} {{{found[2]}}}" if found[2] in inputs else found[0], text), None, **inputs
    )
