"""How long bundles stayed in each state: where they rest, and where moves spend their time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses import ownership
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import over
from loadmanager.history.analyses.gaps import PERCENTILES
from loadmanager.history.lake import Window


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per state.

    `stays` and `bundles`, `seconds` in all and their `part`, and percentiles of the stays that have ended (`p50_s`,
    `p90_s`, `p99_s`, `max_s`). A stay that the window's begin cuts counts with the rest of its length.
    """
    rows = ownership.run(tables, window, options)
    ended = f.when(~f.col("open"), f.col("seconds"))
    states = rows.groupBy("state").agg(
        f.count("*").alias("stays"),
        f.count_distinct("bundle").alias("bundles"),
        f.sum("seconds").alias("seconds"),
        *(f.percentile(ended, each / 100).alias(f"p{each}_s") for each in PERCENTILES),
        f.max(ended).alias("max_s"),
    )
    part = over(f.col("seconds"), f.sum("seconds").over(Over.partitionBy()))
    return states.select("state", "stays", "bundles", "seconds", part.alias("part"), *states.columns[4:])


ANALYSIS = Analysis("time_in_state", "Time in each state", ("transition",), run, ("state",))
