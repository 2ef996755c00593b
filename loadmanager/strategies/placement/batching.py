"""Places many bundles at one instant: the interface, and a default for placements without a faster way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from loadmanager.strategies.placement.model import Candidate, Given, Placed
from loadmanager.strategies.placement.placement import Placement
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class Batch(Protocol):
    """A batch of placements over the same candidates; answers as `Placement.choose` with all bundles given so far."""

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """Hint which bundles come next."""
        ...

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """The broker for this bundle, None if nobody may take it. A caller that gives it the bundle calls `gave`."""
        ...

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """The broker was given one more bundle, or one less (-1), which the table does not show yet."""
        ...


@runtime_checkable
class Batching(Protocol):
    """A placement that has its own way to place many bundles."""

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> Batch:
        """Begin a batch; `given` is as `Given.bundles`, and is copied."""
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
    """Begin a batch with this placement, in its own way if it has one; uses the bundles and the margin of `given`."""
    if isinstance(placement, Batching):
        return placement.batch(candidates, given.bundles)
    return OneByOne(placement, candidates, given)
