"""One move of a plan in rows of its model, and the remaining allowance of a round. Values, except the allowance."""

from __future__ import annotations

import msgspec

from loadmanager.strategies.rebalancing.decision import Stage


class Step(msgspec.Struct, frozen=True):
    """A move. Usages are before and after it, with the moves ahead of it made: (source, destination)."""

    row: int
    source: int
    destination: int
    stage: Stage
    gain: float
    load: float
    """The load moved, as a fraction of the destination's capacity."""
    before: tuple[float, float]
    after: tuple[float, float]
    group: int


class Allowance:
    """What a round may still move: load (in mean brokers) and a number of moves."""

    def __init__(self, load: float, moves: int) -> None:
        self.load = load
        self._spent = False
        self.refused = False
        self.moves = moves

    def affords(self, size: float, moves: int) -> bool:
        """Whether this may be moved as well. A first move always may, or a bundle above the budget could never move."""
        fits = self.moves >= moves and (size <= self.load or not self._spent)
        self.refused |= not fits
        return fits

    def spend(self, size: float) -> None:
        """Subtract a move."""
        self.load -= size
        self._spent |= size > 0
        self.moves -= 1
