"""The leader's hands: turns duties into channel records and checked raises. Each runs in a task of its own, so that no
duty queues behind another. A refused record needs no care: the bundle moved on, and the next tick sees where to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, assert_never

import msgspec

from loadmanager.leader.core import Cancel, Duty, Evacuate, LeaderCore, Place, Raise, Revoke
from statechannel.bundle import Bundle
from statechannel.errors import CoordinationUnavailable, Deposed
from statechannel.ports import Coordination, Leadership
from statechannel.record import Action, Broker, Record, Role, Subject
from statechannel.service import Channel
from statechannel.verdict import Ownership, Reason, Refusal, Unknown, Verdict

SUBJECTS_A_RECORD = 500
PLACED_AT_ONCE = 200
Seen = tuple[Bundle, int]
Placer = Callable[[Sequence[Ownership], str | None], Sequence[Broker | None]]
"""Who gets each of these bundles; the second argument is a broker name to prefer, None for no preference."""


class Hands:
    """Performs duties in one term. `deposed` is called when somebody else is known to lead."""

    def __init__(
        self,
        leadership: Leadership,
        channel: Channel,
        coordination: Coordination,
        core: LeaderCore,
        place: Placer,
        clock_s: Callable[[], float],
        note: Callable[[str], None],
        wake: Callable[[], None],
        deposed: Callable[[str], None],
    ) -> None:
        self._leadership = leadership
        self._channel = channel
        self._coordination = coordination
        self._core = core
        self._place = place
        self._clock_s = clock_s
        self._note = note
        self._wake = wake
        self._deposed = deposed
        self._silent_since_s: dict[int, float] = {}
        self._checking: set[int] = set()

    @property
    def unknown_since_s(self) -> float | None:
        """Since when a partition has given no verdict, None while all answer."""
        return min(self._silent_since_s.values(), default=None)

    def perform(self, duties: Iterable[Duty], tasks: asyncio.TaskGroup) -> None:
        """Begin all duties."""
        for duty in duties:
            tasks.create_task(self._one(duty))

    def check_silent(self, tasks: asyncio.TaskGroup) -> None:
        """Ask each partition that gave no verdict again, with a no-op; the duty that found out may be done by now."""
        for partition in self._silent_since_s.keys() - self._checking:
            self._checking.add(partition)
            tasks.create_task(self._check(partition))

    async def _check(self, partition: int) -> None:
        try:
            if await self._channel.read_back(partition, self._leadership.leader):
                self._silent_since_s.pop(partition, None)
        finally:
            self._checking.discard(partition)

    def _one(self, duty: Duty) -> Coroutine[Any, Any, None]:
        match duty:
            case Revoke():
                self._note(f"revoke {len(duty.subjects)} bundles of {duty.holder}: {duty.reason}")
                return self._publish(Action.REVOKE, duty.subjects, duty.reason)
            case Raise():
                return self._raise(duty)
            case Place():
                return self._settle(duty)
            case Cancel():
                return self._publish(Action.CANCEL, ((duty.bundle, duty.seen),), duty.reason)
            case Evacuate():
                return self._evacuate(duty)
            case _:
                assert_never(duty)

    async def _raise(self, duty: Raise) -> None:
        try:
            await self._coordination.raise_incarnation(duty.holder, self._leadership.epoch)
        except Deposed as error:
            self._deposed(str(error))
            return
        except CoordinationUnavailable:
            return
        self._note(f"raised the incarnation of {duty.holder}: {duty.reason}")
        self._core.raised(duty.holder, self._clock_s())
        self._wake()

    async def _settle(self, duty: Place) -> None:
        """`release(to)` in a dead holder's place; `own` for what it released itself."""
        groups = await self._grouped(duty.subjects, duty.former)
        if duty.revoked:
            reason = f"in place of {duty.former}"
            works = [self._publish(Action.RELEASE, subjects, reason, to) for to, subjects in groups.items()]
        else:
            reason = f"revoked from {duty.former}"
            works = [
                self._publish(Action.OWN, subjects, reason, to, role=Role.BROKER)
                for to, subjects in groups.items()
                if to is not None
            ]
        await asyncio.gather(*works)

    async def _evacuate(self, duty: Evacuate) -> None:
        groups = await self._grouped(duty.subjects, None)
        works = [
            self._publish(Action.TRANSFER, subjects, duty.reason, to)
            for to, subjects in groups.items()
            if to is not None and to.name != duty.holder.name
        ]
        await asyncio.gather(*works)

    async def _grouped(self, subjects: Iterable[Seen], prefer: str | None) -> dict[Broker | None, list[Seen]]:
        groups: dict[Broker | None, list[Seen]] = {}
        remaining = iter(subjects)
        while some := list(islice(remaining, PLACED_AT_ONCE)):
            entries = [e for b, seen in some if (e := self._channel.table.get(b)) is not None and e.revision == seen]
            for entry, to in zip(entries, self._place(entries, prefer), strict=True):
                groups.setdefault(to, []).append((entry.bundle, entry.revision))
            await asyncio.sleep(0)  # the proofs are written by this loop as well
        return groups

    async def _publish(
        self,
        action: Action,
        subjects: Iterable[Seen],
        reason: str,
        to: Broker | None = None,
        *,
        role: Role = Role.LEADER,
    ) -> None:
        by_partition: dict[int, list[Subject]] = {}
        for bundle, seen in subjects:
            partition = self._channel.table.partition_of(bundle.namespace)
            by_partition.setdefault(partition, []).append(Subject(bundle, seen))
        record = Record("", action, self._leadership.leader, role, epoch=self._leadership.epoch, to=to, reason=reason)
        works = [
            self._publish_one(
                msgspec.structs.replace(record, subjects=tuple(chosen[begin : begin + SUBJECTS_A_RECORD])), partition
            )
            for partition, chosen in by_partition.items()
            for begin in range(0, len(chosen), SUBJECTS_A_RECORD)
        ]
        await asyncio.gather(*works)

    async def _publish_one(self, record: Record, partition: int) -> None:
        verdict = await self._channel.publish(record, partition)
        if isinstance(verdict, Unknown):
            self._silent_since_s.setdefault(partition, self._clock_s())
        else:
            self._silent_since_s.pop(partition, None)
        self._heeded(verdict)
        self._wake()

    async def take_partitions(self) -> bool:
        """The barrier: a `lead` record of our epoch, read back in every partition. False: somebody else leads."""
        record = Record("", Action.LEAD, self._leadership.leader, Role.LEADER, epoch=self._leadership.epoch)
        partitions = range(self._channel.table.partitions)
        await asyncio.gather(*(self._publish_one(record, p) for p in partitions))
        for partition in partitions:
            while (lead := self._channel.table.lead(partition)).epoch != self._leadership.epoch:
                if lead.epoch > self._leadership.epoch:
                    return False
                await self._publish_one(record, partition)
        return True

    async def move(self, bundle: Bundle, seen: int, to: Broker | None, reason: str, cause: str) -> Verdict:
        """Begin one planned move, to nobody (an unload) without `to`; what the channel says."""
        action = Action.UNLOAD if to is None else Action.TRANSFER
        return self._heeded(await self._channel.publish(self._about(bundle, seen, action, to, reason, cause)))

    async def call_off(self, bundle: Bundle, seen: int, reason: str) -> Verdict:
        """Cancel a transfer that began with the record at offset `seen`, if nothing has followed it."""
        return self._heeded(await self._channel.publish(self._about(bundle, seen, Action.CANCEL, None, reason, "")))

    def _heeded(self, verdict: Verdict) -> Verdict:
        """Who is told by the channel that somebody else leads stops at once, whatever the election shows yet."""
        if isinstance(verdict, Refusal) and verdict.reason is Reason.DEPOSED:
            self._deposed(verdict.detail)
        return verdict

    def _about(self, bundle: Bundle, seen: int, action: Action, to: Broker | None, reason: str, cause: str) -> Record:
        return Record(
            "",
            action,
            self._leadership.leader,
            Role.LEADER,
            epoch=self._leadership.epoch,
            subjects=(Subject(bundle, seen),),
            to=to,
            reason=reason,
            cause=cause,
        )
