"""More bundles for a namespace that has a bundle too large for its broker to be within tolerance.

The promise counts recorded minutes beyond tolerance in which the fullest broker had such a bundle. With no bundle
larger than tolerance · even, no broker need be beyond tolerance (see `analyses/bundle_count.sql`), so these minutes
would have gone away; all others stay as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.advising.origin import Origin, promised
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.lake import Window
from loadmanager.history.replay.ranking import mean
from loadmanager.leader.plans.advice import MOST_CUTS, STEP_FACTOR, Advice, Cut, CutBundles, Expected, Measure
from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.settings import Settings

METHOD = "right number of bundles"
TABLES = ("bundle_minute", "broker_minute", "bundle_total", "transition")
NAMESPACES = 10
HOT = 500
"""The number of hottest bundles that are examined; smaller ones are not too large."""
HOURS = 20_000
"""At most so many blocks (hours) for the interval: two years."""
MINUTE_S, HOUR_S = 60, 3600


class Namespace(msgspec.Struct, frozen=True):
    """A namespace to split: its bundles that are too large, with their size as a part of the mean broker."""

    name: str
    bundles: int
    allowed: float
    large: dict[str, float]


def advised(tables: Tables, window: Window, options: Options, settings: Settings, origin: Origin) -> list[Advice] | str:
    """Advice for one namespace each, or why there is none."""
    found = _namespaces(tables, window, options)
    if not found:
        return "no namespace has a bundle that is too large for its broker"
    minutes = _minutes(tables, window, options).persist()
    try:
        made = [_of(each, minutes, tables, window, settings, origin) for each in found]
    finally:
        minutes.unpersist()
    advice = [each for each in made if isinstance(each, Advice)]
    return advice or next(each for each in made if isinstance(each, str))


def cuts_of(namespace: Namespace, settings: Settings) -> tuple[Cut, ...]:
    """Splits of the largest bundles first, as many as the bounds of advice allow."""
    most = min(float(settings.namespace_max_bundles), namespace.bundles * STEP_FACTOR)
    room, cuts = int(most) - namespace.bundles, list[Cut]()
    for bundle, size in sorted(namespace.large.items(), key=lambda item: (-item[1], item[0]))[:MOST_CUTS]:
        parts = min(MOST_PARTS, ceil(size / namespace.allowed), room + 1)
        if parts < FEWEST_PARTS:
            break
        cuts.append(Cut(bundle, parts))
        room -= parts - 1
    return tuple(cuts)


def _namespaces(tables: Tables, window: Window, options: Options) -> list[Namespace]:
    counts = ANALYSES["bundle_count"].run(tables, window, options)
    worst = counts.where((f.col("advice") == "split") & (f.col("too_large") > 0)).orderBy(f.desc("largest"))
    rows = worst.limit(NAMESPACES).collect()
    if not rows:
        return []
    hottest = ANALYSES["hot_bundles"].run(tables, window, msgspec.structs.replace(options, top=HOT))
    sizes = hottest.select("namespace", "bundle", "size").collect()
    return [
        Namespace(row["namespace"], row["bundles"], row["allowed"], large)
        for row in rows
        if (large := {b["bundle"]: b["size"] for b in sizes if _too_large(b, row)})
    ]


def _too_large(bundle: Any, row: Any) -> bool:
    return bundle["namespace"] == row["namespace"] and bundle["size"] > row["allowed"]


def _minutes(tables: Tables, window: Window, options: Options) -> DataFrame:
    """Each minute's fullest broker, and how many seconds it was beyond tolerance."""
    rows = ANALYSES["imbalance"].run(tables, window, options).where(f.col("resource") == "fullest")
    return rows.select("minute", "broker", "above_s")


def _of(
    namespace: Namespace, minutes: DataFrame, tables: Tables, window: Window, settings: Settings, origin: Origin
) -> Advice | str:
    cuts = cuts_of(namespace, settings)
    if not cuts:
        return f"{namespace.name} has {namespace.bundles} bundles, and may not have more"
    expected = _promise(_hours(minutes, tables, window, [cut.bundle for cut in cuts]))
    if expected is None:
        return f"brokers beyond tolerance held hardly any large bundle of {namespace.name}"
    more = sum(cut.parts - 1 for cut in cuts)
    largest = max(namespace.large.values())
    reason = (
        f"{len(cuts)} bundles of {namespace.name} alone can take a broker beyond tolerance (the largest takes "
        f"{largest:.1%} of a broker, {namespace.allowed:.1%} are fine): cut them, so that {namespace.bundles} bundles "
        f"become {namespace.bundles + more}. Brokers that held them were the fullest and beyond tolerance for "
        f"{expected.before - expected.after:.1%} of the time ({expected.low:.1%} to {expected.high:.1%})."
    )
    return origin.advice(CutBundles(namespace.name, namespace.bundles, cuts), reason, expected, METHOD, TABLES)


def _hours(minutes: DataFrame, tables: Tables, window: Window, bundles: Sequence[str]) -> list[tuple[float, float]]:
    """Per hour: the part of the time beyond tolerance, and the part in which the fullest broker had one of these
    bundles."""
    held = window.cut(tables("bundle_minute"), "minute").where(f.col("bundle").isin(list(bundles)))
    held = held.select("minute", "broker").distinct().withColumn("held", f.lit(1.0))
    rows = minutes.join(held, ["minute", "broker"], "left")
    hours = rows.groupBy(f.floor(f.unix_timestamp("minute") / HOUR_S).alias("hour")).agg(
        f.avg(f.col("above_s") / MINUTE_S).alias("above"),
        f.avg(f.col("above_s") / MINUTE_S * f.coalesce("held", f.lit(0.0))).alias("caused"),
    )
    return [(row["above"], row["caused"]) for row in hours.orderBy("hour").limit(HOURS).collect()]


def _promise(hours: Sequence[tuple[float, float]]) -> Expected | None:
    gain = mean([caused for _, caused in hours])
    if gain is None or gain.low <= 0:
        return None
    return promised(Measure.ABOVE_TOLERANCE, sum(above for above, _ in hours) / len(hours), gain)
