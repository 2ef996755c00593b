"""Which topics are hot: a skewed mix (Zipf) whose hot end drifts through all of them, so no balance lasts."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left


class Traffic:
    """`topics` topics of a namespace; the i-th hottest gets a share of about 1 / i ** `skew`.

    Every `drift_s` seconds what was second becomes first, and so on.
    """

    def __init__(
        self, namespace: str, *, topics: int = 400, skew: float = 0.9, drift_s: float = 8.0, seed: int = 1
    ) -> None:
        self._dice = random.Random(seed)
        self.names = [f"persistent://{namespace}/counter-{i}" for i in range(topics)]
        self._dice.shuffle(self.names)
        self._drift_s = drift_s
        self._cumulated = list(itertools.accumulate(1 / (rank + 1) ** skew for rank in range(topics)))

    def pick(self, now_s: float) -> str:
        """The topic of one request at this time."""
        rank = bisect_left(self._cumulated, self._dice.random() * self._cumulated[-1])
        return self.names[(rank + int(now_s / self._drift_s)) % len(self.names)]
