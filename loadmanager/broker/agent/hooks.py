"""Calls the service's hooks, each within its time-out, and returns the outcome.

A failure of a hook is noted and returned, never raised: the core decides what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from loadmanager.broker.agent.sampling import rating, sampling
from loadmanager.broker.hosting import HookFailed, HostRunner
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import (
    BundleHost,
    BundleLoad,
    Destination,
    KeyRate,
    KnowsPositions,
    KnowsRates,
    ServesElsewhere,
)
from loadmanager.settings.algorithms import Algorithm
from loadmanager.strategies.splitting.cutting import estimated
from statechannel.law.bundle import Bundle
from statechannel.law.record import MAX_HAND_OFF_BYTES, BrokerId, Token


class HookTimeouts(msgspec.Struct, frozen=True):
    """How long each hook may take; `positions` as long as `prepare`, `abandon` as long as `release`."""

    prepare_s: float
    acquire_s: float
    release_s: float


HookEnded = Callable[[str, Bundle, float, bool], None]
"""Gets a hook's name, its bundle, the seconds that it took, and whether it succeeded."""


def not_told(_hook: str, _bundle: Bundle, _took_s: float, _well: bool) -> None:
    """Nobody wants to know."""


class Hooks:
    """One service's hooks. `destination` gives the addresses of a broker's service; `ended` hears of each call."""

    def __init__(
        self,
        host: BundleHost,
        runner: HostRunner,
        timeouts: HookTimeouts,
        destination: Callable[[BrokerId], Destination],
        note: Callable[[str], None],
        ended: HookEnded = not_told,
    ) -> None:
        self._host = host
        self._runner = runner
        self._timeouts = timeouts
        self._destination = destination
        self._note = note
        self._ended = ended

    def set(self, timeouts: HookTimeouts) -> None:
        """Use these time-outs for hooks that begin from now on."""
        self._timeouts = timeouts

    async def prepare(self, bundle: Bundle) -> bool:
        """Call `prepare`; whether it succeeded."""
        return await self._went_well("prepare", self._host.prepare, bundle, timeout_s=self._timeouts.prepare_s)

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> bool:
        """Call `acquire`; whether it succeeded."""
        timeout_s = self._timeouts.acquire_s
        return await self._went_well("acquire", self._host.acquire, bundle, token, hand_off, timeout_s=timeout_s)

    async def abandon(self, bundle: Bundle) -> None:
        """Call `abandon`; its outcome does not matter."""
        await self._went_well("abandon", self._host.abandon, bundle, timeout_s=self._timeouts.release_s)

    async def release(self, bundle: Bundle, to: BrokerId | None) -> tuple[bool, bytes | None]:
        """Call `release`; whether it succeeded, and the hand-off."""
        there = None if to is None else self._destination(to)
        try:
            with self._timed("release", bundle):
                answer: object = await self._runner.call(
                    self._host.release, bundle, there, timeout_s=self._timeouts.release_s
                )
        except HookFailed as error:
            self._note(f"{bundle}: {error}; its host was told to abandon it, and it moves without a hand-off")
            return False, None
        return True, self._checked(bundle, answer)

    async def vacated(self, bundle: Bundle) -> bool:
        """Whether the service has stopped serving the bundle; waits for that if it is another process."""
        if not isinstance(self._host, ServesElsewhere):
            return True
        try:
            await self._runner.call(self._host.vacated, bundle, timeout_s=self._timeouts.release_s)
        except HookFailed as error:
            self._note(f"{bundle}: {error}; it is not given up before its service has stopped")
            return False
        return True

    def _checked(self, bundle: Bundle, hand_off: object) -> bytes | None:
        if hand_off is None:
            return None
        if isinstance(hand_off, bytes) and len(hand_off) <= MAX_HAND_OFF_BYTES:
            return hand_off
        self._note(f"{bundle}: release must return None or at most {MAX_HAND_OFF_BYTES} bytes; hand-off dropped")
        return None

    async def keys(self, bundle: Bundle, algorithm: str, load: BundleLoad) -> list[KeyRate] | NoCuts:
        """The bundle's keys, for cuts by this algorithm, or why they are unknown.

        Rates that the service does not tell are estimated from `load`, the bundle's.
        """
        if algorithm != Algorithm.TOPIC_COUNT and isinstance(self._host, KnowsRates):
            return await self._asked(rating(self._host.rates), bundle)
        positions = await self.positions(bundle)
        if algorithm == Algorithm.TOPIC_COUNT:
            if isinstance(positions, NoCuts) and isinstance(self._host, KnowsRates):
                return await self._asked(rating(self._host.rates), bundle)
            return positions if isinstance(positions, NoCuts) else [KeyRate(position) for position in positions]
        if isinstance(positions, NoCuts):
            return estimated(bundle, load) or positions
        return estimated(bundle, load, positions)

    async def _asked(self, hook: Callable[..., object], bundle: Bundle) -> list[KeyRate] | NoCuts:
        try:
            answer: Any = await self._runner.call(hook, bundle, timeout_s=self._timeouts.prepare_s)
        except HookFailed as error:
            return NoCuts(f"its service did not give the loads of its keys: {error}")
        return answer

    async def positions(self, bundle: Bundle) -> list[int] | NoCuts:
        """The positions of the bundle's keys, or why they are unknown."""
        if not isinstance(self._host, KnowsPositions):
            return NoCuts(
                "its service does not tell where its keys are (it has no `positions`): "
                "split into equal ranges, or at given positions"
            )
        try:
            return await self._runner.call(sampling(self._host.positions), bundle, timeout_s=self._timeouts.prepare_s)
        except HookFailed as error:
            return NoCuts(f"its service did not tell where its keys are: {error}")

    async def _went_well(
        self, name: str, hook: Callable[..., object], bundle: Bundle, *args: object, timeout_s: float
    ) -> bool:
        try:
            with self._timed(name, bundle):
                await self._runner.call(hook, bundle, *args, timeout_s=timeout_s)
        except HookFailed as error:
            self._note(f"{bundle}: {error}")
            return False
        return True

    @contextmanager
    def _timed(self, name: str, bundle: Bundle) -> Generator[None]:
        """Tell how long a call took; a cancelled one has no outcome."""
        clock_s = asyncio.get_running_loop().time
        began_s = clock_s()
        try:
            yield
        except HookFailed:
            self._ended(name, bundle, clock_s() - began_s, False)
            raise
        self._ended(name, bundle, clock_s() - began_s, True)
