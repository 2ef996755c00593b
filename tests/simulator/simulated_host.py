"""The service that a simulated broker hosts, and its storage: hooks take time, raise or hang, as its behaviour says.

It notes what it holds, so that a run can check two things: nothing is served that the host has not acquired, and the
contract of `loadmanager.model.host` is kept, that is, no two hooks of one bundle run at once, except `abandon` over a
hook that hangs.

The storage has one counter per cell of the ring, guarded by fencing tokens. It keeps tokens by place, never by bundle
name, so a split loses none. No call takes time: what a broker does in one callback happens at one instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from random import Random

import msgspec

from loadmanager.model.host import BundleLoad, Destination
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle, Key
from statechannel.law.record import Token

CELLS = 32
"""Bundles of a simulated run begin and end at multiples of 1/CELLS of the ring."""

CELL_SIZE = (FULL_UPPER + 1) // CELLS


class StaleToken(Exception):
    """The storage has seen a newer token for this place."""


def cells_of(bundle: Bundle) -> range:
    """The cells that a bundle covers."""
    return range(bundle.lo // CELL_SIZE, (bundle.hi - 1) // CELL_SIZE + 1)


@lru_cache
def topic_in(namespace: str, cell: int) -> Key:
    """A topic that falls into a cell of a namespace."""
    number = 0
    while (topic := Key.parse(f"{namespace}/topic-{number}")).position // CELL_SIZE != cell:
        number += 1
    return topic


class Storage:
    """Counters that refuse a token older than one they have seen."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], Token] = {}
        self.counters: dict[tuple[str, int], int] = {}
        self.refused = 0

    def raise_tokens(self, bundle: Bundle, token: Token) -> None:
        """Take the token for the whole bundle. Raises StaleToken and then changes nothing."""
        places = [(bundle.namespace, cell) for cell in cells_of(bundle)]
        for place in places:
            self._check(place, token)
        for place in places:
            self._tokens[place] = token

    def increment(self, namespace: str, cell: int, token: Token) -> int:
        """Add one. Raises StaleToken."""
        place = (namespace, cell)
        self._check(place, token)
        self._tokens[place] = token
        self.counters[place] = self.counters.get(place, FULL_LOWER) + 1
        return self.counters[place]

    def _check(self, place: tuple[str, int], token: Token) -> None:
        known = self._tokens.get(place)
        if known is not None and token < known:
            self.refused += 1
            raise StaleToken(f"{place[0]} cell {place[1]}: token {token} is older than {known}")


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

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:  # the port's
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
