"""Which load costs how much CPU on which kind of broker: a regression over broker minutes, for each kind.

    cores used = base + a · messages in + b · messages out + c · bytes in + d · bytes out + e · bundles,  all ≥ 0

SQL computes only the sums of the normal equations; one small problem per kind remains. Loads that always go together
(bytes in proportion to messages) can't be told apart: the sum of their costs is right then, its division is not, and
`alone` shows that. Minutes depend on those before, so true errors are larger. Minutes without a known CPU are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import CPU, MEMORY, MINUTE_S, declared, known, sound, used
from loadmanager.history.analyses.regression import Sums, fit
from loadmanager.history.lake import Window

TERMS: dict[str, str] = {
    "base": "cores",
    "messages in": "cores per 1000 messages/s",
    "messages out": "cores per 1000 messages/s",
    "bytes in": "cores per MiB/s",
    "bytes out": "cores per MiB/s",
    "bundles": "cores per bundle",
}
"""The terms of the regression, and the unit of each coefficient."""
FIGURES = ("coefficient", "standard_error", "alone", "r2", "deviation_cores")
ANSWER = StructType(
    [
        *(StructField(name, StringType()) for name in ("kind", "term", "unit")),
        *(StructField(name, DoubleType()) for name in FIGURES),
        *(StructField(name, LongType()) for name in ("minutes", "brokers")),
    ]
)
PAIRS = tuple(itertools.combinations_with_replacement(range(len(TERMS)), 2))


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per kind of broker (its cores and GiB of memory) and term.

    `coefficient` in `unit`; its `standard_error`, with coefficients that are 0 held there (null where it is 0 itself);
    `alone`, the part of the term's variance that no other term explains (null where it does not vary). Of the kind:
    `r2`, `deviation_cores` of the residuals, `minutes` and `brokers` in which it was seen. A minute's weight is the
    part of it that is covered.
    """
    rows = window.cut(tables("broker_minute"), "minute").where((f.col("covered_s") > 0) & known("cpu_percent"))
    terms = (
        f.lit(1.0),
        sound("in_rate_msg_s") / 1000,
        sound("out_rate_msg_s") / 1000,
        sound("in_rate_bytes_s") / 2**20,
        sound("out_rate_bytes_s") / 2**20,
        sound("bundles"),
    )
    memory = f.coalesce(declared(MEMORY) / 2**30, f.lit(0.0))
    rows = rows.select(
        "broker",
        f.round(declared(CPU), 2).alias("cores"),
        f.round(memory).cast("long").alias("memory_gib"),
        (f.col("covered_s") / MINUTE_S).alias("w"),
        used(CPU).alias("y"),
        *(term.alias(f"x{number}") for number, term in enumerate(terms)),
    )
    w, y = f.col("w"), f.col("y")
    x = [f.col(f"x{number}") for number in range(len(TERMS))]
    # group by broker first: counts brokers exactly, not by an estimate
    brokers = rows.groupBy("cores", "memory_gib", "broker").agg(
        *(f.sum(w * x[i] * x[j]).alias(f"g{i}_{j}") for i, j in PAIRS),
        *(f.sum(w * x[i] * y).alias(f"c{i}") for i in range(len(TERMS))),
        f.sum(w * y * y).alias("squares"),
        f.sum(w * y).alias("total"),
        f.sum(w).alias("weight"),
        f.count("*").alias("minutes"),
    )
    added = [name for name in brokers.columns if name not in ("cores", "memory_gib", "broker")]
    kinds = brokers.groupBy("cores", "memory_gib")
    sums = kinds.agg(*(f.sum(name).alias(name) for name in added), f.count("*").alias("brokers"))
    return sums.mapInArrow(_solved, ANSWER)


def _solved(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        rows = [row for kind in batch.to_pylist() for row in costs_of(kind)]
        yield pa.RecordBatch.from_pylist(rows, schema=ARROW)


def costs_of(kind: dict[str, float]) -> list[dict[str, object]]:
    """The answer's rows for one kind, from its sums."""
    gram = np.zeros((len(TERMS), len(TERMS)))
    for i, j in PAIRS:
        gram[i, j] = gram[j, i] = kind[f"g{i}_{j}"]
    cross = np.array([kind[f"c{i}"] for i in range(len(TERMS))])
    found = fit(Sums(gram, cross, kind["squares"], kind["total"], kind["weight"]))
    name = f"{kind['cores']:g} cores" + (f", {kind['memory_gib']} GiB" if kind["memory_gib"] else "")
    return [
        {
            "kind": name,
            "term": term,
            "unit": unit,
            "coefficient": float(found.coefficients[number]),
            "standard_error": _known(found.errors[number]),
            "alone": _known(found.alone[number]),
            "r2": _known(found.r2),
            "deviation_cores": _known(found.deviation),
            "minutes": kind["minutes"],
            "brokers": kind["brokers"],
        }
        for number, (term, unit) in enumerate(TERMS.items())
    ]


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


ARROW = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "term", "unit")),
        *((name, pa.float64()) for name in FIGURES),
        *((name, pa.int64()) for name in ("minutes", "brokers")),
    ]
)

ANALYSIS = Analysis("capacity", "Capacity model", ("broker_minute",), run, ("kind", "term"))
