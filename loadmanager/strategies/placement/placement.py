"""The interface of every placement strategy: where an unassigned bundle goes. Pure: no clock, no I/O, no chance.

Third-party ones come in by an entry point of group `loadmanager.placements` (see `registry.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from statechannel.law.bundle import Bundle


class Placement(Protocol):
    """Chooses a broker. The same question gets the same answer, on every broker that asks it."""

    @property
    def name(self) -> str:
        """What the setting `placement` says."""
        ...

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """Where the bundle goes. Changes nothing: who acts on the answer adds it to the next question's `given`."""
        ...
