"""What this broker and the log agree on: settled before each incarnation, watched while one lives.

The log's word counts (`statechannel.law.agreement`). A broker whose coordination root or values differ does not start;
one that lives ends its incarnation when the log's word changes, and the next one begins when a new word holds and fits.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.settings import Settings
from loadmanager.settings.dynamic.live import LiveSettings
from statechannel.errors import ForeignCluster, LogUnavailable
from statechannel.law.agreement import NEVER_AGREED, Agreed, Agreement, differences
from statechannel.law.partition import Genesis
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination
from statechannel.runtime.service import Channel

_ADOPTED = ("proof_validity_s", "clock_drift")
"""Where the settings do not give them, those of the log hold here too."""

REPLACED = "what brokers agree on is being replaced: run `loadmanager channel agree` to its end"


class Agreeing:
    """`settle()` before each incarnation; `broken()` while it lives."""

    def __init__(
        self, channel: Channel, coordination: Coordination, live: LiveSettings, note: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._coordination = coordination
        self._live = live
        self._given = frozenset(live.start.model_fields_set)
        self._note = note
        self._genesis: Genesis | None = None
        self._settled: list[Agreed] = []
        self.root = ""
        """The coordination root in which this broker is elected, and proves."""

    async def settle(self, genesis: Genesis) -> None:
        """Check that root and values are the log's; where it has no word on them yet, say it.

        Raises ForeignCluster with both, CoordinationUnavailable, or LogUnavailable (also while they are replaced).
        """
        self._genesis = genesis
        while True:
            before = self._standing()
            if any(agreed.following is not None for agreed in before):
                raise LogUnavailable(REPLACED)
            word = before[0].agreement
            self.root = await self._coordination.identify(
                genesis.cluster, genesis.identity, None if word is None else word.root
            )
            if self._standing() != before:
                continue  # replaced meanwhile: we may have been paused for as long as that takes
            if word is not None:
                self._adopt(word)
            await self.say()
            self._settled = self._standing()
            if (why := self._mismatch()) is None:
                return
            if self._settled == before or any(agreed.agreement is None for agreed in before):
                raise ForeignCluster(why)

    async def say(self) -> None:
        """Write what lacks in the log, if all brokers can read it; the first one counts, here too."""
        if not self._channel.can_agree:
            return
        for partition in range(self._channel.table.partitions):
            await self._channel.agree(partition, self.ours, BrokerId(self._live.current.advertised, 0))
            if self._mismatch() is not None:
                return  # partition 0 decides

    @property
    def has_begun(self) -> bool:
        """Whether the log has a word on it at all: then it is written in no older format any more."""
        return any(agreed.revision != NEVER_AGREED for agreed in self._standing())

    @property
    def is_said(self) -> bool:
        """Whether the log has a word in each partition."""
        return all(agreed.agreement is not None for agreed in self._standing())

    @property
    def ours(self) -> Agreement:
        """What this broker counts by."""
        settings = self._live.current
        return Agreement(
            self.root,
            settings.proof_validity_s,
            settings.clock_drift,
            settings.margin_s,
            self._channel.table.partitions,
        )

    def broken(self) -> str | None:
        """Why an incarnation that began after `settle` must end: the log's word is another one since."""
        for partition, (before, now) in enumerate(zip(self._settled, self._standing(), strict=True)):
            first_word = before.agreement is None and now.agreement == self.ours and now.following is None
            if now.revision != before.revision and not first_word:
                return f"what brokers agree on was changed in partition {partition}"
        return None

    def _standing(self) -> list[Agreed]:
        table = self._channel.table
        return [table.agreed(partition) for partition in range(table.partitions)]

    def _mismatch(self) -> str | None:
        ours = self.ours
        for agreed in self._standing():
            if agreed.agreement is not None and agreed.agreement != ours:
                return (
                    f"this broker and the log do not agree: {differences(agreed.agreement, ours)}. Correct the "
                    "settings, or change what all brokers agree on with `loadmanager channel agree`"
                )
        return None

    def _adopt(self, word: Agreement) -> None:
        start: Settings = self._live.start
        adopted = {
            name: getattr(word, name)
            for name in _ADOPTED
            if name not in self._given and getattr(start, name) != getattr(word, name)
        }
        if not adopted:
            return
        try:
            self._live.restart_with(adopted)
        except ValueError as error:
            raise ForeignCluster(f"the log's values do not go with the settings here: {error}") from None
        self._note(f"as the log says: {', '.join(f'{name}={value:g}' for name, value in adopted.items())}")
