"""One figure, printed as one JSON line, with what it is to be held against."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence


def emit(
    bench: str,
    figure: str,
    value: float,
    unit: str,
    *,
    target: str = "",
    met: bool | None = None,
    floor: float | None = None,
    **details: object,
) -> None:
    """Print the figure. `floor` is what was measured in the same run as possible at all; then a ratio is shown."""
    line: dict[str, object] = {"bench": bench, "figure": figure, "value": finite(value), "unit": unit}
    if floor is not None:
        line |= {"floor": round(floor, 4), "ratio": round(value / floor, 3) if floor else None}
    if target:
        line |= {"target": target, "met": met}
    print(json.dumps(line | details), flush=True)


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return round(value, 4) if math.isfinite(value) else None


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of unsorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)
