"""The hard rules of one question in words, and a number for each: what `Constraints.forbidden` and `fixed` hold."""

from __future__ import annotations

import numpy as np

MOST = np.iinfo(np.int16).max
"""Rules that can be told apart by a number of 16 bits; further ones share the last."""


class Rules:
    """Numbers them in the order in which they are first named."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, rule: str) -> int:
        """The number of this rule, the same for the same words."""
        if rule not in self._numbers and len(self._numbers) >= MOST:
            rule = "one of very many rules"
        return self._numbers.setdefault(rule, len(self._numbers))

    def texts(self) -> tuple[str, ...]:
        """The rules; their places are their numbers."""
        return tuple(self._numbers)
