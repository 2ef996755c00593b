"""SQL texts that Spark and DuckDB both run: how values get into them, and how Spark runs them on DataFrames.

`duck.py` gives DuckDB the few functions of Spark that it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")


def filled(text: str, **values: float | str) -> str:
    """The text without comments, with a value for each `:name`: a number, or a piece of SQL. Raises KeyError."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return _PARAMETER.sub(lambda found: str(values[found[1]]), code)


def on_spark(text: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The answer to a text that reads the inputs by these names."""
    names = "|".join(map(re.escape, inputs))
    session = next(iter(inputs.values())).sparkSession
    return session.sql(re.sub(rf"\b(FROM|JOIN) ({names})\b", r"\1 {\2}", text), None, **inputs)
