"""Which bundles there are at a window's end, from the channel's transitions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.lake import Window


def last_known(transitions: DataFrame, window: Window) -> DataFrame:
    """`bundle`, and whether it was `there` at the window's end; a bundle that was split, merged or deleted is not."""
    rows = Window(None, window.end).cut(transitions, "appended_at").groupBy("partition", "bundle")
    last = rows.agg(f.max(f.struct("offset", "ordinal", f.col("state").isNotNull().alias("there"))).alias("last"))
    return last.select("bundle", f.col("last.there").alias("there"))


def there(rows: DataFrame, transitions: DataFrame, window: Window) -> DataFrame:
    """The rows whose `bundle` exists at the window's end: without bundles that were split, merged or deleted.

    Bundles without any record in the channel stay.
    """
    gone = last_known(transitions, window).where(~f.col("there")).select("bundle")
    return rows.join(f.broadcast(gone), "bundle", "left_anti")
