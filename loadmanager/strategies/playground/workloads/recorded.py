"""Recorded loads: a trace of `time, key, rate` (CSV), whose keys fall into bundles as an application's do.

The format is that of the counter service's `--trace`: `time` in seconds, not falling; `rate` in requests per second.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loadmanager.errors import Invalid
from loadmanager.strategies.playground.scenario import NAMESPACES, Scenario, Size, scenario, tiled
from statechannel.law.bundle import position_of

COLUMNS = ("time", "key", "rate")
USAGE = 0.35
"""The cluster's mean usage: a recorded day has quiet hours, and peaks."""


def recorded(path: Path, size: Size, rng: np.random.Generator) -> Scenario:
    """The whole trace, in `size.rounds` rounds. Raises Invalid, which names the line, if the file is no trace."""
    lines = list(_lines(path))
    first_s, last_s = lines[0][0], lines[-1][0]
    times = sorted({time_s for time_s, _, _ in lines})
    length_s = last_s - first_s + (times[-1] - times[-2] if len(times) > 1 else 60.0)
    bundles, _, _ = tiled(size.bundles, NAMESPACES)
    row_of = {key: _row(key, bundles_a_namespace(size.bundles)) for key in {key for _, key, _ in lines}}
    activity = np.zeros((size.rounds, len(bundles)))
    rates: dict[str, float] = {}
    for time_s, key, rate in lines:
        begin = math.ceil((time_s - first_s) / length_s * size.rounds)
        activity[begin:, row_of[key]] += rate - rates.get(key, 0.0)
        rates[key] = rate
    if not activity.sum(axis=1).mean() > 0:
        raise Invalid(f"{path}: all rates are 0; there is nothing to replay")
    return scenario("trace", size, rng, activity.clip(0.0), usage=USAGE, interval_s=length_s / size.rounds)


def bundles_a_namespace(bundles: int) -> tuple[int, ...]:
    """How many bundles each namespace of `tiled` has."""
    _, names, namespace = tiled(bundles, NAMESPACES)
    return tuple(np.bincount(namespace, minlength=len(names)).tolist())


def _row(key: str, counts: tuple[int, ...]) -> int:
    """The bundle of a key: a namespace by its hash, and there the range of its position."""
    number = position_of(key) % len(counts)
    position = position_of(f"persistent://play/ns-{number}/{key}")
    inside = min(position * counts[number] >> 32, counts[number] - 1)
    return sum(counts[:number]) + inside


def _lines(path: Path) -> Iterator[tuple[float, str, float]]:
    """Raises Invalid."""
    before_s = -math.inf
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(line for line in file if not line.startswith("#"))
            header = tuple(next(rows, ()))
            if header != COLUMNS:
                raise Invalid(f"{path}: the first line must be {','.join(COLUMNS)}, not {','.join(header)!r}")
            for number, row in enumerate(rows, 2):
                line = _parsed(f"{path}, line {number} without comments", row)
                if line[0] < before_s:
                    raise Invalid(f"{path}, line {number}: time goes back to {line[0]:g}; sort the lines by time")
                before_s = line[0]
                yield line
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {error}") from None
    if before_s == -math.inf:
        raise Invalid(f"{path}: there is no line after the first")


def _parsed(where: str, row: list[str]) -> tuple[float, str, float]:
    try:
        time_s, key, rate = float(row[0]), row[1].strip(), float(row[2])
    except (ValueError, IndexError):
        raise Invalid(f"{where}: {','.join(row)!r}; write seconds,key,requests per second") from None
    if not key or not math.isfinite(time_s) or not (rate >= 0 and math.isfinite(rate)):
        raise Invalid(f"{where}: a key is missing, or a number is negative or infinite")
    return time_s, key, rate
