"""A split whose parts cannot be unloaded has happened all the same, and the refusal says so."""

from __future__ import annotations

import pytest

from loadmanager.channel.operations import Operations
from loadmanager.errors import Conflict, NotFound
from statechannel.law.bundle import Bundle
from tests.loadmanager.channel.test_operations_reshape import Q, writer
from tests.loadmanager.small_world import ADMIN, A, B, membership_of, virtually
from tests.simulator.world import World


class Overtaken(Operations):
    """Somebody merges the parts again before they are unloaded."""

    async def unload(self, bundle: Bundle) -> None:
        await super().merge(self.namespace(bundle.namespace).bundles[:2])
        raise NotFound(f"there is no bundle {bundle}")


@virtually
async def test_the_refusal_of_the_unloading_says_that_the_split_was_done(world: World):
    async with writer(world) as one:
        operations = Overtaken(ADMIN, one.hand.channel, membership_of(A, B), world.loop.time, 3.0)
        with pytest.raises(Conflict, match="was split, but its parts were not all unloaded: there is no bundle"):
            await operations.split(Q[0], unload=True)
