"""Columns that several analyses share: sound figures, what brokers use, and their usage.

The formulas are those of `loadmanager.model.load` in SQL: usage is weight · used / capacity; CPU always counts,
another resource counts where a broker declares a capacity for it. Resources are numbered as in RESOURCES.
"""

from __future__ import annotations

from math import inf

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.model.load import CAPACITIES, RESOURCES, Weights

NUMBERS = range(len(RESOURCES))
CPU, MEMORY, BYTES_IN, BYTES_OUT, MESSAGES = NUMBERS
HOUR_S = 3600


def sound(name: str | Column) -> Column:
    """A figure; 0 for values that make no sense: null, negative, infinite, not a number (as `credible`)."""
    value = f.col(name) if isinstance(name, str) else name
    return f.when((value >= 0) & (value < inf), value).otherwise(0.0)


def over(part: Column, whole: Column) -> Column:
    """`part / whole`, null where the whole is 0 or null."""
    return f.when(whole > 0, f.try_divide(part, whole))


def seconds_between(begin: Column, end: Column) -> Column:
    """Seconds between two timestamps, exact to the microsecond; 0 where the log's clock ran back, null where one is
    null."""
    apart = (f.unix_micros(end) - f.unix_micros(begin)) / f.lit(1e6)
    return f.when(apart < 0, 0.0).otherwise(apart)


def begin_of(number: Column, length_s: int) -> Column:
    """The inverse: when that hour, day, … began."""
    return f.timestamp_seconds(number * f.lit(length_s))


def declared(number: int) -> Column:
    """The capacity of a row's broker; null where it declares none, but one core for CPU."""
    said = f.try_element_at(f.col("capacity"), f.lit(CAPACITIES[number]))
    finite = f.when((said > 0) & (said < inf), said)
    return f.coalesce(finite, f.lit(1.0)) if number == CPU else finite


def used(number: int) -> Column:
    """What a row's broker uses of a resource, in natural units (`broker_row`)."""
    if number == CPU:
        return sound("cpu_percent") / 100 * declared(CPU)
    if number == MEMORY:
        return sound("memory_percent") / 100 * declared(MEMORY)
    if number == MESSAGES:
        return sound("in_rate_msg_s") + sound("out_rate_msg_s")
    return sound("in_rate_bytes_s" if number == BYTES_IN else "out_rate_bytes_s")


def counted(weights: Weights) -> tuple[int, ...]:
    """The resources that have a weight."""
    return tuple(number for number in NUMBERS if weights.row[number] > 0)


def with_usages(rows: DataFrame, weights: Weights) -> DataFrame:
    """Adds `used_N`, `capacity_N`, `usage_N` for each resource that has a weight, and `usage`, the largest of them.

    `usage_N` is null where the broker declares no capacity.
    """
    numbers = counted(weights)
    rows = rows.withColumns({f"capacity_{n}": declared(n) for n in numbers} | {f"used_{n}": used(n) for n in numbers})
    rows = rows.withColumns(
        {f"usage_{n}": f.lit(weights.row[n]) * f.col(f"used_{n}") / f.col(f"capacity_{n}") for n in numbers}
    )
    # two zeros: `greatest` needs two columns, and a broker with no usage counts as empty
    return rows.withColumn("usage", f.greatest(f.lit(0.0), f.lit(0.0), *(f.col(f"usage_{n}") for n in numbers)))
