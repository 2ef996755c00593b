"""The shell of election and of one term: campaigns, takes the barrier, ticks the core, performs its duties.

Between elections this broker follows. A leader that is deposed, whose incarnation is fenced, or that makes no progress
on the channel ends its term; the next term starts with an empty memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from loadmanager.cluster.membership import Membership
from loadmanager.leader.core import LeaderCore, LeaderSettings, View
from loadmanager.leader.duties import DutyExecutor, Placer
from statechannel.errors import CoordinationError, LogUnavailable
from statechannel.law.record import BrokerId
from statechannel.law.verdict import Change
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
        self._stand_back_until_s = 0.0
        """We would win the next election too, as we learn of it first: so a broker that reaches the log goes first."""
        self.leading: Leadership | None = None
        """Our own leadership once its barrier is in every partition."""

    def wake(self) -> None:
        """Members or evidence changed: tick soon."""
        self._woken.set()

    async def run(self) -> None:
        """Campaign for ever, lead when elected, evict a leader that counts as dead."""
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
        """End the term if our replica falls behind the log: nobody performs the duties that it does not show.

        The term ends soon if another broker seems to read the log; else only after `lead_timeout_s`, as nobody would do
        better.
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
        """Whether another broker leads, or nobody. Right after the election the watch may not show us yet."""
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
