"""Performs the leader's duties: turns them into channel records and checked raises.

Each duty runs in its own task, so none queues behind another. A refused record needs no handling: the bundle changed
meanwhile, and the next tick sees how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, assert_never

import msgspec

from loadmanager.leader.core import LeaderCore
from loadmanager.leader.duty import Cancel, Duty, Evacuate, Place, Raise, Revoke, Seen
from statechannel.errors import CoordinationUnavailable, Deposed
from statechannel.law.bundle import Bundle
from statechannel.law.partition import Lead
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership, Reason, Refusal, Unknown, Verdict
from statechannel.ports import Coordination, Leadership
from statechannel.runtime.channel import Channel

PLACED_AT_ONCE = BUNDLES_A_RECORD
"""How many bundles are placed in one turn of the loop: about a millisecond among 900 brokers."""
RECORDS_AT_ONCE = 25
"""How many records are published in one turn of the loop."""


class Placer(Protocol):
    """Chooses owners among the present brokers."""

    def look(self) -> bool:
        """Refresh what is known of the brokers; whether that took work worth a turn of the loop."""
        ...

    def place_many(self, entries: Sequence[Ownership], names: Sequence[str | None]) -> Sequence[BrokerId | None]:
        """The owner for each of these bundles; `names` are preferred brokers, None for no preference."""
        ...

    def cause(self, entry: Ownership) -> str:
        """The `cause` of the record that gives the bundle to the owner that was chosen last."""
        ...

    def basis(self) -> object:
        """A value that stays equal as long as the same brokers may be given bundles by the same rules."""
        ...


class DutyExecutor:
    """Performs the duties of one term. Calls `deposed` when another broker is known to lead."""

    def __init__(
        self,
        leadership: Leadership,
        channel: Channel,
        coordination: Coordination,
        core: LeaderCore,
        placing: Placer,
        clock_s: Callable[[], float],
        note: Callable[[str], None],
        wake: Callable[[], None],
        deposed: Callable[[str], None],
    ) -> None:
        self._leadership = leadership
        self._channel = channel
        self._coordination = coordination
        self._core = core
        self._placing = placing
        self._clock_s = clock_s
        self._note = note
        self._wake = wake
        self._deposed = deposed
        self._silent_since_s: dict[int, float] = {}
        self._checking: set[int] = set()
        self.steps = channel.replica.steps

    @property
    def unknown_since_s(self) -> float | None:
        """Since when some partition has given no verdict; None while all answer."""
        return min(self._silent_since_s.values(), default=None)

    def perform(self, duties: Iterable[Duty], tasks: asyncio.TaskGroup) -> None:
        """Begin all duties."""
        for duty in duties:
            tasks.create_task(self._one(duty))

    def check_silent(self, tasks: asyncio.TaskGroup) -> None:
        """Publish a no-op to each silent partition; the duty that found it silent may have ended."""
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
                return self._publish(Action.CANCEL, duty.subjects, duty.reason)
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
        """Publish `release(to)` on behalf of a dead holder; `own` for bundles without an owner."""
        groups = await self._grouped(duty.subjects, duty.former)
        if duty.revoked:
            formers = {entry.holder.name for some in groups.values() for entry in some if entry.holder is not None}
            reason = f"in place of {_few(sorted(formers))}"
            records = [
                self._records(Action.RELEASE, _seen(some), reason, to, cause) for (to, cause), some in groups.items()
            ]
        else:
            reason = f"revoked from {duty.former}" if duty.former else "the namespace is eager"
            records = [
                self._records(Action.OWN, _seen(some), reason, to, cause, role=Role.BROKER)
                for (to, cause), some in groups.items()
                if to is not None
            ]
        await self._publish_all(record for some in records for record in some)

    async def _evacuate(self, duty: Evacuate) -> None:
        groups = await self._grouped(duty.subjects, "")
        await self._publish_all(
            record
            for (to, _), some in groups.items()
            if to is not None and to.name != duty.holder.name
            for record in self._records(Action.TRANSFER, _seen(some), duty.reason, to)
        )

    async def _grouped(
        self, subjects: Iterable[Seen], former: str
    ) -> dict[tuple[BrokerId | None, str], list[Ownership]]:
        """The bundles that are still as they were seen, by new owner and cause; prefers former holders, or `former`."""
        groups: dict[tuple[BrokerId | None, str], list[Ownership]] = {}
        remaining = iter(subjects)
        while some := list(islice(remaining, PLACED_AT_ONCE)):
            await self.steps.passed()
            if self._placing.look():
                await self.steps.passed()
            entries = [e for b, seen in some if (e := self._channel.table.get(b)) is not None and e.revision == seen]
            names = [_revoked_from(entry) or former or None for entry in entries]
            for entry, to in zip(entries, self._placing.place_many(entries, names), strict=True):
                groups.setdefault((to, self._placing.cause(entry)), []).append(entry)
        return groups

    async def _publish(self, action: Action, subjects: Iterable[Seen], reason: str) -> None:
        await self._publish_all(self._records(action, subjects, reason))

    def _records(
        self,
        action: Action,
        subjects: Iterable[Seen],
        reason: str,
        to: BrokerId | None = None,
        cause: str = "",
        *,
        role: Role = Role.LEADER,
    ) -> Iterator[tuple[int, Record]]:
        """Records about all these bundles, each for one partition."""
        by_partition: dict[int, list[Subject]] = {}
        for bundle, seen in subjects:
            partition = self._channel.table.partition_of(bundle.namespace)
            by_partition.setdefault(partition, []).append(Subject(bundle, seen))
        record = Record(
            "", action, self._leadership.leader, role, epoch=self._leadership.epoch, to=to, reason=reason, cause=cause
        )
        for partition, chosen in by_partition.items():
            for begin in range(0, len(chosen), BUNDLES_A_RECORD):
                part = tuple(chosen[begin : begin + BUNDLES_A_RECORD])
                yield partition, msgspec.structs.replace(record, subjects=part)

    async def _publish_all(self, records: Iterable[tuple[int, Record]]) -> None:
        """Publish a few records in each turn of the loop, and wait for all verdicts."""
        remaining = iter(records)
        async with asyncio.TaskGroup() as tasks:
            while some := list(islice(remaining, RECORDS_AT_ONCE)):
                await self.steps.passed()
                for partition, record in some:
                    tasks.create_task(self._publish_one(record, partition))

    async def _publish_one(self, record: Record, partition: int) -> Verdict:
        verdict = await self._channel.publish(record, partition)
        if isinstance(verdict, Unknown):
            self._silent_since_s.setdefault(partition, self._clock_s())
        else:
            self._silent_since_s.pop(partition, None)
        self._wake()
        return self._heeded(verdict)

    async def take_partitions(self, root: str) -> bool:
        """The barrier: read back a `lead` record of our epoch in every partition. False: another broker leads.

        `root` is the coordination root in which we were elected; record formats without that field leave it out.
        """
        known = root if self._channel.can_agree else ""
        taken = await asyncio.gather(*(self._take_partition(known, p) for p in range(self._channel.table.partitions)))
        return all(taken)

    async def _take_partition(self, root: str, partition: int) -> bool:
        """Repeat until the partition shows our epoch and our id: the leader of another root may have the same epoch."""
        ours = self._leadership
        while (lead := self._channel.table.lead(partition)) != Lead(ours.epoch, ours.leader):
            if lead.epoch >= ours.epoch:
                self._deposed(f"{lead.leader} leads in epoch {lead.epoch}")
                return False
            seen = self._channel.table.agreed(partition).revision
            verdict = await self._publish_one(
                Record("", Action.LEAD, ours.leader, Role.LEADER, ours.epoch, root=root, seen_agreement=seen), partition
            )
            if isinstance(verdict, Refusal) and self._channel.table.lead(partition).epoch < ours.epoch:
                self._deposed(verdict.detail)
                return False
        return True

    async def move(self, bundle: Bundle, seen: int, to: BrokerId | None, reason: str, cause: str) -> Verdict:
        """Begin one planned move, or an unload if `to` is None; returns the verdict."""
        action = Action.UNLOAD if to is None else Action.TRANSFER
        return self._heeded(await self._channel.publish(self._about(bundle, seen, action, to, reason, cause)))

    async def give(self, bundle: Bundle, seen: int, to: BrokerId, reason: str, cause: str) -> Verdict:
        """Give a bundle without an owner to this broker; returns the verdict."""
        record = self._about(bundle, seen, Action.OWN, to, reason, cause)
        return self._heeded(await self._channel.publish(msgspec.structs.replace(record, role=Role.BROKER)))

    async def tell(self, record: Record) -> Verdict:
        """Publish a no-op that informs the other brokers, in the first partition; returns the verdict."""
        return self._heeded(await self._channel.publish(record, 0))

    async def call_off(self, bundle: Bundle, seen: int, reason: str) -> Verdict:
        """Cancel a transfer that began with the record at offset `seen`, if nothing has followed it."""
        return self._heeded(await self._channel.publish(self._about(bundle, seen, Action.CANCEL, None, reason, "")))

    def _heeded(self, verdict: Verdict) -> Verdict:
        """Pass the verdict on. If it says that another broker leads, stop at once, whatever the election shows."""
        if isinstance(verdict, Refusal) and verdict.reason is Reason.DEPOSED:
            self._deposed(verdict.detail)
        return verdict

    def _about(self, bundle: Bundle, seen: int, action: Action, to: BrokerId | None, reason: str, cause: str) -> Record:
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


def _seen(entries: Iterable[Ownership]) -> Iterator[Seen]:
    return ((entry.bundle, entry.revision) for entry in entries)


def _revoked_from(entry: Ownership) -> str:
    """The holder of a bundle that is being revoked, else empty: if it is back in time, it gets the bundle again."""
    return entry.holder.name if entry.state is State.REVOKING and entry.holder is not None else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
