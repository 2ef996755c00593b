"""How long nobody served a bundle in a move, by how and why it moved: exact percentiles."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses import transfers
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.lake import Window

PERCENTILES = (50, 90, 99)


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per `how` and `why`.

    `moves`, `bundles`, `returned`, the gap's `p50_s`, `p90_s`, `p99_s` (linear between neighbouring values), `max_s`
    and `sum_s`, and `duration_p50_s` of the whole move.
    """
    rows = transfers.run(tables, window, options)
    return rows.groupBy("how", "why").agg(
        f.count("*").alias("moves"),
        f.count_distinct("bundle").alias("bundles"),
        f.count_if("returned").alias("returned"),
        *(f.percentile("gap_s", each / 100).alias(f"p{each}_s") for each in PERCENTILES),
        f.max("gap_s").alias("max_s"),
        f.sum("gap_s").alias("sum_s"),
        f.percentile("duration_s", 0.5).alias("duration_p50_s"),
    )


ANALYSIS = Analysis("gaps", "Gaps of transfers", ("transition", "move"), run, ("how", "why"))
