"""The service that a simulated broker hosts: hooks that take time, raise, or hang, as its behaviour says.

It notes what it holds, so that a run can check two things: nothing is served that the host has not acquired, and the
contract of `loadmanager.model.host` is kept, that is, no two hooks of one bundle run at once, except `abandon` over a
hook that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

import msgspec

from loadmanager.model.host import BundleLoad, Destination
from loadmanager.simulation.storage import CELL_SIZE, Storage, cells_of
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token

FOREVER_S = 1e6


class Behaviour(msgspec.Struct, frozen=True):
    """How the hooks behave: most take up to `usual_s`; chances of one call to be slow, to raise, to hang."""

    usual_s: float = 0.01
    slow_chance: float = 0.02
    slow_s: float = 1.0
    raise_chance: float = 0.0
    hang_chance: float = 0.0


GOOD_BEHAVIOUR = Behaviour()


class HookRaised(Exception):
    """What a hook of the simulated service raises."""


class SimulatedHost:
    """A `BundleHost`. Calls `complain` at breaches of the contract."""

    def __init__(self, storage: Storage, random: Random, complain: Callable[[str], None]) -> None:
        self.behaviour = GOOD_BEHAVIOUR
        self.held: dict[Bundle, Token] = {}
        self._storage = storage
        self._random = random
        self._complain = complain
        self._busy: dict[Bundle, str] = {}

    async def prepare(self, bundle: Bundle) -> None:
        async with self._hook("prepare", bundle):
            await self._take_time()

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        if hand_off is not None and Token.parse(hand_off.decode()) >= token:
            self._complain(f"acquire({bundle}, {token}) got the hand-off of {hand_off.decode()}")
        async with self._hook("acquire", bundle):
            self._storage.raise_tokens(bundle, token)
            await self._take_time()
            self.held[bundle] = token

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:  # noqa: ARG002 # the port's
        async with self._hook("release", bundle):
            await self._take_time()
            token = self.held.pop(bundle, None)
            return str(token).encode() if token else None

    async def abandon(self, bundle: Bundle) -> None:
        self.held.pop(bundle, None)
        await self._take_time()
        self.held.pop(bundle, None)

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        return {bundle: BundleLoad(in_rate_msg_s=float(bundle.lo % 97)) for bundle in self.held}

    async def positions(self, bundle: Bundle) -> list[int]:
        """The middle of each cell, so that a cut between two of them falls on a cell's edge."""
        await self._take_time()
        return [cell * CELL_SIZE + CELL_SIZE // 2 for cell in cells_of(bundle)]

    @asynccontextmanager
    async def _hook(self, name: str, bundle: Bundle) -> AsyncGenerator[None]:
        if bundle in self._busy:
            self._complain(f"{name}({bundle}) was called while {self._busy[bundle]} of the same bundle ran")
        self._busy[bundle] = name
        try:
            yield
        finally:
            self._busy.pop(bundle, None)

    async def _take_time(self) -> None:
        behaviour, dice = self.behaviour, self._random.random()
        if dice < behaviour.hang_chance:
            await asyncio.sleep(FOREVER_S)
        if dice < behaviour.hang_chance + behaviour.raise_chance:
            raise HookRaised("the simulated service is told to fail")
        slow = self._random.random() < behaviour.slow_chance
        await asyncio.sleep(self._random.random() * (behaviour.slow_s if slow else behaviour.usual_s))
