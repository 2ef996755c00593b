"""The leader's rounds beside its duties: sweeping the views, and balancing. Runs for one term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from loadmanager.leader.service import Term
from loadmanager.membership import Membership
from loadmanager.settings import Settings
from loadmanager.views import Views
from statechannel.errors import LogError
from statechannel.service import Channel

if TYPE_CHECKING:
    from loadmanager.node import Surroundings


class Governor:
    """Governs while a term lasts."""

    def __init__(
        self,
        channel: Channel,
        membership: Membership,
        views: Views,
        settings: Settings,
        world: Surroundings,
        note: Callable[[str], None],
    ) -> None:
        self._views = views
        self._settings = settings

    async def govern(self, term: Term) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._settings.balancing_interval_s)
            try:
                await self._views.sweep()
            except LogError:
                continue
