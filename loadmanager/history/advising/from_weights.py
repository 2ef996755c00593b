"""The weight of messages, corrected by the capacity model where declared capacities are wrong.

    weight = cores that a message costs · messages/s declared / cores declared

With this weight, a broker's usage by messages equals its cores' usage by them. With another weight the balancer evens
out the wrong thing, or nothing. The promise compares the spread that the balancer reached by the present weights with
the spread that brokers had by the advised weights in the same hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec
from pyspark.sql import functions as f

from loadmanager.history.advising.origin import Origin, promised
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.lake import Window
from loadmanager.history.replay.ranking import mean
from loadmanager.leader.plans.advice import (
    FROM_ZERO,
    STEP_FACTOR,
    Advice,
    ChangeSettings,
    Expected,
    Measure,
    SettingChange,
    step_towards,
)
from loadmanager.model.load import Weights
from loadmanager.settings import Settings

METHOD = "capacity model"
TABLES = ("broker_minute",)
NAME = "weight_message_rate"
BEST_KINDS = 20
EXPLAINED = 0.5
"""Below this R² the model says nothing."""
DEVIATIONS = 1.96
WORTH = 1.2
"""A present weight within this factor of the right one needs no change."""
DIGITS = 3
HOURS = 20_000
HOUR_S = 3600
PER_MESSAGES = 1000.0


class Kind(msgspec.Struct, frozen=True):
    """A kind of broker: what it declares, what a message costs (cores · s) with its error, and the model's R²."""

    cores: float
    declared_msg_s: float
    cost: float
    error: float
    r2: float
    minutes: int


class Weight(msgspec.Struct, frozen=True):
    """The right weight and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def advised(tables: Tables, window: Window, options: Options, settings: Settings, origin: Origin) -> Advice | str:
    """Advice, or why there is none."""
    right = weight_of(_kinds(tables, window, options))
    present = settings.weight_message_rate
    if right is None:
        return "brokers declare no capacity for messages, or these don't explain their work"
    if right.low <= present * WORTH and right.high >= present / WORTH:
        return f"{NAME} is {present:g}, which is right: between {right.low:.3g} and {right.high:.3g}"
    to = round(step_towards(NAME, present, right.value, STEP_FACTOR), DIGITS)
    if to == present or to <= 0 or (present <= 0 and NAME not in FROM_ZERO):
        return f"{NAME} should be {right.value:.3g}, and no single step leads there from {present:g}"
    expected = _promise(tables, window, options, to)
    if expected is None:
        return f"{NAME} should be {right.value:.3g}, but the present value hardly made brokers uneven"
    reason = (
        f"The cost of messages says that {NAME} should be {right.value:.3g} ({right.low:.3g} to {right.high:.3g}), not "
        f"{present:g}: at {to:g} brokers had a spread of {expected.before:.1%}, where balance by the present weights "
        f"reached {expected.after:.1%} (better by {expected.low:.1%} to {expected.high:.1%})."
    )
    return origin.advice(ChangeSettings((SettingChange(NAME, present, to),)), reason, expected, METHOD, TABLES)


def weight_of(kinds: Sequence[Kind]) -> Weight | None:
    """The mean over all kinds, weighted by minutes seen; None where no kind is explained well enough."""
    known = [kind for kind in kinds if kind.r2 >= EXPLAINED and kind.declared_msg_s > 0 < kind.cores and kind.cost > 0]
    total = sum(kind.minutes for kind in known)
    if not total:
        return None
    shares = [(kind.minutes / total, kind.declared_msg_s / kind.cores, kind) for kind in known]
    value = sum(share * factor * kind.cost for share, factor, kind in shares)
    apart = DEVIATIONS * sqrt(sum((share * factor * kind.error) ** 2 for share, factor, kind in shares))
    return Weight(value, value - apart, value + apart)


def _kinds(tables: Tables, window: Window, options: Options) -> list[Kind]:
    model = ANALYSES["capacity"].run(tables, window, options).where(f.col("term").startswith("messages"))
    found = model.groupBy("kind").agg(
        f.max(f.when(f.col("term") == "messages in", f.struct("coefficient", "standard_error"))).alias("into"),
        f.max(f.when(f.col("term") == "messages out", f.struct("coefficient", "standard_error"))).alias("out"),
        f.max("r2").alias("r2"),
        f.max("minutes").alias("minutes"),
    )
    costs = {row["kind"]: row for row in found.limit(BEST_KINDS).collect()}
    rows = window.cut(tables("broker_minute"), "minute").where(f.col("capacity").isNotNull())
    cores = f.coalesce(f.col("capacity")["cpu"], f.lit(1.0))
    memory = f.coalesce(f.col("capacity")["memory_bytes"] / 2**30, f.lit(0.0))
    declared = rows.groupBy(f.round(cores, 2).alias("cores"), f.round(memory).cast("long").alias("gib")).agg(
        f.avg(f.coalesce(f.col("capacity")["rate_msg_s"], f.lit(0.0))).alias("declared"),
        f.sum("in_rate_msg_s").alias("into"),
        f.sum("out_rate_msg_s").alias("out"),
    )
    kinds: list[Kind] = []
    for row in declared.limit(BEST_KINDS).collect():
        name = f"{row['cores']:g} cores" + (f", {row['gib']} GiB" if row["gib"] else "")
        cost, messages = costs.get(name), (row["into"] or 0.0) + (row["out"] or 0.0)
        if cost is None or messages <= 0:
            continue
        parts = ((cost["into"], (row["into"] or 0.0) / messages), (cost["out"], (row["out"] or 0.0) / messages))
        value = sum(each["coefficient"] * part for each, part in parts) / PER_MESSAGES
        error = sqrt(sum(((each["standard_error"] or 0.0) * part) ** 2 for each, part in parts)) / PER_MESSAGES
        kinds.append(Kind(row["cores"], row["declared"], value, error, cost["r2"] or 0.0, cost["minutes"]))
    return kinds


def _promise(tables: Tables, window: Window, options: Options, to: float) -> Expected | None:
    present = options.weights
    other = Weights(present.cpu, present.memory, present.bandwidth, to)
    by_hour = [_hours(tables, window, msgspec.structs.replace(options, weights=each)) for each in (present, other)]
    hours = sorted(by_hour[0].keys() & by_hour[1].keys())
    gain = mean([by_hour[1][hour] - by_hour[0][hour] for hour in hours])
    if gain is None or gain.low <= 0:
        return None
    return promised(Measure.SPREAD, sum(by_hour[1][hour] for hour in hours) / len(hours), gain)


def _hours(tables: Tables, window: Window, options: Options) -> dict[int, float]:
    rows = ANALYSES["imbalance"].run(tables, window, options).where(f.col("resource") == "fullest")
    hours = rows.groupBy(f.floor(f.unix_timestamp("minute") / HOUR_S).alias("hour"))
    found = hours.agg(f.avg(f.greatest(f.lit(0.0), f.col("max_over_mean") - 1)).alias("spread"))
    return {row["hour"]: row["spread"] for row in found.orderBy("hour").limit(HOURS).collect()}
