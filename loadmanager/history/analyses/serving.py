"""When bundles began and stopped being served, from the channel's transitions; and the moves that follow from it.

A bundle counts as served in SERVING_STATES without Assigning: there the holder serves only once it has acquired, which
its `return` record tells. Times are the log's (`appended_at`), order is that of the offsets: writers' clocks are not
used. A split or merge makes and ends bundles that are being served: it is neither a stop nor a start.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.figures import seconds_between
from loadmanager.history.lake import Window
from statechannel.law.record import Action, Role
from statechannel.law.transitions import SERVING_STATES, State

SERVED = tuple(sorted(SERVING_STATES - {State.ASSIGNING}))
START, STOP, OUTSIDE = "start", "stop", "outside"
"""OUTSIDE: the bundle was made or is gone."""
BEGINNINGS = {Action.TRANSFER: "transfer", Action.UNLOAD: "unload", Action.REVOKE: "failover"}
"""How a bundle leaves its holder, by the action that begins it."""
PLANNED = ("transfer", "unload")
ORDER = ("offset", "ordinal")


def until_end(transitions: DataFrame, window: Window) -> DataFrame:
    """The transitions before the window's end; those before its begin say what held when it began."""
    return Window(None, window.end).cut(transitions, "appended_at")


def last_known(transitions: DataFrame, window: Window) -> DataFrame:
    """`bundle`, and whether it was `there` at the window's end; a bundle that was split, merged or deleted is not."""
    rows = until_end(transitions, window).groupBy("partition", "bundle")
    last = rows.agg(f.max(f.struct(*ORDER, f.col("state").isNotNull().alias("there"))).alias("last"))
    return last.select("bundle", f.col("last.there").alias("there"))


def there(rows: DataFrame, transitions: DataFrame, window: Window) -> DataFrame:
    """The rows whose `bundle` exists at the window's end: without bundles that were split, merged or deleted.

    Bundles without any record in the channel stay.
    """
    gone = last_known(transitions, window).where(~f.col("there")).select("bundle")
    return rows.join(f.broadcast(gone), "bundle", "left_anti")


def along() -> WindowSpec:
    """Each bundle's records in the order of the log."""
    return Over.partitionBy("partition", "bundle").orderBy(*ORDER)


def with_edges(transitions: DataFrame) -> DataFrame:
    """Adds `edge` (START, STOP, OUTSIDE or null) and `begun`, the last record that asked the bundle to leave its
    holder."""
    was, now = f.col("state_before"), f.col("state")
    served_before, served = f.coalesce(was.isin(*SERVED), f.lit(False)), f.coalesce(now.isin(*SERVED), f.lit(False))
    edge = (
        f.when(was.isNull() | now.isNull(), OUTSIDE)
        .when(served_before & ~served, STOP)
        .when(~served_before & served, START)
    )
    asked = f.col("action").isin(*(str(action) for action in BEGINNINGS))
    begun = f.when(asked, f.struct("action", "role", "actor", "cause", f.col("appended_at").alias("at")))
    so_far = along().rowsBetween(Over.unboundedPreceding, Over.currentRow)
    return transitions.withColumns({"edge": edge, "begun": f.last(begun, ignorenulls=True).over(so_far)})


def gaps(transitions: DataFrame) -> DataFrame:
    """One row for each time in which a bundle was not served: from a stop to the next start.

    `ended_at` and `destination` are null while it lasts, or where the bundle was deleted (`deleted`).
    """
    edges = with_edges(transitions).where(f.col("edge").isNotNull())
    here = along()
    following = f.lead(f.struct("edge", "appended_at", "holder", "holder_incarnation", "state")).over(here)
    rows = edges.withColumn("next", following).where(f.col("edge") == STOP)
    began_again = f.col("next.edge") == START
    how = f.create_map(*(f.lit(text) for pair in BEGINNINGS.items() for text in pair))[f.col("begun.action")]
    cause = f.col("begun.cause")
    return rows.select(
        "bundle",
        "namespace",
        how.alias("how"),
        f.when(cause != "", cause).alias("decision"),
        f.col("begun.role").alias("role"),
        f.col("begun.actor").alias("actor"),
        f.col("holder_before").alias("source"),
        f.col("holder_before_incarnation").alias("source_incarnation"),
        f.when(began_again, f.col("next.holder")).alias("destination"),
        f.when(began_again, f.col("next.holder_incarnation")).alias("destination_incarnation"),
        f.col("begun.at").alias("began_at"),
        f.col("appended_at").alias("stopped_at"),
        f.when(began_again, f.col("next.appended_at")).alias("served_at"),
        f.when(f.col("next.edge") == OUTSIDE, f.col("next.appended_at")).alias("deleted_at"),
    )


def moves(transitions: DataFrame, window: Window) -> DataFrame:
    """The gaps that ended with a new serving record within the window.

    With `gap_s` (stop to start) and `duration_s` (asked to start).
    """
    rows = window.cut(gaps(until_end(transitions, window)).where(f.col("served_at").isNotNull()), "served_at")
    return rows.drop("deleted_at").withColumns(
        {
            "gap_s": seconds_between(f.col("stopped_at"), f.col("served_at")),
            "duration_s": seconds_between(f.col("began_at"), f.col("served_at")),
        }
    )


def why(stage: Column) -> Column:
    """Why a gap happened: the stage of the decision's move, else who asked for it."""
    role = f.col("role")
    return (
        f.when(f.col("how") == "failover", "failover")
        .when(stage.isNotNull(), stage)
        .when(role == str(Role.ADMIN), "admin")
        .when(role == str(Role.BROKER), "handed over")
        .otherwise("leader")
    )
