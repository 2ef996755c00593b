"""Makes sure that this broker fits the log's agreement: before each incarnation, and while it lives.

The log's agreement counts (`statechannel.law.agreement`). A broker whose coordination root or values differ does not
start. A running broker ends its incarnation when the agreement changes; the next one begins when a new agreement is in
force and fits.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from statechannel.errors import ForeignCluster, LogUnavailable
from statechannel.law.agreement import NEVER_AGREED, Agreed, Agreement, differences
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination, Identity
from statechannel.runtime.channel import Channel

_ADOPTED = ("proof_validity_s", "clock_drift")
"""Settings that are taken from the log if they are not given here."""

REPLACED = "what brokers agree on is being replaced: run `loadmanager channel agree` to its end"
LOST = (
    "nothing was written. Correct --log, topic_prefix or --coordination. If the log's data is lost, let the brokers "
    "that still run serve on, and restore a backup into a new log (docs/disaster-recovery.md)"
)
BETWEEN = (
    "this broker has read, in some partitions only, that what brokers agree on was replaced; it waits for the others"
)


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
        self._cluster_identity: ClusterIdentity | None = None
        self._settled: list[Agreed] = []
        self._log_of_root: Identity | None = None
        """What the coordination root was tied to before this broker looked at the log."""
        self.root = ""
        """The identity of this broker's coordination root."""

    async def check_there(self) -> None:
        """Check, before anything is created, that the log exists if the coordination root belongs to one.

        A start that created the channel's topic again would end every broker that still serves by its proofs. Raises
        ForeignCluster, CoordinationUnavailable, LogUnavailable.
        """
        self._log_of_root = await self._coordination.identity()
        topic = self._channel.topic
        if self._log_of_root is not None and not await self._channel.replica.log.has_topic(topic):
            raise ForeignCluster(f"{self._log_of_root.owner}, and the log here has no topic {topic!r}: {LOST}")

    async def claim_log(self) -> ClusterIdentity:
        """As `Channel.claim_cluster`, once the log is read to its end; begins no new log for a root that has one."""
        settings = self._live.current
        if self._log_of_root is not None and self._channel.table.cluster_identity is None:
            raise ForeignCluster(f"{self._log_of_root.owner}, and the log here is empty: {LOST}")
        return await self._channel.claim_cluster(settings.cluster, BrokerId(settings.advertised, 0))

    async def settle(self, cluster_identity: ClusterIdentity) -> None:
        """Check that root and values are the log's; write them if the log has no agreement yet.

        Raises ForeignCluster, which names both; CoordinationUnavailable; LogUnavailable (also while the agreement is
        being replaced, or was and this broker has not yet read that in every partition).
        """
        self._cluster_identity = cluster_identity
        while True:
            before = self._agreed()
            if any(agreed.following is not None for agreed in before):
                raise LogUnavailable(REPLACED)
            words = {agreed.agreement for agreed in before if agreed.agreement is not None}
            if len(words) > 1:
                raise LogUnavailable(BETWEEN)
            word = next(iter(words), None)
            self.root = await self._coordination.identify(
                cluster_identity.cluster, cluster_identity.identity, None if word is None else word.root
            )
            if self._agreed() != before:
                continue  # replaced meanwhile: this process may have been paused for long
            if word is not None:
                self._adopt(word)
            await self.say()
            self._settled = self._agreed()
            if (why := self._mismatch()) is None:
                return
            if self._settled == before or any(agreed.agreement is None for agreed in before):
                raise ForeignCluster(why)

    async def say(self) -> None:
        """Write the agreement to partitions that lack it, if all brokers can read it. The first record wins."""
        if not self._channel.can_agree:
            return
        for partition in range(self._channel.table.partitions):
            await self._channel.agree(partition, self.ours, BrokerId(self._live.current.advertised, 0))
            if self._mismatch() is not None:
                return  # partition 0 decides

    @property
    def has_begun(self) -> bool:
        """Whether any partition has an agreement; then the log is written in no older format any more."""
        return any(agreed.revision != NEVER_AGREED for agreed in self._agreed())

    @property
    def is_said(self) -> bool:
        """Whether every partition has an agreement in force."""
        return all(agreed.agreement is not None for agreed in self._agreed())

    @property
    def ours(self) -> Agreement:
        """This broker's own root and values."""
        settings = self._live.current
        return Agreement(
            self.root,
            settings.proof_validity_s,
            settings.clock_drift,
            settings.margin_s,
            self._channel.table.partitions,
        )

    def broken(self) -> str | None:
        """Why an incarnation that began after `settle` must end: the log's agreement has changed. Else None."""
        for partition, (before, now) in enumerate(zip(self._settled, self._agreed(), strict=True)):
            first_word = before.agreement is None and now.agreement == self.ours and now.following is None
            if now.revision != before.revision and not first_word:
                return f"what brokers agree on was changed in partition {partition}"
        return None

    def _agreed(self) -> list[Agreed]:
        table = self._channel.table
        return [table.agreed(partition) for partition in range(table.partitions)]

    def _mismatch(self) -> str | None:
        ours = self.ours
        for agreed in self._agreed():
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
            raise ForeignCluster(
                f"the settings here contradict the log's values: {error}; correct the settings"
            ) from None
        self._note(f"takes values from the log: {', '.join(f'{name}={value:g}' for name, value in adopted.items())}")
