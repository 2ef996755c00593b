"""The channel owner of one incarnation: claims leases, and keeps the partitions whose lease it has.

It never disturbs ownership: it notes and retries every failure, and writes one snapshot at a time, in steps that leave
the loop to the proofs. `election.py`, `schedule.py` and `retention.py` decide what is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from loadmanager.channel.owner.election import ElectionSettings
from loadmanager.channel.owner.keeper import Counts, Keeper, KeeperDependencies, KeeperSettings
from loadmanager.channel.owner.leases import Leases, holders
from loadmanager.channel.owner.schedule import ScheduleSettings
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.readers import ChannelReader, wanted
from loadmanager.settings import Settings
from statechannel.errors import LogError, StateChannelError, WriterFenced
from statechannel.law.record import BrokerId
from statechannel.law.snapshot_columns import CHUNK_BUNDLES
from statechannel.ports import Coordination, Log
from statechannel.runtime.channel import Channel
from statechannel.runtime.view import TableView

LOOK_S = 1.0
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
        """Claim leases and keep partitions, for ever."""
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
            await self._failed(partition, f"somebody else writes them: {fenced}")
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
