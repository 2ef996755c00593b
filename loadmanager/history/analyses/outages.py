"""When a bundle had no serving owner, and why; includes outages that still last, but no first assignments."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import seconds_between
from loadmanager.history.analyses.serving import gaps, until_end
from loadmanager.history.lake import Window


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per time without a serving owner that touches the window.

    `how` it began, who served before (`source`) and after (`destination`), `began_at`, `ended_at` (null while it lasts;
    the time of deletion where the bundle was deleted), `seconds` (null while it lasts).
    """
    rows = gaps(until_end(tables("transition"), window))
    rows = rows.withColumn("ended_at", f.coalesce("served_at", "deleted_at"))
    if window.begin is not None:
        rows = rows.where(f.col("ended_at").isNull() | (f.col("ended_at") > f.lit(window.begin)))
    return rows.select(
        *("bundle", "namespace", "how", "decision", "actor"),
        *("source", "source_incarnation", "destination", "destination_incarnation"),
        f.col("stopped_at").alias("began_at"),
        "ended_at",
        seconds_between(f.col("stopped_at"), f.col("ended_at")).alias("seconds"),
    )


ANALYSIS = Analysis("outages", "Outages of bundles", ("transition",), run, ("began_at", "bundle"))
