"""The placement that the settings name at this moment. Decides nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from loadmanager.settings import Settings
from loadmanager.strategies.placement.batching import Batch, begin
from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.placement import Placement
from loadmanager.strategies.placement.registry import PLACEMENTS
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class SwitchedPlacement:
    """Delegates to the placement that the setting `placement` names now."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._placement = PLACEMENTS.make(settings().placement)

    @property
    def name(self) -> str:
        """The name of the present strategy."""
        return self._now().name

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """As that strategy, with the margin of the settings."""
        margin = self._settings().placement_margin_percent / 100
        return self._now().choose(bundle, candidates, msgspec.structs.replace(given, margin=margin))

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> Batch:
        """Begin a batch with that strategy."""
        settings = self._settings()
        return begin(self._now(), candidates, Given(given, margin=settings.placement_margin_percent / 100))

    def _now(self) -> Placement:
        wanted = self._settings().placement
        if wanted != self._placement.name:
            self._placement = PLACEMENTS.make(wanted)
        return self._placement
