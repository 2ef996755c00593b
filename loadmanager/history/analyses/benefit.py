"""What decisions promised, and what came of it: predicted against measured spread of the brokers' usages.

The measured effect includes everything that happened in those minutes, also load that changed by itself.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.decisions.record import BEGUN
from loadmanager.history.analyses import imbalance
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import MINUTE_S, number_of
from loadmanager.history.lake import Window

SETTLING = 1
"""Minutes after the decision's own that don't count: moves take a moment, and reports follow a change."""
ROUNDING = 1e-9
"""A predicted gain below this counts as none."""


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per decision of the window that began a move.

    `predicted_before` and `predicted_after` are the decision's spreads (max/mean - 1 of the fullest resource);
    `measured_…` the mean spreads in the `settle_s` before its minute and after the minute that follows it, null where
    those minutes are unknown. `predicted` and `measured` are by how much the spread fell, `kept` is measured /
    predicted, `gain` the sum of the moves' promised gains.
    """
    rows = window.cut(tables("decision")).where(f.col("begun") > 0)
    rows = rows.dropDuplicates(["id"]).withColumn("number", number_of(f.col("at"), MINUTE_S))
    measured = rows.join(_spreads(tables, _around(window, options), options), "number", "left")
    measured = measured.groupBy("id").agg(
        f.avg(f.when(f.col("before"), f.col("spread"))).alias("measured_before"),
        f.avg(f.when(~f.col("before"), f.col("spread"))).alias("measured_after"),
    )
    begun = tables("move").where(f.col("outcome") == BEGUN).dropDuplicates(["decision", "bundle"])
    gains = begun.groupBy(f.col("decision").alias("id"))
    found = rows.join(measured, "id").join(gains.agg(f.sum("gain").alias("gain")), "id", "left")
    predicted = f.col("spread_before") - f.col("spread_after")
    fell = f.col("measured_before") - f.col("measured_after")
    return found.select(
        *("id", "at", "strategy", "moves", "begun"),
        f.col("spread_before").alias("predicted_before"),
        f.col("spread_after").alias("predicted_after"),
        *("measured_before", "measured_after"),
        predicted.alias("predicted"),
        fell.alias("measured"),
        f.when(predicted > ROUNDING, fell / predicted).alias("kept"),
        "gain",
    )


def _around(window: Window, options: Options) -> Window:
    """The window, extended at both ends by the time over which effects are measured."""
    more = timedelta(seconds=options.settle_s + (SETTLING + 2) * MINUTE_S)
    return Window(window.begin and window.begin - more, window.end and window.end + more)


def _spreads(tables: Tables, window: Window, options: Options) -> DataFrame:
    """The spread of each minute, repeated for each decision minute that it informs: `number`, `before`, `spread`."""
    minutes = imbalance.run(tables, window, options).where(f.col("resource") == imbalance.FULLEST)
    count = max(1, round(options.settle_s / MINUTE_S))
    own = number_of(f.col("minute"), MINUTE_S)
    before = _about(own, True, range(1, count + 1))
    after = _about(own, False, range(-count - SETTLING, -SETTLING))
    rows = minutes.select((f.col("max_over_mean") - 1).alias("spread"), f.array(*before, *after).alias("about"))
    return rows.select("spread", f.inline("about"))


def _about(own: Column, before: bool, shifts: range) -> list[Column]:
    return [f.struct((own + shift).alias("number"), f.lit(before).alias("before")) for shift in shifts]


ANALYSIS = Analysis(
    "benefit", "Predicted and measured benefit", ("decision", "move", "broker_minute"), run, ("at", "id")
)
