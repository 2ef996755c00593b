"""Answers what a service asks its sidecar, as a check wants it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from loadmanager.client.cluster import check_request, header_of
from loadmanager.client.redirection import NotServing
from loadmanager.errors import Conflict, Gone
from loadmanager.sidecar.wire import Attached, Attachment, Claimed, Lease, Order, State
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity

VALID_MS = 3_000
POLL_S = 0.1
"""The time for which a poll waits, unless the service asks for less."""
UNREAD = 2
"""Of so many last answers a service may not have read one: as it asks one question after the other, it has read those
before."""
BROKER = "conformance:7070"
CLUSTER = ClusterIdentity("conformance", "0a1b2c3d4e5f-1", 1)

Find = Callable[[str, float], Awaitable[Claimed]]


@dataclass(frozen=True)
class Grant:
    """What an answer to a poll says."""

    valid_ms: dict[int, int] = field(default_factory=lambda: {0: VALID_MS})
    abandon: tuple[tuple[Bundle, int], ...] = ()
    shared: tuple[str, ...] = ()


NOTHING = Grant({})


class Poll:
    """A question for the lease that has arrived."""

    def __init__(self) -> None:
        self.arrived_s = time.monotonic()
        self.answered = False
        self.granted: Grant | None = None
        """What this one is answered: by default what all are."""
        self._go = asyncio.Event()

    async def released(self) -> None:
        """Wait for `release`."""
        await self._go.wait()

    def release(self, granted: Grant | None = None) -> None:
        """Answer it now, though polls are held."""
        self.granted = granted
        self._go.set()


async def nobody(key: str, timeout_s: float) -> Claimed:
    """No broker serves the key."""
    raise NotServing("no bundle of this check is at the key")


class Script:
    """A `Sessions` whose answers are attributes. Call everything on one loop."""

    def __init__(self) -> None:
        self.attachment: Attachment | None = None
        """What the service said when it attached last."""
        self.session: str | None = None
        self.attached = 0
        self.conflicts = 0
        """So many attempts to attach are still refused."""
        self.refused = 0
        self.grant = Grant()
        self.claim: Find = nobody
        self.polls: list[Poll] = []
        self.claims: list[str] = []
        """Keys that were asked for."""
        self.held = False
        self.leaving = asyncio.Event()
        """Set when the service asks to end its session."""
        self.may_leave = asyncio.Event()
        """Set by a check that lets the session end."""
        self._changed = asyncio.Event()

    def forget(self) -> None:
        """There is no session any more, as in a new sidecar: all answers are those of a new one."""
        self.end()
        self.conflicts = 0
        self.grant, self.claim, self.held = Grant(), nobody, False

    def end(self) -> None:
        """The session is over: polls are answered with 410."""
        self.session = None
        self.may_leave.set()
        self.leaving, self.may_leave = asyncio.Event(), asyncio.Event()
        for poll in self.polls:
            poll.release()
        self._tell()

    def hold(self) -> None:
        """Answer no poll from now on, until `resume`."""
        self.held = True

    def resume(self) -> None:
        """Answer all polls that wait, and those that come."""
        self.held = False
        for poll in self.polls:
            poll.release(poll.granted)
        self._tell()

    async def until(self, met: Callable[[], bool], timeout_s: float) -> bool:
        """Whether the condition is met within the time. It is looked at whenever the service asks for something."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not met():
                    await self._changed.wait()
        return met()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def deadline_s(self, partition: int) -> float:
        """When the deadlines of a service have surely passed, in monotonic time, if polls are answered no more."""
        known = [(poll.arrived_s, poll.granted) for poll in self.polls if poll.answered][-UNREAD:]
        return max(
            (at_s + granted.valid_ms.get(partition, 0) / 1000 for at_s, granted in known if granted), default=0.0
        )

    # --- for the endpoints

    def attach(self, attachment: Attachment) -> Attached:
        """As `Sessions.attach`."""
        if self.conflicts or self.session is not None:
            self.conflicts -= bool(self.conflicts)
            self.refused += 1
            self._tell()
            raise Conflict("another session is attached, or leaves: try again, or stop the other service")
        self.attachment = attachment
        self.session = secrets.token_hex(8)
        self.attached += 1
        self.polls.clear()
        self._tell()
        return Attached(session=self.session, broker=BROKER)

    async def lease(self, session: str, wait_s: float) -> Lease:
        """As `Sessions.lease`."""
        self._check(session)
        poll = Poll()
        self.polls.append(poll)
        self._tell()
        if not self.held:
            await asyncio.sleep(min(wait_s, POLL_S))
        if self.held:
            await poll.released()
        self._check(session)
        granted = poll.granted = poll.granted or self.grant
        poll.answered = True
        return Lease(
            state=State.LEAVING if self.leaving.is_set() else State.JOINED,
            valid_ms=granted.valid_ms,
            abandon=[Order(bundle=str(bundle), sequence=sequence) for bundle, sequence in granted.abandon],
            shared=list(granted.shared),
            cluster=header_of(CLUSTER),
        )

    async def detach(self, session: str) -> None:
        """As `Sessions.detach`."""
        self._check(session)
        self.leaving.set()
        may_leave = self.may_leave
        self._tell()
        await may_leave.wait()
        if self.session == session:
            self.end()

    async def find(self, key: str, timeout_s: float, cluster: str | None = None) -> Claimed:
        """As `Sessions.find`."""
        self.claims.append(key)
        self._tell()
        check_request(CLUSTER, cluster)
        return await self.claim(key, timeout_s)

    def _check(self, session: str) -> None:
        if session != self.session:
            raise Gone("this session has ended: forget all bundles, and attach again")
