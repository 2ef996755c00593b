"""The interface of placement strategies: where an unassigned bundle goes. Pure: no clock, no I/O, no randomness.

Third-party strategies are installed by an entry point of group `loadmanager.placements` (see `registry.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from statechannel.law.bundle import Bundle


class Placement(Protocol):
    """Chooses a broker. The same question gets the same answer on every broker."""

    @property
    def name(self) -> str:
        """Its name in the setting `placement`."""
        ...

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """Where the bundle goes. Changes nothing: a caller that acts on it adds it to the next `given`."""
        ...
