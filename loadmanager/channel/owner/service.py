"""The channel owner of one incarnation: claims leases, and keeps the partitions whose lease it has.

It never disturbs ownership: it notes and retries every failure, and writes one snapshot at a time, in steps that leave
the loop to the proofs. `election.py` and `retention.py` decide what is due. A lease gives no right: it only keeps
brokers from fencing each other all the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import msgspec

from loadmanager.channel.owner.election import (
    Claim,
    Election,
    ElectionSettings,
    Seen,
    Step,
    Vacate,
    lease_of,
    partition_of_lease,
)
from loadmanager.channel.owner.keeper import Counts, Keeper, KeeperDependencies, KeeperSettings
from loadmanager.channel.owner.retention import ScheduleSettings
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.readers import ChannelReader, wanted
from loadmanager.settings import Settings
from statechannel.errors import CoordinationError, LogError, StateChannelError, WriterFenced
from statechannel.law.record import BrokerId
from statechannel.law.snapshot import CHUNK_BUNDLES
from statechannel.ports import Connection, Coordination, Log
from statechannel.runtime.channel import Channel
from statechannel.runtime.view import TableView

LOOK_S = 1.0
SHOWN_WITHIN_S = 10.0
"""If the watches do not show a claimed lease as ours within this time, it is not ours."""

ABSTAIN_S = 300.0
"""How long we leave a lease to others after we failed in it."""


class Leases:
    """The leases of one incarnation. Keep `run()` running; `able` gives the names of brokers that may own one."""

    def __init__(
        self,
        me: BrokerId,
        coordination: Coordination,
        partitions: int,
        settings: ElectionSettings,
        clock_s: Callable[[], float],
        able: Callable[[], Sequence[str]],
        leaving: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._me = me
        self._coordination = coordination
        self._partitions = partitions
        self._clock_s = clock_s
        self._able = able
        self._leaving = leaving
        self._note = note
        self._election = Election(me, partitions, settings)
        self._claimed_s: dict[int, float] = {}
        self._shown: set[int] = set()
        self._abstain_until_s: dict[int, float] = {}
        self._woken = asyncio.Event()

    @property
    def held(self) -> frozenset[int]:
        """Partitions whose lease is ours, as far as we know."""
        return frozenset(self._claimed_s)

    def wake(self) -> None:
        """Look again: members or leases have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Take part in the election until cancelled."""
        while True:
            self._woken.clear()
            await self._look()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def confirm(self, partition: int) -> bool:
        """Claim a lease again, to be sure that it is ours; forget it if it is not. False without an answer.

        Call it before fencing: with the last seen values alone, two owners could fence each other in turn.
        """
        try:
            ours = await self._coordination.claim(lease_of(partition), self._me)
        except CoordinationError:
            return False
        if ours:
            self._claimed_s.setdefault(partition, self._clock_s())
        else:
            self._forget(partition)
        return ours

    async def abstain(self, partition: int) -> None:
        """Leave a lease to others for a while, since we fail in it."""
        if set(self._able()) <= {self._me.name}:
            return  # there is no other broker
        self._abstain_until_s[partition] = self._clock_s() + ABSTAIN_S
        self._note(f"gives up the channel's partition {partition}: another broker may succeed")
        try:
            await self._coordination.vacate(lease_of(partition), self._me)
        except CoordinationError:
            return  # we keep it and try again
        self._forget(partition)

    async def _look(self) -> None:
        if self._coordination.connection is not Connection.CONNECTED:
            return  # nothing can be concluded; a lease's holder goes on until the log fences it
        seen = holders(self._coordination.leases)
        self._forget_lost(seen)
        before = self.held
        try:
            for step in self._election.due(Seen(self._clock_s(), self._able(), seen, self._leaving())):
                await self._take(step)
        except CoordinationError:
            pass  # the next look tries again
        if taken := self.held - before:
            self._note(f"owns the channel's {_partitions(taken)} from now on")

    async def _take(self, step: Step) -> None:
        match step:
            case Claim(partition):
                if self._may_claim(partition) and await self._coordination.claim(lease_of(partition), self._me):
                    self._claimed_s[partition] = self._clock_s()
            case Vacate(partition, holder, reason):
                if partition in self._claimed_s:
                    self._forget(partition)
                    self._note(f"gives up the channel's partition {partition}: {reason}")
                await self._coordination.vacate(lease_of(partition), holder)

    def _may_claim(self, partition: int) -> bool:
        return partition not in self._claimed_s and self._clock_s() >= self._abstain_until_s.get(partition, 0.0)

    def _forget_lost(self, seen: Mapping[int, BrokerId]) -> None:
        """Forget leases that ended with a session. Right after a claim the watches may not show it yet."""
        for partition, claimed_s in tuple(self._claimed_s.items()):
            if seen.get(partition) == self._me:
                self._shown.add(partition)
            elif partition in self._shown or self._clock_s() - claimed_s > SHOWN_WITHIN_S:
                self._forget(partition)

    def _forget(self, partition: int) -> None:
        self._claimed_s.pop(partition, None)
        self._shown.discard(partition)


def holders(leases: Mapping[str, BrokerId]) -> dict[int, BrokerId]:
    """Who owns which partition of the channel, as last seen."""
    found = ((partition_of_lease(lease), holder) for lease, holder in leases.items())
    return {partition: holder for partition, holder in found if partition is not None}


def _partitions(partitions: Iterable[int]) -> str:
    numbers = ", ".join(str(p) for p in sorted(partitions))
    return f"partitions {numbers}" if "," in numbers else f"partition {numbers}"


CLOSE_S = 1.0
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
"""The pause before a failed partition is tried again; twice as long each time."""

ABSTAIN_AFTER = 4
"""Failures in a row after which another broker should try."""

SNAPSHOTS_SINCE = 2
"""The record format of the first release that can start from a snapshot. Older ones need the whole log."""

_log = logging.getLogger(__name__)


class OwnerDependencies(msgspec.Struct, frozen=True):
    """The service's dependencies. `nonce` differs between any two processes that ever write."""

    channel: Channel
    log: Log
    coordination: Coordination
    membership: Membership
    readers: TableView[ChannelReader]
    clock_s: Callable[[], float]
    wall_ms: Callable[[], int]
    now_ms: Callable[[], int | None]
    nonce: str
    note: Callable[[str], None]
    chunk_bundles: int = CHUNK_BUNDLES


class _Failures(msgspec.Struct):
    """Failures of one partition: how many in a row, when to try again, and the text of the last one."""

    in_a_row: int = 0
    not_before_s: float = 0.0
    why: str = ""


class ChannelOwner:
    """Keep `run()` running as long as the incarnation lives. Its leases end with the session, or in a drain."""

    def __init__(
        self,
        me: BrokerId,
        world: OwnerDependencies,
        settings: Settings,
        election: ElectionSettings | None = None,
    ) -> None:
        self.counts = Counts()
        self.keepers: dict[int, Keeper] = {}
        """The keepers by partition, of the leases that are ours."""
        self._me = me
        self._world = world
        self._keeping = _keeper_settings(settings, world.channel.table.partitions)
        self._failures: dict[int, _Failures] = {}
        self._numbers = count(1)
        self.leases = Leases(
            me,
            world.coordination,
            world.channel.table.partitions,
            election or ElectionSettings(),
            world.clock_s,
            self._able,
            self._leaving,
            world.note,
        )
        self._deps = KeeperDependencies(
            log=world.log,
            topic=world.channel.topic,
            snapshots_topic=world.channel.snapshots_topic,
            table=world.channel.table,
            log_bytes=world.channel.replica.core.log_bytes,
            wanted=self._wanted,
            name=lambda: f"{world.nonce}-{me.incarnation}-{next(self._numbers)}",
            clock_s=world.clock_s,
            wall_ms=world.wall_ms,
            now_ms=world.now_ms,
            note=world.note,
            steps=world.channel.replica.steps,
            chunk_bundles=world.chunk_bundles,
        )

    async def run(self) -> None:
        """Claim leases and keep partitions, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leases.run())
                tasks.create_task(self._keep())
        finally:
            keepers, self.keepers = tuple(self.keepers.values()), {}
            await asyncio.gather(*(_closed(keeper) for keeper in keepers))

    def wake(self) -> None:
        """Look again: members or leases have changed."""
        self.leases.wake()

    async def _keep(self) -> None:
        while True:
            for partition in self.keepers.keys() - self.leases.held:
                await self._drop(partition)
            for partition in sorted(self.leases.held):
                if partition in self.leases.held and self._is_time(partition):
                    await self._look_after(partition)
                await asyncio.sleep(0)
            await asyncio.sleep(LOOK_S)

    async def _look_after(self, partition: int) -> None:
        keeper = self.keepers.get(partition)
        if keeper is None:
            keeper = self.keepers[partition] = Keeper(partition, self._deps, self._keeping, self.counts)
        try:
            if not keeper.is_open:
                if not await self.leases.confirm(partition):
                    return
                await keeper.open()
            if why := await keeper.attend():
                _log.info("snapshot of channel partition %d: %s", partition, why)
            self._failures.pop(partition, None)
        except WriterFenced as fenced:
            await self._failed(partition, f"another client writes them: {fenced}")
        except StateChannelError as error:
            await self._failed(partition, str(error))
        except Exception as error:  # noqa: BLE001 - a bug here must cost no ownership
            _log.exception("the work on channel partition %d failed", partition)
            await self._failed(partition, repr(error))

    async def _failed(self, partition: int, why: str) -> None:
        """Begin again with a new writer after a pause; after several failures let another broker try."""
        self.counts.failed += 1
        failures = self._failures.setdefault(partition, _Failures())
        failures.in_a_row += 1
        pause_s = min(FIRST_PAUSE_S * 2 ** min(failures.in_a_row - 1, 10), LAST_PAUSE_S)
        failures.not_before_s = self._world.clock_s() + pause_s
        if why != failures.why:
            self._world.note(f"snapshots of channel partition {partition}: {why}; trying again in {pause_s:g} s")
        failures.why = why
        keeper = self.keepers.get(partition)
        if keeper is not None:
            await _closed(keeper)
        if failures.in_a_row % ABSTAIN_AFTER == 0:
            await self.leases.abstain(partition)

    def _is_time(self, partition: int) -> bool:
        failures = self._failures.get(partition)
        return failures is None or self._world.clock_s() >= failures.not_before_s

    async def _drop(self, partition: int) -> None:
        await _closed(self.keepers.pop(partition))

    def _able(self) -> Sequence[str]:
        """Names of eligible brokers whose release knows snapshots."""
        eligible = self._world.membership.eligible()
        return [peer.broker.name for peer in eligible if peer.registration.codec >= SNAPSHOTS_SINCE]

    def _leaving(self) -> bool:
        peer = self._world.membership.peer(self._me)
        return peer is not None and peer.registration.draining

    def _wanted(self, partition: int) -> Sequence[int]:
        """The offsets to keep. The whole log, while readers are unknown or a broker's release needs it to start."""
        peers = self._world.membership.peers.values()
        if not self._world.readers.ready or any(peer.registration.codec < SNAPSHOTS_SINCE for peer in peers):
            return (0,)
        return wanted(self._world.readers.values(), partition)


async def _closed(keeper: Keeper) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await keeper.close()
    except (LogError, TimeoutError):
        return  # the next writer fences it


def _keeper_settings(settings: Settings, partitions: int) -> KeeperSettings:
    schedule = ScheduleSettings(settings.snapshot_records, settings.snapshot_interval_s, partitions)
    return KeeperSettings(schedule, settings.log_retention_s, settings.snapshot_timeout_s)


def owner_of(coordination: Coordination, membership: Membership, partition: int) -> BrokerId | None:
    """The channel owner of a partition, as last seen; None if it is suspected."""
    holder = holders(coordination.leases).get(partition)
    return None if holder is None or holder in membership.suspected else holder
