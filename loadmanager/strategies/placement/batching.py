"""Placing many bundles at one instant: the interface, and the plain way for placements that have no faster one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from loadmanager.strategies.placement.model import Candidate, Given, Placed
from loadmanager.strategies.placement.placement import Placement
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class Batch(Protocol):
    """A sitting over the same candidates. Answers as `Placement.choose` does with all that was given so far."""

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """These will be asked for next: a hint."""
        ...

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """The broker for this bundle, None if nobody may take it. Whoever acts on it says `gave`."""
        ...

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """The broker was given one more bundle, or one less (-1), that the table does not show yet."""
        ...


@runtime_checkable
class Batching(Protocol):
    """A placement that has a way of its own to place many."""

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> Batch:
        """Begin a sitting; `given` as in `Given.bundles`, copied."""
        ...


class OneByOne:
    """Asks the placement anew for each bundle."""

    def __init__(self, placement: Placement, candidates: Sequence[Candidate], given: Given) -> None:
        self._placement = placement
        self._candidates = candidates
        self._margin = given.margin
        self._given = dict(given.bundles)

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """Nothing to prepare."""

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """See `Batch`."""
        given = Given(self._given, declined_by, preferred, self._margin)
        outcome = self._placement.choose(bundle, self._candidates, given)
        return outcome.broker if isinstance(outcome, Placed) else None

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """See `Batch`."""
        self._given[broker] = self._given.get(broker, 0) + change


def begin(placement: Placement, candidates: Sequence[Candidate], given: Given) -> Batch:
    """A sitting with this placement, the fast way if it has one; of `given`, the bundles and the margin count."""
    if isinstance(placement, Batching):
        return placement.batch(candidates, given.bundles)
    return OneByOne(placement, candidates, given)
