"""Finds the broker that serves a key. Any broker answers from its own replica, and assigns unowned bundles.

A lookup of a bundle on its way waits until it has arrived, up to a time-out. Concurrent lookups of one bundle cost one
record: the first one publishes, the others wait for the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from loadmanager.cluster.membership import Membership
from loadmanager.errors import NotFound, Unavailable
from loadmanager.model.registration import Peer
from statechannel.errors import StateChannelError
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Action, BrokerId, Record, Subject, Token
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.runtime.channel import Channel
from statechannel.runtime.durations import Durations
from statechannel.runtime.tasks import Turnstile

ANSWERED = frozenset({State.ASSIGNED, State.TRANSFERRING, State.SPLITTING})
RECHECK_S = 0.5
"""A waiting lookup looks again after this time, since an owner may become live again without a record."""

FIRST_REST_S, LAST_REST_S = 0.1, 2.0

PLACED_AT_ONCE = 50
"""Bundles placed in one turn of the loop."""

RECORDS_AT_ONCE = 25
"""Records about placed bundles that begin in one turn of the loop."""

QUARANTINE_RETRY_S = 30.0
DEFERRED_AT_ONCE = 25
"""Lookups that begin to wait in one turn of the loop: one request may ask for a thousand keys."""

WOKEN_AT_ONCE = 100
"""Waiting lookups that look again in one turn of the loop: one record, or one moment, wakes any number of them."""

DEFERRED_LIMIT = 20_000
"""Lookups that may wait at one broker at the same time; further ones get Unavailable."""


class LookupCounts(msgspec.Struct):
    """Outcomes of lookups since this incarnation began. `waiting` is how many wait at this moment.

    `at_once` counts answers of `peek` on the endpoints' thread, which alone writes it; the control loop writes the
    rest.
    """

    answered: int = 0
    at_once: int = 0
    deferred: int = 0
    not_found: int = 0
    unavailable: int = 0
    waiting: int = 0


class Located(msgspec.Struct, frozen=True, gc=False):
    """Who serves a key. `peer` is None only if the coordination service is out of reach and never gave the owner."""

    bundle: Bundle
    owner: BrokerId
    peer: Peer | None
    token: Token


class Lookup:
    """Answers lookups for one broker. `place` decides who gets each unowned bundle, None if no broker can."""

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        membership: Membership,
        place: Callable[[Sequence[Ownership]], Sequence[BrokerId | None]],
        clock_s: Callable[[], float],
        quarantine: Callable[[Bundle], str] = lambda _: "",
        why_nowhere: Callable[[Ownership], str] = lambda _: "",
        look: Callable[[], bool] = lambda: False,
        cause: Callable[[Ownership], str] = lambda _: "",
    ) -> None:
        self._me = me
        self._channel = channel
        self._membership = membership
        self._place = place
        self._clock_s = clock_s
        self._quarantine = quarantine
        self._why_nowhere = why_nowhere
        self._look = look
        self._cause = cause
        self._wanted: dict[Bundle, None] = {}
        """Unowned bundles that were asked for and are not placed yet; those of one turn of the loop go together."""
        self._placing: asyncio.Task[None] | None = None
        self._assigning: dict[Bundle, asyncio.Task[None]] = {}
        self._given_back: dict[Bundle, int] = {}
        self.counts = LookupCounts()
        self.waited = Durations()
        """How long deferred lookups waited, with any outcome."""
        self._waits: set[asyncio.Future[None]] = set()
        self._closed = False
        self._turnstile = Turnstile(DEFERRED_AT_ONCE)
        self._records = Turnstile(RECORDS_AT_ONCE)
        self._woken = Turnstile(WOKEN_AT_ONCE)

    def peek(self, topic: Key) -> Located | None:
        """The answer if there is one at this moment; changes nothing. Any thread may call it."""
        entry = self._channel.table.locate(topic)
        if entry is None or entry.state not in ANSWERED or entry.holder is None:
            return None
        if not self._membership.is_live(entry.holder, self._clock_s()):
            return None
        peer = self._membership.peer(entry.holder) or self._membership.peers.get(entry.holder.name)
        return Located(entry.bundle, entry.holder, peer, self._channel.table.token(entry))

    async def locate(self, topic: Key, timeout_s: float) -> Located:
        """The answer as soon as there is one. Raises NotFound (no such namespace), Unavailable (not in time)."""
        located = self.peek(topic)
        if located is None:
            located = await self._deferred(topic, timeout_s)
        self.counts.answered += 1
        return located

    async def _deferred(self, topic: Key, timeout_s: float) -> Located:
        counts = self.counts
        if counts.waiting >= DEFERRED_LIMIT:
            counts.unavailable += 1
            raise Unavailable(f"{counts.waiting} lookups wait here already; try again")
        counts.deferred += 1
        counts.waiting += 1
        began_s = self._clock_s()
        try:
            await self._turnstile.passed()
            return await self._await(topic, timeout_s)
        except NotFound:
            counts.not_found += 1
            raise
        except TimeoutError:
            counts.unavailable += 1
            entry = self._channel.table.locate(topic)
            raise Unavailable(f"no owner within {timeout_s:g} s: {self._state_of(entry)}; try again") from None
        finally:
            counts.waiting -= 1
            self.waited.add(self._clock_s() - began_s)

    async def _await(self, topic: Key, timeout_s: float) -> Located:
        """Wait for the answer. Raises NotFound, Unavailable, TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self._closed:
            located = self.peek(topic)
            if located is not None:
                return located
            entry = self._channel.table.locate(topic)
            if entry is None:
                raise NotFound(f"there is no namespace {topic.namespace}; create it first")
            if loop.time() >= deadline_s:
                raise TimeoutError
            if entry.state is State.UNASSIGNED:
                self._refuse_quarantined(entry)
                self._assign(entry)
            changed = self._channel.next_change(entry.bundle)
            alarm = loop.call_at(min(deadline_s, loop.time() + RECHECK_S), _wake, changed)
            self._waits.add(changed)
            try:
                await changed
            finally:
                alarm.cancel()
                self._waits.discard(changed)
            await self._woken.passed()
        self.counts.unavailable += 1
        raise Unavailable("this broker is leaving, or was fenced and starts again; ask another one, or try again")

    def _state_of(self, entry: Ownership | None) -> str:
        if entry is None:
            return "its namespace vanished"
        nowhere = self._why_nowhere(entry) if entry.state is State.UNASSIGNED else ""
        return f"{entry.bundle} is {entry.state}, " + (nowhere or f"holder {entry.holder}")

    def _refuse_quarantined(self, entry: Ownership) -> None:
        reason = self._quarantine(entry.bundle)
        if reason:
            self.counts.unavailable += 1
            raise Unavailable(
                f"{entry.bundle} is quarantined, so no broker gets it: {reason}. "
                f"To end the quarantine: loadmanager bundles release-quarantine {entry.bundle}",
                QUARANTINE_RETRY_S,
            )

    def _assign(self, entry: Ownership) -> None:
        if entry.bundle in self._assigning:
            return
        self._wanted[entry.bundle] = None
        if self._placing is None:
            self._placing = asyncio.get_running_loop().create_task(self._place_wanted())

    async def _place_wanted(self) -> None:
        steps = self._channel.replica.steps
        try:
            while self._wanted:
                if self._turnstile.waiting and len(self._wanted) < PLACED_AT_ONCE:
                    await asyncio.sleep(0)  # the more bundles are placed together, the fewer records it takes
                    continue
                await steps.passed()
                if self._look():
                    await steps.passed()
                some = list(islice(self._wanted, PLACED_AT_ONCE))
                for bundle in some:
                    del self._wanted[bundle]
                found = (self._channel.table.get(bundle) for bundle in some)
                entries = [e for e in found if e is not None and e.state is State.UNASSIGNED]
                self._give(zip(entries, self._place(entries), strict=True))
        finally:
            self._placing = None

    def _give(self, placed: Iterable[tuple[Ownership, BrokerId | None]]) -> None:
        """Publish the placements: one record for all bundles that go to one broker."""
        groups: dict[tuple[BrokerId, float, int, str], list[Ownership]] = {}
        for entry, to in placed:
            if to is not None:
                partition = self._channel.table.partition_of(entry.bundle.namespace)
                place = to, self._rest_s(entry, to), partition, self._cause(entry)
                groups.setdefault(place, []).append(entry)
        for (to, rest_s, partition, cause), entries in groups.items():
            task = asyncio.get_running_loop().create_task(self._own(entries, to, rest_s, partition, cause))
            self._assigning.update(dict.fromkeys([entry.bundle for entry in entries], task))

    def _rest_s(self, entry: Ownership, to: BrokerId) -> float:
        """How long to wait before a broker gets a bundle that it has just given back; each time twice as long."""
        if entry.action is not Action.RELEASE or entry.by != to:
            self._given_back.pop(entry.bundle, None)
            return 0.0
        times = self._given_back[entry.bundle] = self._given_back.get(entry.bundle, 0) + 1
        return 0.0 if times == 1 else min(FIRST_REST_S * 2 ** min(times - 2, 10), LAST_REST_S)

    async def _own(self, entries: Sequence[Ownership], to: BrokerId, rest_s: float, partition: int, cause: str) -> None:
        if rest_s:
            await asyncio.sleep(rest_s)
        await self._records.passed()
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries)
        record = Record("", Action.OWN, self._me, subjects=subjects, to=to, reason="lookup", cause=cause)
        try:
            await self._channel.publish(record, partition)
        except StateChannelError:
            return  # the waiting lookups look again, and time out by themselves
        finally:
            for entry in entries:
                self._assigning.pop(entry.bundle, None)

    def close(self) -> None:
        """Give up assignments in progress and waiting lookups; records already appended may still count."""
        self._closed = True
        for waiting in tuple(self._waits):
            _wake(waiting)
        for each in (self._placing, *self._assigning.values()):
            if each is not None:
                each.cancel()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
