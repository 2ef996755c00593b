"""How much moved, day by day: what balance costs in moves, returns and time without an owner."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses import transfers
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import DAY_S, begin_of, number_of, over
from loadmanager.history.analyses.serving import PLANNED
from loadmanager.history.lake import Window


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per day (UTC) with a move.

    `planned` moves and `failovers`, the number of different `bundles` in them, planned moves per moved bundle,
    `returned` and their part of the planned moves, and `gap_s` summed over all.
    """
    rows = transfers.run(tables, window, options)
    planned = f.col("how").isin(*PLANNED)
    days = rows.groupBy(number_of(f.col("served_at"), DAY_S).alias("number")).agg(
        f.count_if(planned).alias("planned"),
        f.count_if(~planned).alias("failovers"),
        f.count_distinct("bundle").alias("bundles"),
        f.count_distinct(f.when(planned, f.col("bundle"))).alias("by_plan"),
        f.count_if("returned").alias("returned"),
        f.sum("gap_s").alias("gap_s"),
    )
    return days.select(
        begin_of(f.col("number"), DAY_S).alias("day"),
        *("planned", "failovers", "bundles"),
        over(f.col("planned"), f.col("by_plan")).alias("planned_a_bundle"),
        "returned",
        over(f.col("returned"), f.col("planned")).alias("returned_part"),
        "gap_s",
    )


ANALYSIS = Analysis("churn", "Churn", ("transition", "move"), run, ("day",))
