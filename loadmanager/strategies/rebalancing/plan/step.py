"""One move of a plan in rows of its model, and what a round may still spend. Values, but for the allowance."""

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
    """As a fraction of the destination's capacity."""
    before: tuple[float, float]
    after: tuple[float, float]
    group: int


class Allowance:
    """What a round may still move, as load (in mean brokers) and as number."""

    def __init__(self, load: float, moves: int) -> None:
        self.load = load
        self._spent = False
        self.refused = False
        self.moves = moves

    def affords(self, size: float, moves: int) -> bool:
        """Whether so much more may be moved. The first always may, or a bundle above the budget never went."""
        fits = self.moves >= moves and (size <= self.load or not self._spent)
        self.refused |= not fits
        return fits

    def spend(self, size: float) -> None:
        """Take a move off."""
        self.load -= size
        self._spent |= size > 0
        self.moves -= 1
