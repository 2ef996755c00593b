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

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from scipy.optimize import nnls

from loadmanager.history.analyses.analysis import Analysis, Options, Table, Tables, relation
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


CAPACITY = Analysis(
    *("capacity", "Capacity model", ("broker_minute",), run, ("kind", "term"), "capacity_sums"),
    lambda kinds, _: _costs(kinds),
)


Floats = NDArray[np.float64]

NOTHING = 1e-10
"""Directions with less than this part of the largest variance are rounding, and are left out."""

NEGLIGIBLE = 1e-6
"""A column below this part of the largest contribution is 0: rounding of the sums can produce that much along the
weakest direction that is kept."""

ROUNDING = 1e-12
"""A residual below this part of the sum of squares is rounding."""


class Sums(msgspec.Struct, frozen=True, eq=False):
    """Weighted sums over the rows: `gram` (k, k) = Σ w x xᵀ, `cross` (k,) = Σ w x y, and the rest as named."""

    gram: Floats
    cross: Floats
    squares: float
    total: float
    weight: float


class Fit(msgspec.Struct, frozen=True, eq=False):
    """`coefficients` and `errors` (k,); errors are NaN where the coefficient is 0, or where rows don't suffice."""

    coefficients: Floats
    errors: Floats
    alone: Floats
    """(k,): the part of each column's variance that the others do not explain, 1 / VIF; NaN where it does not vary. The
    first column is the constant."""
    r2: float
    """NaN where y does not vary."""
    deviation: float
    """The standard deviation of the residuals."""


def fit(sums: Sums) -> Fit:
    """The regression. `weight` counts as the number of rows."""
    scale = np.sqrt(np.diag(sums.gram))
    scale[scale == 0] = 1.0
    gram, cross = sums.gram / np.outer(scale, scale), sums.cross / scale
    values, vectors = np.linalg.eigh(gram)
    kept = values > NOTHING * max(float(values[-1]), 0.0)
    if not kept.any():
        nothing = np.full(len(cross), np.nan)
        return Fit(np.zeros(len(cross)), nothing, nothing, float("nan"), float("nan"))
    roots = np.sqrt(values[kept])
    # |y - Xb|² = |A b - c|² + a constant, with AᵀA = XᵀX and Aᵀc = Xᵀy
    found, _ = nnls(roots[:, None] * vectors[:, kept].T, (vectors[:, kept].T @ cross) / roots)
    found[found < NEGLIGIBLE * found.max(initial=0.0)] = 0.0
    residual = float(sums.squares - 2 * found @ cross + found @ gram @ found)
    if residual < ROUNDING * sums.squares:
        residual = 0.0
    spread = float(sums.squares - sums.total**2 / sums.weight)
    active = found > 0
    freedom = sums.weight - active.sum()
    deviation = float(np.sqrt(residual / freedom)) if freedom > 0 else float("nan")
    errors = np.full(len(found), np.nan)
    if active.any() and np.isfinite(deviation):
        errors[active] = deviation * np.sqrt(np.diag(np.linalg.pinv(gram[np.ix_(active, active)], hermitian=True)))
    r2 = 1 - residual / spread if spread > NOTHING * max(sums.squares, 1e-300) else float("nan")
    return Fit(found / scale, errors / scale, _alone(sums.gram), r2, deviation)


def _alone(gram: Floats) -> Floats:
    """1 / VIF: the variance of each column that is left when the others have explained what they can."""
    alone = np.full(len(gram), np.nan)
    if gram[0, 0] <= 0:
        return alone
    centred = gram[1:, 1:] - np.outer(gram[0, 1:], gram[0, 1:]) / gram[0, 0]
    variance = np.diag(centred)
    varies = variance > NOTHING * np.diag(gram)[1:]
    if not varies.any():
        return alone
    deviations = np.sqrt(variance[varies])
    correlations = centred[np.ix_(varies, varies)] / np.outer(deviations, deviations)
    for row, column in enumerate(np.flatnonzero(varies)):
        others = np.delete(np.arange(len(correlations)), row)
        with_others = correlations[row, others]
        explained = with_others @ np.linalg.pinv(correlations[np.ix_(others, others)], NOTHING, hermitian=True)
        alone[column + 1] = min(1.0, max(0.0, 1 - float(explained @ with_others)))
    return alone
