"""Coordinates the groups of this broker's bundles: a service that the broker hosts, built on the embedding API alone.

Every request is admitted for the group's key, decided by `group.py`, written by `store.py`, and answered when that was
read back. It runs on the loop that started the broker: never on the one that renews proofs. A heartbeat without news
may wait for some, outside of admission, so that no move of the bundle waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import msgspec

from loadmanager.client.redirection import Moved, NotServing
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.coordinator.group import LARGE, Group
from loadmanager.consumers.coordinator.hosted import Hosted, has_news
from loadmanager.consumers.coordinator.kept_offsets import UNKNOWN_S, keep, period_s, start_of
from loadmanager.consumers.coordinator.lag_topic import EVERY_S as REPORTED_EVERY_S
from loadmanager.consumers.coordinator.lag_topic import GroupLags, LagTopic
from loadmanager.consumers.coordinator.lag_watch import LagFollower
from loadmanager.consumers.coordinator.messages import PROTOCOL, Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.ports import Admits, Admitted, Topics
from loadmanager.consumers.coordinator.records import (
    Description,
    GroupRecord,
    Partition,
    Rebalance,
    Record,
    Settings,
    Written,
    key_of,
)
from loadmanager.consumers.coordinator.store import Fenced, GroupStore, namespace_of
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.model.host import BundleLoad, Destination
from statechannel.errors import LogError, LogUnavailable, WriterFenced
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import MAX_HAND_OFF_BYTES, Token

TICK_S = 0.1
TOPICS_EVERY_S = 5.0
LAG_EVERY_S = 10.0
RETENTION_EVERY_S = 600.0
KEPT_AT_ONCE = 4
"""Groups of one writer whose offsets are committed again at the same time."""
TURN = 100
"""Groups that are taken over in one turn of the loop."""
STEP = 1_000
"""Partitions of a large group that are given to members at once."""
TAKEN_AT_ONCE = 2_000
"""Groups that are taken over together."""
EMPTY_STEPS = 28
"""In so many steps the time is counted after which a group without members is forgotten."""
GROUPS = 10_000
"""Groups in one namespace: a name that every run makes anew must not fill the log."""
STORED_WITHIN_S = 10.0
"""After so long no further attempt to store offsets begins."""
GONE_AFTER = 3
"""A topic is gone if it was not seen so often: while Kafka starts again it may not know all of its topics."""

T = TypeVar("T")
_log = logging.getLogger("loadmanager.consumers")


class HandOff(msgspec.Struct):
    """What a coordinator hands to the next one. `is_settled`: all its commits have ended. `remaining_ms`: of sessions,
    by group and member."""

    is_settled: bool
    remaining_ms: dict[str, dict[str, int]] = {}


_hand_off = msgspec.msgpack.Decoder(HandOff)


class Coordinator:
    """A `BundleHost` whose keys are groups. `start()` before the broker, then `run()` for as long as it lives.

    `clock_s` is steady. `attached` or `broker` says whose bundles it has, before that broker starts.
    """

    admin_protocols = (PROTOCOL,)
    """Members ask it at the broker's admin endpoint."""

    broker: Admits
    loop: asyncio.AbstractEventLoop | None = None
    """Where everything here runs: set by `attached`, or by `start`."""

    def attached(self, broker: Admits) -> None:
        """Coordinate the groups of this broker's bundles. Called on the service's loop."""
        self.broker = broker
        self.loop = asyncio.get_running_loop()

    def __init__(
        self,
        store: GroupStore,
        topics: Topics,
        clock_s: Callable[[], float],
        topics_every_s: float = TOPICS_EVERY_S,
        lag_every_s: float = LAG_EVERY_S,
        retention_s: float = 604_800.0,
        reported_every_s: float = REPORTED_EVERY_S,
    ) -> None:
        self._store = store
        self._topics = topics
        self._clock_s = clock_s
        self._topics_every_s = topics_every_s
        self._retention_s = retention_s
        self._hosted: dict[str, Hosted] = {}
        self._used: dict[str, None] = {}
        """Groups that may have members, in order; each that is looked at for a request, or taken over, may get some."""
        self._bundles: dict[Bundle, Token] = {}
        self._sizes: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self._look = asyncio.Event()
        self._keep_every_s = UNKNOWN_S
        self._keeping: set[str] = set()
        self._settled = set[str]()
        """Groups of which a commit has ended a moment ago."""
        self._at_once = WeakValueDictionary[str, asyncio.Semaphore]()
        """By writer, while somebody commits offsets again."""
        self.lag = LagFollower(topics.offsets, clock_s, lag_every_s)
        self._reports = LagTopic(store.log)
        self._reported_every_s = reported_every_s
        self.waiting = 0
        """Heartbeats that wait for news."""
        self._sampled_s = clock_s()

    async def start(self) -> None:
        """Open the store. Raises LogUnavailable, TopicMismatch; may be tried again."""
        self.loop = asyncio.get_running_loop()
        await self._store.start()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store.run())
            group.create_task(self._expire())
            group.create_task(self._follow_topics())
            group.create_task(self._follow_retention())
            group.create_task(self._forget_empty())
            group.create_task(self.lag.run(self._with_members, self._weigh))
            group.create_task(self._report_lag())

    @property
    def coordinator(self) -> Self:
        """By this the admin endpoint knows that its broker coordinates groups."""
        return self

    @property
    def offsets(self) -> GroupOffsets:
        """What Kafka knows of its groups and topics."""
        return self._topics.offsets

    # --- members

    async def heartbeat(self, name: str, member: str, beat: Beat, wait_s: float = 0.0) -> Answer | Refusal:
        """Answer a heartbeat; without news for the member, after `wait_s` at the latest.

        Raises Moved, NotServing, NotFound, InvalidName, Invalid, Fenced.
        """
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
            hosted.beats += 1
            unknown = set(beat.subscription.topics) - hosted.begun.keys()
            answer = hosted.heartbeat(member, beat, self._now_ms())
            if unknown:
                self._look.set()
            await self._promised(name, hosted, member)
            if not isinstance(answer, Refusal):
                hosted.group.told(member, answer, self._now_ms())
        if isinstance(answer, Refusal) or not wait_s or has_news(answer, beat):
            return answer
        self.waiting += 1
        try:
            await hosted.until_news(member, beat, wait_s)
        finally:
            self.waiting -= 1
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
            if member not in hosted.group.members:
                return hosted.heartbeat(member, beat, self._now_ms())  # refuses
            answer = hosted.answer(member, beat.generation)
            await self._promised(name, hosted, member)
            hosted.group.told(member, answer, self._now_ms())
            return answer

    async def leave(self, name: str, member: str, process: str | None = None) -> None:
        """A member has stopped reading, and goes; nothing happens if it is another process. Raises as `heartbeat`."""
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
            hosted.group.leave(member, self._now_ms(), process)
            await self._promised(name, hosted)

    async def commit(
        self,
        name: str,
        member: str,
        epoch: int,
        revision: int,
        offsets: Mapping[Partition, int],
        pulled: Mapping[Partition, int] | None = None,
        sequence: int = 0,
        coordinator: str = "",
    ) -> Mapping[Partition, Refusal]:
        """Store where the group goes on, for those of the partitions that the member holds; the others are refused.

        `pulled`: what the member has pulled, for the group's backlog. `sequence` grows with each commit of a member,
        and `coordinator` is the one that it heard of last (`Answer.coordinator`): so a request that was held up on its
        way is refused. Without them, the requests of a member count in the order in which they come.

        Raises as `heartbeat`, and as `Topics.commit`.
        """
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
            here = str(hosted.token)
            if coordinator not in ("", here):
                late = Refusal(Why.LATE, f"{name} has moved: send the commit again, to coordinator {here}", here)
                return dict.fromkeys(offsets, late)
            await hosted.until_stored(offsets)
            refused = hosted.group.refusals(member, epoch, revision, offsets, sequence)
            allowed = {partition: offset for partition, offset in offsets.items() if partition not in refused}
            with self._storing(name, hosted, allowed):
                await self._store_offsets(name, hosted, allowed, pulled or {})
            return refused

    # --- administrators

    async def describe(self, name: str) -> Description:
        """Raises as `heartbeat`; NotFound if the group has no members and no settings."""
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim, create=False)
            group = hosted.group
            holders = dict(group.holders)
            targets = {each: group.target(each) for each, holder in holders.items() if group.target(each) != holder}
            its = group.settings, group.generation, group.members
            return Description(name, *its, holders, targets, group.unread())

    async def rebalances(self, name: str) -> list[Rebalance]:
        """The last rebalances, newest first. Raises as `describe`."""
        async with self.broker.admit(name) as claim:
            return (await self._group(name, claim, create=False)).group.measures.rebalances()

    async def configure(self, name: str, settings: Settings) -> None:
        """Change strategy or mode. Raises as `heartbeat`."""
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
            hosted.group.configure(settings, self._now_ms())
            await self._promised(name, hosted)

    async def rebalance(self, name: str, weights: Mapping[Partition, float] | None = None) -> None:
        """Ask the strategy anew, with rates or lags if they are given. Raises as `heartbeat`."""
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim, create=False)
            hosted.group.rebalance(weights, self._now_ms())
            await self._promised(name, hosted)

    async def reset(self, name: str, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Let the group go on at these offsets, while it runs: its members give these partitions up, and read them
        again when the offsets are stored. A group without members need not be known here.

        Raises as `heartbeat` and as `Topics.commit`; Conflict if one of the partitions is being reset already;
        Unavailable if one is not given up in time, and NotServing if the group moves meanwhile: nothing is stored then.
        """
        async with self._withheld(name, offsets) as hosted:
            is_free = await hosted.until_free(offsets, timeout_s)
            if not is_free and not hosted.is_gone:
                who = hosted.holds_up(offsets)
                raise Unavailable(f"{who} did not stop within {timeout_s:g} s: no offset of {name} was changed")
            await self._commit_free(name, hosted, offsets)

    async def delete(self, name: str) -> None:
        """Forget a group without members, with its settings. Kafka deletes its offsets when they expire.

        Raises as `describe`; Conflict if it has members, or is being reset.
        """
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim, create=False)
            if hosted.group.members:
                raise Conflict(f"{name} has {len(hosted.group.members)} members: stop them first")
            if hosted.resetting or hosted.unsure:
                raise Conflict(f"offsets of {name} are being stored: try again when that has ended")
            await self._forget(name, hosted)

    def groups(self) -> Iterator[str]:
        """All groups of the cluster, as far as the store has been read."""
        return iter(self._store.table)

    # --- the load manager's hooks

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up: every coordinator has read the groups of all bundles."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """Fence former owners off, and take their groups over."""
        await self._store.catch_up()
        left = _hand_off.decode(hand_off) if hand_off else HandOff(is_settled=False)
        names = [name for name in self._store.table if Key.parse(name) in bundle]
        for at in range(0, len(names), TAKEN_AT_ONCE):
            await self._take_over(names[at : at + TAKEN_AT_ONCE], bundle, token, left)
        self._bundles[bundle] = token

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:  # noqa: ARG002
        """End requests in progress, and hand over what is left of the sessions: all else is in the store.

        So a member that is dead stays no longer for it. If that is too much, the next owner gives whole sessions.
        """
        is_quiet = await self.broker.quiesce(bundle)
        now_ms, mine = self._now_ms(), [each for each in self._hosted.values() if each.bundle == bundle]
        is_settled = is_quiet and not any(each.unsure for each in mine)
        remaining_ms = {each.group.name: each.group.remaining_ms(now_ms) for each in mine}
        hand_off = msgspec.msgpack.encode(HandOff(is_settled, remaining_ms))
        self._drop(bundle)
        return hand_off if len(hand_off) <= MAX_HAND_OFF_BYTES else None

    async def abandon(self, bundle: Bundle) -> None:
        """Forget the groups, and answer nobody any more."""
        self._drop(bundle)

    def load(self) -> Mapping[Bundle, BundleLoad]:
        """Groups as keys, members as sessions, heartbeats as messages in, and what members read as messages out."""
        now_s = self._clock_s()
        window_s, self._sampled_s = max(now_s - self._sampled_s, 0.001), now_s
        found = dict.fromkeys(self._bundles, BundleLoad())
        for hosted in self._hosted.values():
            so_far = found.get(hosted.bundle, BundleLoad())
            found[hosted.bundle] = msgspec.structs.replace(
                so_far,
                keys=so_far.keys + 1,
                sessions=so_far.sessions + len(hosted.group.members),
                in_rate_msg_s=so_far.in_rate_msg_s + hosted.beats / window_s,
                out_rate_msg_s=so_far.out_rate_msg_s + self.lag.consumed_per_s(hosted.group.name),
            )
            hosted.beats = 0
        return found

    # --- within

    async def _take_over(self, names: Sequence[str], bundle: Bundle, token: Token, left: HandOff) -> None:
        """Three writes for all: the fences, then what is valid, then the end of what is outdated."""
        found = await self._store.take_over(names, token)
        if not left.is_settled:
            own = [records.get("") for records in found.values()]
            await self._fence({each.writer for each in own if isinstance(each, GroupRecord)})
        taken: dict[str, Hosted] = {}
        entries: dict[str, list[Written]] = {}
        for name, records in found.items():
            run = _run_apart if _size(records) > LARGE else _run
            remaining_ms, offset_ms = left.remaining_ms.get(name), self._wall_offset_ms()
            group = await run(partial(Group.restored, name, records, self._now_ms(), remaining_ms, offset_ms))
            group.writer = self._topics.writer(name)
            taken[name] = Hosted(group, bundle, token)
            if not group.is_empty:
                topics = group.record().topics
                self._sizes = {**topics, **self._sizes}
                taken[name].begin(topics, self._now_ms())
            entries[name] = await run(partial(group.written, token))
            if len(taken) % TURN == 0:
                await asyncio.sleep(0)
        await self._store.write_all(token, entries)
        self._hosted |= taken
        self._used |= {name: None for name, hosted in taken.items() if not hosted.group.is_empty}
        await self._store.write_all(token, {name: self._store.table.outdated(name, token) for name in names})

    async def _fence(self, writers: set[str]) -> None:
        """What former coordinators sent to Kafka is stored by now, or never will be. Raises LogUnavailable."""
        try:
            await self._topics.fence(writers - {""})
        except LogUnavailable:
            raise
        except LogError as error:  # then nobody commits here, and our members are told
            _log.warning("late commits of a former coordinator cannot be refused: %s", error)

    @contextmanager
    def _storing(self, name: str, hosted: Hosted, partitions: Collection[Partition]) -> Generator[None]:
        """Around a commit; who waited for its end gets the partitions then."""
        try:
            with hosted.storing(partitions, self._now_ms):
                yield
        finally:
            self._settled.add(name)

    async def _store_offsets(
        self, name: str, hosted: Hosted, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]
    ) -> None:
        """Commit under the name that the group's record has, so that the next coordinator can have it fenced.

        Before each attempt the group is still ours; an attempt ends when it is not. Raises NotServing, Fenced, and as
        `Topics.commit`.
        """
        until_s = self._clock_s() + STORED_WITHIN_S
        while True:
            hosted.group.writer = self._topics.writer(name)
            await self._promised(name, hosted)
            if not offsets:
                return
            if hosted.group.writer == self._topics.writer(name):
                try:
                    async with hosted.attempt(offsets):
                        await self._topics.commit(name, offsets, pulled)
                except WriterFenced as error:
                    if self._clock_s() > until_s:
                        raise LogUnavailable(f"offsets of {name} are not stored yet: {error}") from error
                    await asyncio.sleep(TICK_S)
                else:
                    return

    async def _group(self, name: str, claim: Admitted, *, create: bool = True) -> Hosted:
        hosted = self._hosted.get(name)
        if hosted is None and self._bundles.get(claim.bundle) == claim.token:
            if not create:
                raise NotFound(f"no group is called {_id_of(name)}: it has had no members yet")
            if self._store.table.beside(name) >= GROUPS:
                raise Invalid(
                    f"{namespace_of(name)} has {GROUPS} groups, the most it may have: groups delete removes one"
                )
            group = Group(name, wall_offset_ms=self._wall_offset_ms())
            group.writer = self._topics.writer(name)
            hosted = self._hosted[name] = Hosted(group, claim.bundle, claim.token)
        self._used[name] = None
        if hosted is None or hosted.token != claim.token:
            raise NotServing(f"the groups of {claim.bundle} are not loaded")
        return hosted

    @asynccontextmanager
    async def _withheld(self, name: str, partitions: Collection[Partition]) -> AsyncGenerator[Hosted]:
        """Nobody may read these meanwhile. The bundle may move: no admission waits for members."""
        async with self.broker.admit(name) as claim:
            hosted = await self._group(name, claim)
        hosted.begin_reset(partitions)
        hosted.group.withhold(partitions, self._now_ms())
        try:
            await self._publish(name, hosted)
            yield hosted
        finally:
            hosted.resetting.difference_update(partitions)
            hosted.group.give_back(partitions, self._now_ms())
            if not hosted.is_gone:
                await self._publish(name, hosted)
            if not (hosted.is_gone or hosted.group.generation or hosted.resetting or hosted.unsure):
                await self._forget(name, hosted)  # a group of Kafka's stays one

    async def _commit_free(self, name: str, hosted: Hosted, offsets: Mapping[Partition, int]) -> None:
        """Store what nobody reads; a planned move waits for it. Raises NotServing if the group is not ours any more."""
        moved = NotServing(f"{name} moved while its offsets were reset: none was changed; try again", 0.1)
        try:
            async with self.broker.admit(name) as claim:
                if hosted.is_gone or claim.token != hosted.token:
                    raise moved
                await self._store_offsets(name, hosted, offsets, offsets)
        except Moved:
            raise moved from None

    async def _written(self, name: str, hosted: Hosted, member: str = "") -> None:
        """What the last event changed is in the log, and still counts there; so is what others changed of this member.
        Raises Fenced."""
        entries = hosted.group.written(hosted.token)
        if entries:
            hosted.tell()
        if hosted.dividing is None and hosted.group.is_divided and not hosted.is_gone:
            hosted.dividing = asyncio.create_task(self._divide(name, hosted))
        await self._store.write(name, hosted.token, entries, key_of(name, hosted.token, member) if member else "")

    async def _promised(self, name: str, hosted: Hosted, member: str = "") -> None:
        """As `_written`; and while that was read back the bundle was still ours, so every later owner sees it.

        The fence of a later owner stops us only in groups that it knew. Raises Fenced, NotServing.
        """
        await self._written(name, hosted, member)
        claim = self.broker.claim(name)
        if claim is None or claim.token != hosted.token:
            raise NotServing(f"{hosted.bundle} is not served here any more")

    def _drop(self, bundle: Bundle) -> None:
        self._bundles.pop(bundle, None)
        for name, hosted in tuple(self._hosted.items()):
            if hosted.bundle == bundle:
                del self._hosted[name]
                hosted.end()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self._now_ms()
            for name in tuple(self._settled):
                self._settled.discard(name)
                if name in self._hosted:
                    await self._publish(name, self._hosted[name])
            for name, hosted in self._in_use():
                deadline_ms = hosted.group.next_deadline_ms()
                if deadline_ms is not None and deadline_ms <= now_ms:
                    over = hosted.group.expire(now_ms)
                    _log.info("%s: the sessions of %s are over", name, ", ".join(over))
                    await self._publish(name, hosted)

    async def _forget(self, name: str, hosted: Hosted) -> None:
        """Who joins meanwhile begins a new one, which is written later."""
        del self._hosted[name]
        await self._reports.delete(_id_of(name), hosted.group.reported)
        with suppress(Fenced):
            await self._store.write(name, hosted.token, [(key_of(name, hosted.token), None)])

    async def _forget_empty(self) -> None:
        step_s = self._retention_s / EMPTY_STEPS
        while True:
            await asyncio.sleep(step_s)
            for name, hosted in tuple(self._hosted.items()):
                is_over = hosted.group.passed(step_s) >= self._retention_s
                if is_over and self._hosted.get(name) is hosted and not (hosted.resetting or hosted.unsure):
                    _log.info("%s is forgotten: it has had no members for %g s", name, self._retention_s)
                    await self._forget(name, hosted)
                else:
                    await self._publish(name, hosted)

    async def _follow_retention(self) -> None:
        while True:
            try:
                self._keep_every_s = period_s(await self._topics.retention_s())
            except Exception as error:  # noqa: BLE001 - as for topics
                _log.info("how long Kafka keeps offsets is not known: %s", error)
            await asyncio.sleep(RETENTION_EVERY_S)

    async def _follow_topics(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._see_topics()
                for name, hosted in self._in_use():
                    is_due = hosted.is_due(self._sizes, self._clock_s(), self._keep_every_s)
                    if is_due and name not in self._keeping:
                        self._keeping.add(name)
                        tasks.create_task(self._keep(name, hosted))
                self._look.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._topics_every_s):
                        await self._look.wait()

    async def _see_topics(self) -> None:
        used = self._in_use()
        wanted = {topic for _, hosted in used for topic in hosted.group.wanted_topics()}
        near = {topic for _, hosted in used if hosted.group.are_racks_wanted for topic in hosted.group.wanted_topics()}
        try:
            seen = await self._topics.sizes(wanted) if wanted else {}
            racks = await self._topics.offsets.racks(near) if near else {}
        except Exception as error:  # noqa: BLE001 - whatever Kafka's client says, the groups keep what they know
            _log.warning("the topics of the groups cannot be seen: %s", error)
            return
        self._missed = {topic: self._missed.get(topic, 0) + 1 for topic in wanted - seen.keys()}
        gone = {topic for topic, times in self._missed.items() if times >= GONE_AFTER}
        self._sizes = {topic: size for topic, size in {**self._sizes, **seen}.items() if topic not in gone}
        for name, hosted in self._in_use():
            if hosted.group.are_racks_wanted and hosted.group.wanted_topics() <= near:
                hosted.group.set_racks(racks, self._now_ms())
            hosted.begin(
                {each: min(its, self._sizes.get(each, 0)) for each, its in hosted.begun.items() if each in self._sizes},
                self._now_ms(),
            )
            await self._publish(name, hosted)

    async def _keep(self, name: str, hosted: Hosted) -> None:
        """Commit the group's offsets again, and its first ones; then members may read the partitions."""
        at_once = self._at_once.setdefault(self._topics.writer(name), asyncio.Semaphore(KEPT_AT_ONCE))
        try:
            async with at_once, self.broker.admit(name) as claim:
                if hosted.is_gone or claim.token != hosted.token:
                    return
                sizes = dict(self._sizes)
                partitions = hosted.to_keep(sizes)
                begun = hosted.begun
                reset = {topic for topic, number in hosted.resetting if number >= begun.get(topic, 0)}
                start = start_of(hosted.group.members.values())
                with self._storing(name, hosted, partitions):
                    store = partial(self._store_offsets, name, hosted)
                    waiting = await keep(self._topics, name, partitions, start, store)
                    hosted.unsure.difference_update(partitions)
                if waiting:
                    _log.warning("%s waits for leaders of partitions of %s", name, ", ".join(sorted(waiting)))
                hosted.kept_s = self._clock_s()
                began = {each for each, _ in partitions} - waiting - reset
                hosted.begin({**hosted.begun, **{each: sizes[each] for each in began}}, self._now_ms())
                await self._publish(name, hosted)
        except (Moved, NotServing, Fenced):
            pass
        except Exception as error:  # noqa: BLE001 - whatever Kafka's client says, the other groups go on
            _log.warning("the offsets of %s cannot be committed again: %s", name, error)
            is_final = isinstance(error, LogError) and not isinstance(error, LogUnavailable)
            if is_final and not hosted.is_gone:  # members read, and their own commits tell them why not
                hosted.begin(self._sizes, self._now_ms())
                await self._publish(name, hosted)
        finally:
            self._keeping.discard(name)

    async def _report_lag(self) -> None:
        """At the end of each minute of the wall clock, so that each minute has one report of what was read in it."""
        every_s = self._reported_every_s
        while True:
            await asyncio.sleep(every_s - time.time() % every_s)
            try:
                await self._report_once()
            except Exception as error:  # noqa: BLE001 - whatever the log says, the groups go on
                _log.warning("the lag of the groups is not reported: %s", error)

    async def _report_once(self) -> None:
        found: list[tuple[str, Hosted, GroupLags]] = []
        since_s, offset_ms = self._clock_s() - self._reported_every_s, self._wall_offset_ms()
        for name, hosted in self._in_use():
            reading = self.lag.newest(name)
            if reading is not None and reading.at_s >= since_s:
                group, at_ms = hosted.group, int(reading.at_s * 1000) + offset_ms
                lags = GroupLags(_id_of(name), at_ms, reading.lags, dict(group.holders), group.generation)
                found.append((name, hosted, lags))
        for name, hosted, lags in found:  # the record first: who forgets the group must know what to delete
            sizes, before = lags.sizes(), hosted.group.reported
            hosted.group.reported = {**before, **{each: max(n, before.get(each, 0)) for each, n in sizes.items()}}
            await self._publish(name, hosted)
        here = [each for each in found if not each[1].is_gone]
        await self._reports.report([lags for _, _, lags in here])
        for name, hosted, lags in here:
            over = {each: n for each, n in hosted.group.reported.items() if each not in lags.sizes()}
            if over:
                await self._reports.delete(lags.group, over)
                hosted.group.reported = lags.sizes()
                await self._publish(name, hosted)

    async def _weigh(self, name: str, weights: Mapping[Partition, float]) -> None:
        """Divide a group again for what its partitions weigh, if that helps."""
        hosted = self._hosted.get(name)
        if hosted is not None:
            hosted.group.weigh(weights, self._now_ms())
            await self._publish(name, hosted)

    async def _divide(self, name: str, hosted: Hosted) -> None:
        """Divide a large group: on a thread, for it may take seconds; then step by step, each in the log before the
        next, so that nothing else waits long."""
        try:
            while not hosted.is_gone and (plan := hosted.group.plan()) is not None:
                division = await asyncio.to_thread(plan)
                hosted.group.take(division, self._now_ms())
                while not hosted.is_gone:
                    is_more = hosted.group.place(STEP, self._now_ms())
                    await self._publish(name, hosted)
                    if not is_more:
                        break
        finally:
            hosted.dividing = None

    def _in_use(self) -> list[tuple[str, Hosted]]:
        """Groups that have members, or commits without an end. Thousands of others cost nothing."""
        found: list[tuple[str, Hosted]] = []
        for name in tuple(self._used):
            hosted = self._hosted.get(name)
            if hosted is not None and (hosted.unsure or not hosted.group.is_empty):
                found.append((name, hosted))
            else:
                del self._used[name]
        return found

    def _with_members(self) -> list[str]:
        return [name for name, hosted in self._in_use() if not hosted.group.is_empty]

    async def _publish(self, name: str, hosted: Hosted) -> None:
        """As `_written`, where nobody waits for it."""
        with suppress(Fenced):
            await self._written(name, hosted)

    def _now_ms(self) -> int:
        return int(self._clock_s() * 1000)

    def _wall_offset_ms(self) -> int:
        return int(time.time() * 1000) - self._now_ms()


def _id_of(name: str) -> str:
    """The `group.id` of a group."""
    return name.partition("://")[2]


def _size(records: Mapping[str, Record]) -> int:
    """How many members and partitions the group of these records has."""
    own = records.get("")
    return len(records) + (sum(own.topics.values()) if isinstance(own, GroupRecord) else 0)


async def _run(job: Callable[[], T]) -> T:
    return job()


async def _run_apart(job: Callable[[], T]) -> T:
    """On another thread: for a group that nobody else knows yet."""
    return await asyncio.to_thread(job)
