"""Which topics are hot: a skewed mix (Zipf) whose hot end drifts through all of them, so no balance lasts."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left


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
