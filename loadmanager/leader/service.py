"""The shell of election and of one term: campaigns, takes the barrier, ticks the core, performs its duties.

Between elections this broker follows. A leader that is deposed, whose incarnation is fenced, or that makes no progress
on the channel ends its term; the next term starts with an empty memory.

`DutyExecutor` turns the leader's duties into channel records and checked raises. Each duty runs in its own task, so
none queues behind another. A refused record needs no handling: the bundle changed meanwhile, and the next tick sees
how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, assert_never

import msgspec

from loadmanager.cluster.membership import Membership
from loadmanager.leader.core import Cancel, Duty, Evacuate, LeaderCore, LeaderSettings, Place, Raise, Revoke, Seen, View
from statechannel.errors import CoordinationError, CoordinationUnavailable, Deposed, LogUnavailable
from statechannel.law.bundle import Bundle
from statechannel.law.partition import Lead
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Reason, Refusal, Unknown, Verdict
from statechannel.ports import Coordination, Leadership
from statechannel.runtime.channel import Channel

CAMPAIGN_S = 0.5
NO_VERDICTS: str = "the channel gives no verdicts"


class TermSettings(msgspec.Struct, frozen=True):
    """See `loadmanager.settings`."""

    core: LeaderSettings
    monitor_interval_s: float
    publish_timeout_s: float
    lead_timeout_s: float


class Term:
    """What rebalancing needs of a term: its leader, and the executor of moves."""

    def __init__(self, leadership: Leadership, executor: DutyExecutor) -> None:
        self.leadership = leadership
        self.executor = executor


class Leader:
    """Run `run()` for one incarnation. `rebalance` runs beside the duties of each term, e.g. rebalancing rounds.

    `tell_behind` tells other brokers that this one cannot read the log; bundles of the `eager` namespaces get a place
    without a lookup.
    """

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        coordination: Coordination,
        membership: Membership,
        settings: TermSettings,
        placing: Placer,
        clock_s: Callable[[], float],
        note: Callable[[str], None],
        rebalance: Callable[[Term], Awaitable[None]],
        root: str,
        tell_behind: Callable[[], Awaitable[None]],
        eager: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._me = me
        self._channel = channel
        self._coordination = coordination
        self._membership = membership
        self._settings = settings
        self._placing = placing
        self._clock_s = clock_s
        self._note = note
        self._rebalance = rebalance
        self._root = root
        self._tell_behind = tell_behind
        self._eager = eager
        self._woken = asyncio.Event()
        self._ended: str = ""
        self._shown = False
        self._spared = ""
        self._stand_back_until_s = 0.0
        """We hear of the next election first and would win it too. Waiting lets a broker that reaches the log win."""
        self.leading: Leadership | None = None
        """Our own leadership once its barrier is in every partition."""

    def wake(self) -> None:
        """Members or evidence changed: tick soon."""
        self._woken.set()

    async def run(self) -> None:
        """Campaign until cancelled, lead when elected, evict a leader that counts as dead."""
        while True:
            leadership = await self._campaign()
            if leadership is not None:
                await self._lead(leadership)
            else:
                self._woken.clear()
                await _wait(self._woken, CAMPAIGN_S)

    async def _campaign(self) -> Leadership | None:
        present = self._coordination.leadership
        try:
            if present is not None and (reason := self._death_of(present.leader)) is not None:
                if await self._coordination.evict(present):
                    self._note(f"evicted leader: {reason}")
            elif present is not None and present.leader == self._me:
                await self._coordination.resign(present)  # left over from a term whose end we did not see
            elif present is not None:
                return None
            if self._clock_s() < self._stand_back_until_s or self._leaves_it_to_others():
                return None
            table = self._channel.table
            highest = max(table.lead(partition).epoch for partition in range(table.partitions))
            return await self._coordination.campaign(self._me, highest)
        except CoordinationError:
            return None

    def _leaves_it_to_others(self) -> bool:
        """Whether this broker cannot read the log, but another one can."""
        ours = self._membership.peer(self._me)
        return ours is not None and ours.registration.behind and self._another_reads_the_log()

    def _death_of(self, leader: BrokerId) -> str | None:
        """The evidence that a leader is dead, although its session may live on in a later incarnation."""
        peer = self._membership.peers.get(leader.name)
        if peer is not None and peer.broker.incarnation > leader.incarnation:
            return f"{leader} was replaced by {peer.broker}"
        return self._membership.suspected.get(leader)

    async def _lead(self, leadership: Leadership) -> None:
        self._ended, self._shown = "", False
        core = LeaderCore(self._settings.core)
        executor = DutyExecutor(
            leadership,
            self._channel,
            self._coordination,
            core,
            self._placing,
            self._clock_s,
            self._note,
            self.wake,
            self._end,
        )
        self._note(f"elected with epoch {leadership.epoch}")
        try:
            async with asyncio.timeout(self._settings.lead_timeout_s):
                taken = await executor.take_partitions(self._root)
        except TimeoutError:
            taken = False
        if taken:
            self.leading = leadership
            try:
                await self._term(leadership, core, executor)
            finally:
                self.leading = None
        self._note(f"epoch {leadership.epoch} ended: {self._ended or 'no barrier on the channel'}")
        if not taken or self._ended == NO_VERDICTS:
            self._stand_back_until_s = self._clock_s() + self._settings.lead_timeout_s
        if not taken:
            await self._resign(leadership)

    async def _term(self, leadership: Leadership, core: LeaderCore, executor: DutyExecutor) -> None:
        def observe(change: Change) -> None:
            if core.observe(change, self._clock_s()):
                self._woken.set()

        def look_again(_partition: int) -> None:
            core.reloaded()
            self._woken.set()

        self._channel.listen(observe)
        self._channel.replica.on_reload(look_again)
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._rebalanced(Term(leadership, executor))),
                    tasks.create_task(self._watch_progress()),
                ]
                while True:
                    await self._channel.replica.steps.passed()
                    if self._ended:
                        break
                    if not core.unfinished:
                        self._woken.clear()  # events from here on, also during the sweep, ask for another sweep
                    self._tick(leadership, core, executor, tasks)
                    if not core.unfinished or self._membership.safe_mode(self._clock_s()) is not None:
                        await _wait(self._woken, self._pause_s(core))
                for work in beside:
                    work.cancel()
                await self._resign(leadership)  # at once: the last duties wait for verdicts that no longer count
        finally:
            self._channel.unlisten(observe)
            self._channel.replica.off_reload(look_again)

    async def _rebalanced(self, term: Term) -> None:
        await self._rebalance(term)

    async def _watch_progress(self) -> None:
        """End the term if our replica falls behind the log: no broker performs the duties that it does not show.

        The term ends soon if another broker seems to read the log; else only after `lead_timeout_s`, as no other
        broker would do better.
        """
        behind_since_s: float | None = None
        while True:
            await asyncio.sleep(CAMPAIGN_S)
            asked_s = self._clock_s()
            try:
                await self._channel.catch_up(self._settings.publish_timeout_s)
                behind_since_s = None
            except LogUnavailable:
                behind_since_s = asked_s if behind_since_s is None else behind_since_s
                settings, another = self._settings, self._another_reads_the_log()
                limit_s = settings.publish_timeout_s if another else settings.lead_timeout_s
                if self._clock_s() - behind_since_s >= limit_s:
                    await self._tell_behind()  # first: the next leader must not place bundles on us
                    return self._end(NO_VERDICTS)

    def _another_reads_the_log(self) -> bool:
        """Whether another broker is registered that has not said to be behind."""
        return any(peer.broker.name != self._me.name for peer in self._membership.eligible())

    def _tick(self, leadership: Leadership, core: LeaderCore, executor: DutyExecutor, tasks: asyncio.TaskGroup) -> None:
        now_s = self._clock_s()
        if (spared := self._membership.why_spared()) != self._spared:
            self._spared = spared
            if spared:
                self._note(spared)
        executor.check_silent(tasks)
        if self._membership.connected and self._is_over(leadership):
            self._end(f"{self._coordination.leadership} leads")
        elif executor.unknown_since_s is not None and now_s - executor.unknown_since_s > self._settings.lead_timeout_s:
            self._end(NO_VERDICTS)
        elif self._membership.safe_mode(now_s) is None:
            view = View(
                now_s=now_s,
                peers=self._membership.peers,
                suspected=self._membership.suspected,
                heard_s=self._membership.heard_s,
                listening_since_s=self._membership.listening_since_s,
                places=self._placing.basis(),
                eager=self._eager(),
            )
            executor.perform(core.tick(self._channel.table, view), tasks)

    def _is_over(self, leadership: Leadership) -> bool:
        """Returns True if this broker does not lead. Right after the election the watch may not show us yet."""
        seen = self._coordination.leadership
        if seen == leadership:
            self._shown = True
        return seen != leadership and (self._shown or (seen is not None and seen.epoch > leadership.epoch))

    def _pause_s(self, core: LeaderCore) -> float:
        due_s = core.next_deadline_s()
        pause_s = self._settings.monitor_interval_s
        if self._membership.safe_mode(self._clock_s()) is not None:
            return min(pause_s, 0.2)
        return pause_s if due_s is None else min(pause_s, max(0.005, due_s - self._clock_s()))

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._woken.set()

    async def _resign(self, leadership: Leadership) -> None:
        try:
            await self._coordination.resign(leadership)
        except CoordinationError:
            return  # the end of the session or an eviction ends the leadership


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


PLACED_AT_ONCE = BUNDLES_A_RECORD
"""How many bundles are placed in one turn of the loop: about a millisecond among 900 brokers."""
RECORDS_AT_ONCE = 25
"""How many records are published in one turn of the loop."""


class Placer(Protocol):
    """Chooses owners among the present brokers."""

    def look(self) -> bool:
        """Refresh what is known of the brokers. Returns True if that took work worth a turn of the loop."""
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

    async def call_off(self, bundle: Bundle, seen: int, reason: str, cause: str) -> Verdict:
        """Cancel a transfer that began with the record at offset `seen`, if nothing has followed it.

        `cause`, the decision, tells other brokers that its target did not fail.
        """
        return self._heeded(await self._channel.publish(self._about(bundle, seen, Action.CANCEL, None, reason, cause)))

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
