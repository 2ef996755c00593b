"""Every move of a bundle from one holder to the next: how, why, how long nobody served, whether it came back.

Planned moves and failovers, without first assignments. Rows are few beside the load's, but not bounded.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.decisions.record import BEGUN
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.serving import PLANNED, moves, why
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.lake import Window


@shareable
def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per move that ended in the window.

    `how`: transfer, unload or failover; `why`: the stage of the decision's move (balance, drain, …), else failover,
    admin, `handed over` (by its holder), leader; `gap_s` from the record with which the old owner stops serving to the
    one with which the new owner serves; `duration_s` from the record that asked for the move; `returned`: back at a
    broker that a planned move took it from less than `rest_s` ago; `gain` as the strategy promised, null without a
    promise.
    """
    # a move within the window may return one from before it
    rows = moves(tables("transition"), Window(None, window.end))
    rows = rows.join(promises(tables("move")), ["decision", "bundle"], "left")
    planned = f.col("how").isin(*PLANNED)
    moment = f.unix_micros("served_at")
    recent = Over.partitionBy("bundle").orderBy(moment).rangeBetween(-round(options.rest_s * 1e6), Over.currentRow)
    left = f.collect_set(f.when(planned, f.col("source"))).over(recent)
    elsewhere = f.col("source") != f.col("destination")
    rows = rows.withColumns({"why": why(f.col("stage")), "left": left})
    rows = rows.withColumn("returned", planned & elsewhere & f.array_contains("left", f.col("destination")))
    return window.cut(rows, "served_at").select(
        *("bundle", "namespace", "how", "why", "decision", "actor"),
        *("source", "source_incarnation", "destination", "destination_incarnation"),
        *("began_at", "stopped_at", "served_at", "gap_s", "duration_s", "returned", "gain"),
    )


def promises(moves: DataFrame) -> DataFrame:
    """`stage` and `gain` per `decision` and `bundle`: of several moves the one that was begun, else the first."""
    first = f.struct(f.coalesce(f.col("outcome") == BEGUN, f.lit(False)), -f.col("ordinal"), -f.col("offset"))
    one = moves.groupBy("decision", "bundle").agg(f.max_by(f.struct("stage", "gain"), first).alias("one"))
    return one.select("decision", "bundle", "one.stage", "one.gain")


ANALYSIS = Analysis("transfers", "Transfers", ("transition", "move"), run, ("served_at", "bundle"))
