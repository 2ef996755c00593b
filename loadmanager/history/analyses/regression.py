"""Non-negative least squares from the sums of a regression, so its cost does not depend on the number of rows. Pure.

Given XᵀX, Xᵀy, yᵀy, Σy and n: the coefficients b ≥ 0 that minimise |y - Xb|² (Lawson and Hanson), R², and standard
errors of the coefficients above 0, with the others held at 0. Columns that carry no information get 0. Of columns that
always go together one gets the cost of both, and its error does not show that: `alone` does.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

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
