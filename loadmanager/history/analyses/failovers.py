"""Brokers from which the leader revoked bundles because they were dead or stuck, and how soon others served these."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import seconds_between
from loadmanager.history.analyses.gaps import PERCENTILES
from loadmanager.history.analyses.serving import OUTSIDE, START, along, until_end, with_edges
from loadmanager.history.lake import Window
from statechannel.law.record import Action

BROKER = ("broker", "incarnation")


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per incarnation of a broker whose bundles were revoked, if the first revocation is in the window.

    `revoked_at`; the `leader` that did it; `bundles`; how many of them have an owner again (`served`) and when the last
    of these got it (`restored_at`); percentiles from revocation to service; `back_at`: when a later incarnation of that
    name first got a bundle.
    """
    rows = with_edges(until_end(tables("transition"), window))
    later = along().rowsBetween(Over.currentRow, Over.unboundedFollowing)
    # a bundle that is deleted meanwhile is not served again; a later bundle of the same name is another one
    ending = f.when(f.col("edge").isin(START, OUTSIDE), f.struct("edge", f.col("appended_at").alias("at")))
    ended = f.first(ending, ignorenulls=True).over(later)
    rows = rows.withColumn("ended", ended)
    served_at = f.when(f.col("ended.edge") == START, f.col("ended.at"))
    revoked = rows.withColumn("served_at", served_at).where(f.col("action") == str(Action.REVOKE))
    took_s = seconds_between(f.col("appended_at"), f.col("served_at"))
    revoked = revoked.select(
        f.col("holder_before").alias("broker"),
        f.col("holder_before_incarnation").alias("incarnation"),
        *("bundle", "appended_at", "served_at", "actor"),
        took_s.alias("took_s"),
    )
    deaths = revoked.groupBy(*BROKER).agg(
        f.min("appended_at").alias("revoked_at"),
        f.min_by("actor", "appended_at").alias("leader"),
        f.count_distinct("bundle").alias("bundles"),
        f.count_distinct(f.when(f.col("served_at").isNotNull(), f.col("bundle"))).alias("served"),
        f.max("served_at").alias("restored_at"),
        *(f.percentile("took_s", each / 100).alias(f"p{each}_s") for each in PERCENTILES),
        f.max("took_s").alias("max_s"),
    )
    return window.cut(deaths.join(_back(rows, deaths), list(BROKER), "left"), "revoked_at")


def _back(rows: DataFrame, deaths: DataFrame) -> DataFrame:
    """When a later incarnation of a dead broker first got a bundle."""
    starts = rows.where(f.col("holder").isNotNull()).groupBy("holder", "holder_incarnation")
    starts = starts.agg(f.min("appended_at").alias("since"))
    later = (f.col("holder") == f.col("broker")) & (f.col("holder_incarnation") > f.col("incarnation"))
    return deaths.select(*BROKER).join(starts, later).groupBy(*BROKER).agg(f.min("since").alias("back_at"))


ANALYSIS = Analysis("failovers", "Failovers", ("transition",), run, ("revoked_at", "broker", "incarnation"))
