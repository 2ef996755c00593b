"""The hard rules in words, with a number for each: the values of `Constraints.forbidden` and `fixed`."""

from __future__ import annotations

import numpy as np

MOST = np.iinfo(np.int16).max
"""The most rules that fit into 16 bits; further ones share one number."""


class Rules:
    """Numbers rules in the order in which they are first named."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, rule: str) -> int:
        """The number of this rule; the same words have the same number."""
        if rule not in self._numbers and len(self._numbers) >= MOST:
            rule = "one of very many rules"
        return self._numbers.setdefault(rule, len(self._numbers))

    def texts(self) -> tuple[str, ...]:
        """The rules; each index is the rule's number."""
        return tuple(self._numbers)
