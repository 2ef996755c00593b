"""The storage behind the simulated service: one counter per cell of the ring, guarded by fencing tokens.

It keeps tokens by place, never by bundle name, so a split loses none. No call takes time: what a broker does in one
callback happens at one instant.
"""

from __future__ import annotations

from functools import lru_cache

from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle, Key
from statechannel.law.record import Token

CELLS = 32
"""Bundles of a simulated run begin and end at multiples of 1/CELLS of the ring."""

CELL_SIZE = (FULL_UPPER + 1) // CELLS


class StaleToken(Exception):
    """The storage has seen a newer token for this place."""


def cells_of(bundle: Bundle) -> range:
    """The cells that a bundle covers."""
    return range(bundle.lo // CELL_SIZE, (bundle.hi - 1) // CELL_SIZE + 1)


@lru_cache
def topic_in(namespace: str, cell: int) -> Key:
    """A topic that falls into a cell of a namespace."""
    number = 0
    while (topic := Key.parse(f"{namespace}/topic-{number}")).position // CELL_SIZE != cell:
        number += 1
    return topic


class Storage:
    """Counters that refuse a token older than one they have seen."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], Token] = {}
        self.counters: dict[tuple[str, int], int] = {}
        self.refused = 0

    def raise_tokens(self, bundle: Bundle, token: Token) -> None:
        """Take the token for the whole bundle. Raises StaleToken and then changes nothing."""
        places = [(bundle.namespace, cell) for cell in cells_of(bundle)]
        for place in places:
            self._check(place, token)
        for place in places:
            self._tokens[place] = token

    def increment(self, namespace: str, cell: int, token: Token) -> int:
        """Add one. Raises StaleToken."""
        place = (namespace, cell)
        self._check(place, token)
        self._tokens[place] = token
        self.counters[place] = self.counters.get(place, FULL_LOWER) + 1
        return self.counters[place]

    def _check(self, place: tuple[str, int], token: Token) -> None:
        known = self._tokens.get(place)
        if known is not None and token < known:
            self.refused += 1
            raise StaleToken(f"{place[0]} cell {place[1]}: token {token} is older than {known}")
