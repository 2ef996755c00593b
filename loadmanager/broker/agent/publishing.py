"""Publishes the agent's records, each until it is accepted or the bundle has changed.

One record at a time for each bundle and revision; asking twice is the same as asking once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from loadmanager.broker.agent.effects import Publish
from statechannel.errors import RecordTooLarge
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Subject
from statechannel.law.verdict import Unknown
from statechannel.runtime.service import Channel

REPUBLISH_S = 0.2


class Publisher:
    """Writes for one incarnation, until `over()`; a `release` only once `vacated` says that the service has stopped."""

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        over: Callable[[], bool],
        note: Callable[[str], None],
        vacated: Callable[[Bundle], Awaitable[bool]],
    ) -> None:
        self._me = me
        self._vacated = vacated
        self._channel = channel
        self._over = over
        self._note = note
        self._publishing: set[tuple[Bundle, int]] = set()

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
                    verdict = await self._channel.publish(self._record(effect))
                except RecordTooLarge as error:
                    self._note(f"{effect.bundle}: {error}")
                    effect = msgspec.structs.replace(effect, hand_off=None)
                    continue
                if not isinstance(verdict, Unknown):
                    return
                await asyncio.sleep(REPUBLISH_S)
        finally:
            self._publishing.discard(duty)

    def _record(self, effect: Publish) -> Record:
        return Record(
            id="",
            action=effect.action,
            actor=self._me,
            subjects=(Subject(effect.bundle, effect.seen, effect.hand_off),),
            boundaries=effect.boundaries,
            reason=effect.reason,
        )

    def _is_present(self, effect: Publish) -> bool:
        entry = self._channel.table.get(effect.bundle)
        return entry is not None and entry.revision == effect.seen
