"""How long bundles were not served in recorded moves: what a move costs in this cluster."""

from __future__ import annotations

from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.lake import ALWAYS, Lake, Window
from loadmanager.history.replay.judging import Gaps

FEWEST = 20
"""The fewest recorded moves of a kind for a mean; below that the playground's constant counts."""
_TRANSFER, _UNLOAD = "transfer", "unload"


def recorded_gaps(lake: Lake, window: Window = ALWAYS) -> Gaps:
    """Mean gaps of planned moves, from the old owner's stop to the new owner's start, by the log's clock."""
    history = Over.partitionBy("bundle").orderBy("partition", "offset", "ordinal")
    state, before, second, third = (f.lag("state", back).over(history) for back in range(4))
    at = f.coalesce("appended_at", "at")
    to_somebody = f.lag("target", 2).over(history).isNotNull()
    kind = (
        f.when((second == "releasing") & to_somebody, f.lit(_TRANSFER))
        .when((second == "unassigned") & (third == "releasing"), f.lit(_UNLOAD))
        .otherwise(f.lit(None))
    )
    begun = f.when(second == "releasing", f.lag(at, 2).over(history)).otherwise(f.lag(at, 3).over(history))
    ended = (state == "assigned") & (before == "assigning")
    rows = lake.table("transition", window).select(
        ended.alias("ended"), kind.alias("kind"), ((f.unix_micros(at) - f.unix_micros(begun)) / 1e6).alias("gap_s")
    )
    means = rows.where(f.col("ended") & f.col("kind").isNotNull()).groupBy("kind")
    found = {
        row["kind"]: float(row["gap_s"])
        for row in means.agg(f.avg(f.greatest(f.col("gap_s"), f.lit(0.0))).alias("gap_s"), f.count("*").alias("n"))
        .limit(2)
        .collect()
        if row["n"] >= FEWEST
    }
    usual = Gaps()
    if not found:
        return usual
    return Gaps(
        found.get(_TRANSFER, usual.transfer_s),
        found.get(_UNLOAD, usual.unload_s),
        " and ".join(f"recorded {kind}s" for kind in sorted(found)),
    )
