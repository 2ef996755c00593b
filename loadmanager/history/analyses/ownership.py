"""Who held each bundle when, and in which state it was: the channel's transitions as a timeline."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import seconds_between
from loadmanager.history.analyses.serving import along, until_end
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.lake import Window


@shareable
def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per time that a bundle was in one state at one holder, cut to the window.

    `state`, `holder`, `incarnation`, `target`, from `since` to `until` (the log's times), `seconds`; `open` where
    nothing followed. An open row ends with the window, or without a window's end with the last known record; its length
    is 0 where that lies before the window.
    """
    rows = until_end(tables("transition"), window)
    rows = rows.withColumn("until", f.lead("appended_at").over(along())).where(f.col("state").isNotNull())
    if window.end is not None:
        rows = rows.withColumn("end", f.lit(window.end))
    else:
        rows = rows.crossJoin(f.broadcast(tables("transition").agg(f.max("appended_at").alias("end"))))
    opened = f.col("until").isNull()
    since, until = f.col("appended_at"), f.coalesce("until", "end")
    if window.begin is not None:
        since = f.greatest(since, f.lit(window.begin))
        rows = rows.where(opened | (until > f.lit(window.begin)))
    until = f.greatest(since, until)
    return rows.select(
        *("bundle", "namespace", "state", "holder"),
        f.col("holder_incarnation").alias("incarnation"),
        "target",
        since.alias("since"),
        until.alias("until"),
        seconds_between(since, until).alias("seconds"),
        opened.alias("open"),
    )


ANALYSIS = Analysis("ownership", "Ownership timeline", ("transition",), run, ("bundle", "since", "until", "open"))
