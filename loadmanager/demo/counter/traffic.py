"""Which topics get requests, and when: a skewed mix (Zipf) that drifts, or a recorded load.

The hot end of the mix drifts through all topics, so no balance lasts. A recorded load is a CSV of `time, key, rate`,
with its own hot keys and quiet hours. `time` is in seconds from the first line's, never falling. `rate` is the key's
requests per second until the next line of the same key. Keys become topics of the namespace.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote


class Traffic:
    """`topics` topics of a namespace; the i-th hottest gets a share of about 1 / i ** `skew` of `rate_s` requests.

    Every `drift_s` seconds the second hottest becomes the hottest, and so on.
    """

    def __init__(
        self,
        namespace: str,
        *,
        rate_s: float = 300.0,
        topics: int = 400,
        skew: float = 0.9,
        drift_s: float = 8.0,
        seed: int = 1,
    ) -> None:
        self._rate_s = rate_s
        self._dice = random.Random(seed)
        self.names = [f"persistent://{namespace}/counter-{i}" for i in range(topics)]
        self._dice.shuffle(self.names)
        self._drift_s = drift_s
        self._cumulated = list(itertools.accumulate(1 / (rank + 1) ** skew for rank in range(topics)))

    def requests_by(self, elapsed_s: float) -> float:
        """How many requests are due until then."""
        return elapsed_s * self._rate_s

    def time_of(self, number: int) -> float:
        """When the request of this number (0, 1, …) is due, in seconds since the start."""
        return number / self._rate_s

    def pick(self, elapsed_s: float) -> str:
        """The topic of one request at this time."""
        rank = bisect_left(self._cumulated, self._dice.random() * self._cumulated[-1])
        return self.names[(rank + int(elapsed_s / self._drift_s)) % len(self.names)]


COLUMNS = ("time", "key", "rate")


class TraceError(Exception):
    """The file is not a trace; the message names the line and what to write."""


class _Step:
    """Cumulated rates of keys from `begin_s` on; `before` requests were due until then."""

    def __init__(self, begin_s: float, rates: dict[str, float], before: float) -> None:
        self.begin_s = begin_s
        self.before = before
        self.topics = list(rates)
        self.cumulated = list(itertools.accumulate(rates.values()))

    @property
    def rate_s(self) -> float:
        return self.cumulated[-1] if self.cumulated else 0.0


class Trace:
    """A trace in replay. `speed` is how many of its seconds pass in one of ours; at its end it begins again.

    `rate_s` scales it to this mean rate; None leaves the rates as recorded.
    """

    def __init__(
        self, path: Path, namespace: str, *, speed: float = 1.0, rate_s: float | None = None, seed: int = 1
    ) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise TraceError(f"--speed {speed:g}: give how many seconds of the trace pass in one, more than 0")
        self._dice = random.Random(seed)
        lines = list(_lines(path))
        self._steps = _steps(lines, namespace, speed)
        last_s = self._steps[-1].begin_s
        pauses = [b.begin_s - a.begin_s for a, b in itertools.pairwise(self._steps)]
        self.length_s = last_s + (pauses[-1] if pauses else 1.0)
        self._requests = self._steps[-1].before + self._steps[-1].rate_s * (self.length_s - last_s)
        if self._requests <= 0:
            raise TraceError(f"{path}: all rates are 0; there is nothing to replay")
        self._scale = 1.0 if rate_s is None else rate_s * self.length_s / self._requests
        self.names = sorted({topic for step in self._steps for topic in step.topics})

    def requests_by(self, elapsed_s: float) -> float:
        """How many requests are due until then."""
        rounds, within_s = divmod(elapsed_s, self.length_s)
        step = self._step_at(within_s)
        return self._scale * (rounds * self._requests + step.before + step.rate_s * (within_s - step.begin_s))

    def time_of(self, number: int) -> float:
        """When the request of this number (0, 1, …) is due, in seconds since the start."""
        rounds, within = divmod(number / self._scale, self._requests)
        index = bisect_right(self._steps, within, key=lambda step: step.before) - 1
        step = self._steps[index]
        late_s = (within - step.before) / step.rate_s if step.rate_s else 0.0
        return rounds * self.length_s + step.begin_s + late_s

    def pick(self, elapsed_s: float) -> str:
        """The topic of one request at this time."""
        step = self._step_at(elapsed_s % self.length_s)
        if not step.rate_s:
            return self.names[0]
        return step.topics[bisect_left(step.cumulated, self._dice.random() * step.rate_s)]

    def _step_at(self, within_s: float) -> _Step:
        return self._steps[bisect_right(self._steps, within_s, key=lambda step: step.begin_s) - 1]


def _steps(lines: Iterable[tuple[float, str, float]], namespace: str, speed: float) -> list[_Step]:
    steps: list[_Step] = []
    rates: dict[str, float] = {}
    begin_s = before = 0.0
    for time_s, group in itertools.groupby(lines, key=lambda line: line[0]):
        if steps:
            before += steps[-1].rate_s * (time_s / speed - begin_s)
        begin_s = time_s / speed
        for _, key, rate in group:
            rates[f"persistent://{namespace}/{quote(key, safe='')}"] = rate * speed
        steps.append(_Step(begin_s, {topic: rate for topic, rate in rates.items() if rate}, before))
    return steps


def _lines(path: Path) -> Iterable[tuple[float, str, float]]:
    """Raises TraceError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(line for line in file if not line.startswith("#"))
            header = tuple(next(rows, ()))
            if header != COLUMNS:
                raise TraceError(f"{path}: the first line must be {','.join(COLUMNS)}, not {','.join(header)!r}")
            first_s = last_s = None
            for number, row in enumerate(rows, 2):
                time_s, key, rate = _parsed(path, number, row)
                first_s = time_s if first_s is None else first_s
                if last_s is not None and time_s < last_s:
                    raise TraceError(f"{path}, line {number}: time goes back to {time_s:g}; sort the lines by time")
                last_s = time_s
                yield time_s - first_s, key, rate
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from None
    if first_s is None:
        raise TraceError(f"{path}: there is no line after the first")


def _parsed(path: Path, number: int, row: list[str]) -> tuple[float, str, float]:
    try:
        time_s, key, rate = float(row[0]), row[1].strip(), float(row[2])
    except (ValueError, IndexError):
        raise TraceError(f"{path}, line {number}: {','.join(row)!r}; write seconds,key,requests per second") from None
    if not key or not math.isfinite(time_s) or not (rate >= 0 and math.isfinite(rate)):
        raise TraceError(f"{path}, line {number}: a key is missing, or a number is negative or infinite")
    return time_s, key, rate
