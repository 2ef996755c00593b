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
    """The answer to a text that reads the inputs by these names.

    PySpark makes a view of each input and drops it, and with it Spark drops what `persist` keeps of the same plan. So
    the views are of other plans: each has a filter that lets all through.
    """
    session = next(iter(inputs.values())).sparkSession
    viewed = {name: rows.where("true") for name, rows in inputs.items()}
    return session.sql(
        _READ.sub(lambda found: f"{found[1]} {{{found[2]}}}" if found[2] in inputs else found[0], text), None, **viewed
    )
