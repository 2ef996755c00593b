"""Who led when: changes of the leader, from the records by which each took the channel's partitions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import seconds_between
from loadmanager.history.lake import Window
from statechannel.law.record import Action


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per epoch that began in the window.

    `epoch`, the `leader` with its `incarnation`, `since` (its first accepted `lead` record), how many `partitions` it
    took and `took_s` from the first to the last; `until` the next epoch began (null: it still leads) and `seconds`.
    """
    rows = tables("channel").where((f.col("action") == str(Action.LEAD)) & (f.col("verdict") == "accepted"))
    rows = Window(None, window.end).cut(rows, "appended_at")
    # an epoch is one broker's: the names that its records give don't differ
    epochs = rows.groupBy("epoch").agg(
        f.min(f.struct("appended_at", "actor", "actor_incarnation")).alias("first"),
        f.max("appended_at").alias("last"),
        f.count_distinct("partition").alias("partitions"),
    )
    since, following = f.col("first.appended_at"), Over.partitionBy().orderBy("epoch")
    terms = epochs.select(
        "epoch",
        f.col("first.actor").alias("leader"),
        f.col("first.actor_incarnation").alias("incarnation"),
        since.alias("since"),
        "partitions",
        seconds_between(since, f.col("last")).alias("took_s"),
        f.lead(since).over(following).alias("until"),
    )
    terms = terms.withColumn("seconds", seconds_between(f.col("since"), f.col("until")))
    return window.cut(terms, "since")


ANALYSIS = Analysis("leaders", "Changes of the leader", ("channel",), run, ("epoch",))
