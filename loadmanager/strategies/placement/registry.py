"""Placements by name (see `loadmanager.settings.choices`), and the one that the settings name at this moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from loadmanager.settings import Settings
from loadmanager.settings.choices import PLACEMENT_NAMES, Plugins
from loadmanager.strategies.placement.baselines import LeastResourceUsage, PowerOfTwo
from loadmanager.strategies.placement.least_loaded import LeastLoaded
from loadmanager.strategies.placement.placement import Batch, Candidate, Given, NoPlace, Placed, Placement, begin
from loadmanager.strategies.placement.rendezvous import Rendezvous
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

PLACEMENTS: Plugins[Placement] = Plugins(
    PLACEMENT_NAMES,
    {each.name: each for each in (LeastLoaded, LeastResourceUsage, PowerOfTwo, Rendezvous)},
)


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
