"""Publishes the agent's records, each until it is accepted or the bundle has changed.

One record at a time for each bundle and revision; asking twice is the same as asking once. What is said of many bundles
in one turn of the loop, as after the death of a broker, goes into one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from loadmanager.broker.agent.effects import Publish
from statechannel.errors import RecordTooLarge
from statechannel.law.bundle import Bundle
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Subject
from statechannel.law.verdict import Unknown, Verdict
from statechannel.runtime.channel import Channel

REPUBLISH_S = 0.2
TOGETHER = frozenset({Action.RETURN, Action.READY, Action.RELEASE})
"""Actions that one record may say of many bundles."""

TURNS = 4
"""A record waits for so many turns for more bundles, while hooks wait to begin."""

Gathered = tuple[Publish, asyncio.Future[Verdict]]
"""What is to be said of a bundle, and who waits for the verdict."""


class Publisher:
    """Writes for one incarnation, until `over()`; a `release` only once `vacated` says that the service has stopped.

    `spawn` runs work until the incarnation has ended, as it does the calls of `publish`; None: it ends already.
    """

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        over: Callable[[], bool],
        note: Callable[[str], None],
        vacated: Callable[[Bundle], Awaitable[bool]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        more_follow: Callable[[], bool] = lambda: False,
    ) -> None:
        self._me = me
        self._vacated = vacated
        self._spawn = spawn
        self._more_follow = more_follow
        self._channel = channel
        self._over = over
        self._note = note
        self._publishing: set[tuple[Bundle, int]] = set()
        self._gathered: dict[tuple[Action, int], list[Gathered]] = {}
        """What goes into one record at the end of this turn, by action and partition."""

    def is_at(self, bundle: Bundle, seen: int) -> bool:
        """Whether a record for the bundle at revision `seen` is being published."""
        return (bundle, seen) in self._publishing

    async def publish(self, effect: Publish) -> None:
        """Publish until there is a verdict, or another record has changed the bundle."""
        duty = (effect.bundle, effect.seen)
        if duty in self._publishing:
            return
        self._publishing.add(duty)
        try:
            while not self._over() and self._is_present(effect):
                if effect.action is Action.RELEASE and not await self._vacated(effect.bundle):
                    await asyncio.sleep(REPUBLISH_S)
                    continue
                try:
                    verdict = await self._verdict(effect)
                except RecordTooLarge as error:
                    self._note(f"{effect.bundle}: {error}")
                    effect = msgspec.structs.replace(effect, hand_off=None)
                    continue
                if not isinstance(verdict, Unknown):
                    return
                await asyncio.sleep(REPUBLISH_S)
        finally:
            self._publishing.discard(duty)

    async def _verdict(self, effect: Publish) -> Verdict:
        """The verdict of the record that says it, perhaps of other bundles too; raises as `Channel.publish`."""
        if effect.action not in TOGETHER or effect.hand_off is not None or effect.boundaries or effect.reason:
            return await self._channel.publish(self._record([effect]))
        loop = asyncio.get_running_loop()
        key = effect.action, self._channel.table.partition_of(effect.bundle.namespace)
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = []
            loop.call_soon(self._send, key, TURNS)
        verdict: asyncio.Future[Verdict] = loop.create_future()
        gathered.append((effect, verdict))
        return await verdict

    def _send(self, key: tuple[Action, int], turns: int) -> None:
        if turns and len(self._gathered[key]) < BUNDLES_A_RECORD and self._more_follow():
            asyncio.get_running_loop().call_soon(self._send, key, turns - 1)
            return
        gathered = self._gathered.pop(key)
        for begin in range(0, len(gathered), BUNDLES_A_RECORD):
            some = gathered[begin : begin + BUNDLES_A_RECORD]
            if self._spawn(self._send_some(some)) is None:
                _settle(some, Unknown("", "this incarnation ends"))

    async def _send_some(self, some: Sequence[Gathered]) -> None:
        wanted = [(effect, verdict) for effect, verdict in some if not verdict.done()]  # else nobody waits any more
        if not wanted:
            return
        found: Verdict | Exception
        try:
            found = await self._channel.publish(self._record([effect for effect, _ in wanted]))
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            found = error
        _settle(wanted, found)

    def _record(self, effects: Sequence[Publish]) -> Record:
        """The record of one effect, or of several that differ only in their bundles."""
        first = effects[0]
        return Record(
            id="",
            action=first.action,
            actor=self._me,
            subjects=tuple(Subject(effect.bundle, effect.seen, effect.hand_off) for effect in effects),
            boundaries=first.boundaries,
            reason=first.reason,
        )

    def _is_present(self, effect: Publish) -> bool:
        entry = self._channel.table.get(effect.bundle)
        return entry is not None and entry.revision == effect.seen


def _settle(some: Sequence[Gathered], found: Verdict | Exception) -> None:
    for _, verdict in some:
        if verdict.done():
            continue
        if isinstance(found, Exception):
            verdict.set_exception(found)
        else:
            verdict.set_result(found)
