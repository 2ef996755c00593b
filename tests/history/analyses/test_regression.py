"""The regression finds the coefficients that were put in, says how sure it is, and never a negative cost."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy.optimize import nnls

from loadmanager.history.analyses.capacity import Floats, Sums, fit


def sums_of(x: Floats, y: Floats, w: Floats | None = None) -> Sums:
    w = np.ones(len(y)) if w is None else w
    weighed = x * w[:, None]
    return Sums(x.T @ weighed, weighed.T @ y, float(w @ y**2), float(w @ y), float(w.sum()))


def drawn(noise: float, rows: int = 400) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(rows), *(rng.uniform(0, scale, rows) for scale in (5, 80, 900))])
    truth = np.array([0.3, 0.05, 0.0, 0.002])
    return x, x @ truth + rng.normal(0, noise, rows) if noise else x @ truth, truth


def test_the_coefficients_that_were_put_in_come_out() -> None:
    x, y, truth = drawn(0.0)
    found = fit(sums_of(x, y))
    assert found.coefficients == pytest.approx(truth, abs=1e-7)
    assert found.r2 == pytest.approx(1.0, abs=1e-9)


def test_what_rounding_leaves_over_is_no_error() -> None:
    rng = np.random.default_rng(9)
    x = np.column_stack([np.ones(100_000), rng.uniform(0, 1, 100_000) * 1e-3, rng.uniform(50, 90, 100_000)])
    found = fit(sums_of(x, x @ np.array([0.2, 0.3, 0.123456789])))
    assert (found.deviation, found.r2) == (0.0, 1.0)


def test_with_noise_it_is_least_squares_and_its_errors_are_the_textbook_s() -> None:
    x, y, _ = drawn(0.2)
    found = fit(sums_of(x, y))
    best, _ = nnls(x, y)
    assert found.coefficients == pytest.approx(best, abs=1e-7)
    active = best > 0
    residual = y - x @ best
    variance = residual @ residual / (len(y) - active.sum())
    errors = np.sqrt(variance * np.diag(np.linalg.inv(x[:, active].T @ x[:, active])))
    assert found.errors[active] == pytest.approx(errors, rel=1e-6)
    assert np.isnan(found.errors[~active]).all()
    assert found.r2 == pytest.approx(1 - residual @ residual / ((y - y.mean()) @ (y - y.mean())), rel=1e-9)
    assert found.deviation == pytest.approx(np.sqrt(variance), rel=1e-6)


def test_a_negative_slope_becomes_none() -> None:
    x = np.column_stack([np.ones(50), np.arange(50.0)])
    found = fit(sums_of(x, 100.0 - x[:, 1]))
    assert found.coefficients[1] == 0
    assert found.coefficients[0] == pytest.approx((100 - x[:, 1]).mean())


def test_loads_that_go_together_share_their_cost() -> None:
    load = np.linspace(1, 9, 40)
    x = np.column_stack([np.ones(40), load, 3 * load])
    found = fit(sums_of(x, 1 + 0.5 * load))
    assert (found.coefficients >= 0).all()
    assert found.coefficients[1] + 3 * found.coefficients[2] == pytest.approx(0.5)


def test_weights_count_as_rows() -> None:
    x, y, _ = drawn(0.2, 60)
    w = np.arange(60, dtype=np.float64) % 3 + 1.0
    again = np.repeat(np.arange(60), w.astype(int))
    one, other = fit(sums_of(x, y, w)), fit(sums_of(x[again], y[again]))
    assert one.coefficients == pytest.approx(other.coefficients)
    assert one.errors == pytest.approx(other.errors, nan_ok=True)


def test_nothing_to_learn_from() -> None:
    x = np.column_stack([np.ones(5), np.zeros(5)])
    found = fit(sums_of(x, np.full(5, 2.0)))
    assert found.coefficients == pytest.approx([2.0, 0.0])
    assert np.isnan(found.r2)
    empty = fit(Sums(np.zeros((2, 2)), np.zeros(2), 0.0, 0.0, 3.0))
    assert empty.coefficients.tolist() == [0.0, 0.0]


def test_what_goes_along_with_others_is_told_from_what_is_alone() -> None:
    rng = np.random.default_rng(6)
    load, other = rng.uniform(0, 9, 200), rng.uniform(0, 9, 200)
    near = load + rng.normal(0, 1, 200)
    x = np.column_stack([np.ones(200), load, near, other, 3 * other, np.full(200, 7.0)])
    found = fit(sums_of(x, 1 + 0.5 * load))
    rest = (
        near
        - np.column_stack([np.ones(200), load, other])
        @ np.linalg.lstsq(np.column_stack([np.ones(200), load, other]), near, rcond=None)[0]
    )
    assert found.alone[2] == pytest.approx(rest @ rest / ((near - near.mean()) @ (near - near.mean())), rel=1e-6)
    assert found.alone[3:5] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert np.isnan(found.alone[[0, 5]]).all()
    independent = fit(sums_of(x[:, [0, 1, 3]], 1 + 0.5 * load))
    assert (independent.alone[1:] > 0.9).all()


def test_what_rounding_makes_of_nothing_is_nothing() -> None:
    """Sums in another order differ in their last bits; which columns have a part must not depend on that."""
    dice = np.random.default_rng(7)
    first = dice.uniform(1, 2, 500)
    columns = np.column_stack([np.ones(500), first, dice.uniform(1, 1.001, 500), dice.uniform(0, 1e-3, 500)])
    y = 2 + 5 * first
    chosen: set[tuple[bool, ...]] = set()
    for order in range(20):
        rows = np.random.default_rng(order).permutation(500)
        x, values = columns[rows], y[rows]
        sums = Sums(x.T @ x, x.T @ values, float(values @ values), float(values.sum()), 500.0)
        noise = 1 + 1e-15 * np.random.default_rng(order).standard_normal((4, 4))
        found = fit(msgspec.structs.replace(sums, gram=sums.gram * (noise + noise.T) / 2))
        chosen.add(tuple((found.coefficients > 0).tolist()))
    assert len(chosen) == 1, chosen
