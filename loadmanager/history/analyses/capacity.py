"""Which load costs how much CPU on which kind of broker: a regression over broker minutes, for each kind.

    cores used = base + a · messages in + b · messages out + c · bytes in + d · bytes out + e · bundles,  all ≥ 0

SQL computes only the sums of the normal equations (`capacity_sums.sql`); one small problem per kind remains. Loads that
always go together (bytes in proportion to messages) can't be told apart: the sum of their costs is right then, its
division is not, and `alone` shows that. Minutes depend on those before, so true errors are larger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from loadmanager.history.analyses.analysis import Analysis, Options, Table, Tables
from loadmanager.history.analyses.regression import Sums, fit
from loadmanager.history.analyses.texts import relation
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
COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "term", "unit")),
        *((name, pa.float64()) for name in FIGURES),
        *((name, pa.int64()) for name in ("minutes", "brokers")),
    ]
)
PAIRS = tuple(itertools.combinations_with_replacement(range(len(TERMS)), 2))


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per kind of broker (its cores and GiB of memory) and term.

    `coefficient` in `unit`; its `standard_error`, with coefficients that are 0 held there (null where it is 0 itself);
    `alone`, the part of the term's variance that no other term explains (null where it does not vary). Of the kind:
    `r2`, `deviation_cores` of the residuals, `minutes` and `brokers` in which it was seen.
    """
    return relation(tables, "capacity_sums", window, options).mapInArrow(_solved, from_arrow_schema(COLUMNS))


def _solved(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from _costs(batch).to_batches()


def _costs(kinds: Table) -> Table:
    return pa.Table.from_pylist([row for kind in kinds.to_pylist() for row in costs_of(kind)], schema=COLUMNS)


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


ANALYSIS = Analysis(
    *("capacity", "Capacity model", ("broker_minute",), run, ("kind", "term"), "capacity_sums"),
    lambda kinds, _: _costs(kinds),
)
