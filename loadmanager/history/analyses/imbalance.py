"""How uneven the brokers were, minute by minute, in each resource and in the fullest one.

It says how far from even, not why; `benefit.py` compares it with decisions. Minutes without any report are missing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import MINUTE_S, counted, over, with_usages
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.lake import Window
from loadmanager.model.load import RESOURCES
from loadmanager.strategies.playground.bounds import IDLE

FULLEST = "fullest"
"""The pseudo resource for a broker's usage: the largest of its resources."""


@shareable
def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per minute and resource.

    `brokers` (how many took part, as the mean over the minute), `mean`, `std` and `max` of their usages, weighted by
    the time that each took part; `max_over_mean` (1 where all are idle); `broker`, the fullest; `even`, the usage if
    all load were spread by capacity; `allowed` = max(IDLE, (1 + tolerance) · even); `above_s`, how long the fullest was
    beyond it.
    """
    numbers = counted(options.weights)
    rows = window.cut(tables("broker_minute"), "minute").where(f.col("covered_s") > 0)
    rows = with_usages(rows, options.weights)
    wholes = [each for n in numbers for each in _sums(f"usage_{n}", str(n))]
    loads = [each for n in numbers for each in _loads(n)]
    minutes = rows.groupBy("minute").agg(*wholes, *_sums("usage", FULLEST), *loads)
    evens = {n: f.lit(options.weights.row[n]) * over(f.col(f"load_{n}"), f.col(f"room_{n}")) for n in numbers}
    highest = f.greatest(f.lit(0.0), f.lit(0.0), *evens.values())
    kinds = [_row(RESOURCES[n], str(n), evens[n], options.tolerance) for n in numbers]
    kinds.append(_row(FULLEST, FULLEST, highest, options.tolerance))
    return minutes.select("minute", f.inline(f.array(*kinds))).where(f.col("brokers") > 0)


def _sums(usage: str, tag: str) -> list[Column]:
    value, weight = f.col(usage), f.when(f.col(usage).isNotNull(), f.col("covered_s"))
    return [
        f.sum(weight).alias(f"time_{tag}"),
        f.sum(weight * value).alias(f"sum_{tag}"),
        f.sum(weight * value * value).alias(f"squares_{tag}"),
        f.max(f.when(value.isNotNull(), f.struct(value.alias("usage"), "covered_s", "broker"))).alias(f"top_{tag}"),
    ]


def _loads(number: int) -> list[Column]:
    known = f.col(f"capacity_{number}").isNotNull()
    return [
        f.sum(f.when(known, f.col("covered_s") * f.col(f"used_{number}"))).alias(f"load_{number}"),
        f.sum(f.when(known, f.col("covered_s") * f.col(f"capacity_{number}"))).alias(f"room_{number}"),
    ]


def _row(name: str, tag: str, even: Column, tolerance: float) -> Column:
    time, top = f.col(f"time_{tag}"), f.col(f"top_{tag}")
    mean = over(f.col(f"sum_{tag}"), time)
    variance = f.greatest(f.lit(0.0), over(f.col(f"squares_{tag}"), time) - mean * mean)
    allowed = f.greatest(f.lit(IDLE), f.lit(1 + tolerance) * even)
    return f.struct(
        f.lit(name).alias("resource"),
        (time / MINUTE_S).alias("brokers"),
        mean.alias("mean"),
        f.sqrt(variance).alias("std"),
        top["usage"].alias("max"),
        f.coalesce(over(top["usage"], mean), f.lit(1.0)).alias("max_over_mean"),
        top["broker"].alias("broker"),
        even.alias("even"),
        allowed.alias("allowed"),
        f.when(top["usage"] > allowed, top["covered_s"]).otherwise(0.0).alias("above_s"),
    )


ANALYSIS = Analysis("imbalance", "Imbalance over time", ("broker_minute",), run, ("minute", "resource"))
