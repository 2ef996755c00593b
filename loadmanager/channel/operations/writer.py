"""The common part of an administrator's operations: look, write one record, and wait until it is done.

A refusal by the law becomes a Conflict that names the record that won. After a lost race an operation looks again;
nothing else is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from loadmanager.errors import Conflict, NotFound, Unavailable
from statechannel.errors import NeedsNewerFormat, StateChannelError
from statechannel.law.bundle import Bundle, Key
from statechannel.law.namespace import Namespace
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Reason, Refusal, Verdict
from statechannel.runtime.service import Channel
from statechannel.runtime.turnstile import Turnstile

T = TypeVar("T")

LOOKS_AT_ONCE = 10
"""How many looks, at some bundles each, begin in one turn of the loop."""

RACES = 5
"""How often an operation looks again after somebody else changed the bundle first."""


class AdminWriter:
    """Reads the replica of one broker and writes in the role of the admin. Operations take at most `timeout_s`."""

    def __init__(self, me: BrokerId, channel: Channel, timeout_s: float) -> None:
        self.me = me
        self.channel = channel
        self.timeout_s = timeout_s
        self.turnstile = Turnstile(LOOKS_AT_ONCE)
        """For operations on many bundles."""

    # --- looking

    def namespace(self, name: str) -> Namespace:
        """The existing namespace. Raises NotFound."""
        known = self.channel.table.namespace(name)
        if known is None or not known.exists:
            raise NotFound(f"there is no namespace {name}")
        return known

    def bundle(self, bundle: Bundle) -> Ownership:
        """The entry of an existing bundle. Raises NotFound, with the ranges that there are."""
        entry = self.channel.table.get(bundle)
        if entry is None:
            bundles = self.namespace(bundle.namespace).bundles
            shown = ", ".join(b.range for b in bundles[:8]) + (" …" if len(bundles) > 8 else "")
            raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
        return entry

    def bundle_of(self, topic: Key) -> Ownership:
        """The entry of the bundle that a key falls into. Raises NotFound."""
        self.namespace(topic.namespace)
        entry = self.channel.table.locate(topic)
        if entry is None:
            raise NotFound(f"there is no namespace {topic.namespace}")
        return entry

    async def sure(self, look: Callable[[], T]) -> T:
        """The result of `look`; if it refuses, its result after catching up with the log.

        The caller may know from another broker what this one has not read yet. Writes nothing.
        """
        try:
            return look()
        except (NotFound, Conflict):
            with suppress(StateChannelError):
                await self.channel.catch_up(self.timeout_s)
            return look()

    # --- waiting

    async def settled(self, bundle: Bundle) -> Ownership:
        """The entry once the bundle is assigned or unassigned. Raises NotFound if it is gone."""
        return await self.until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED))

    async def until(self, bundle: Bundle, holds: Callable[[Ownership], bool]) -> Ownership:
        """The entry once `holds` is true for it. Raises NotFound if the bundle is gone."""
        while True:
            entry = self.bundle(bundle)
            if holds(entry):
                return entry
            await self.channel.next_change(bundle)

    @asynccontextmanager
    async def deadline(self, what: object) -> AsyncGenerator[None]:
        """A context that raises Unavailable after `timeout_s`."""
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{what} did not finish within {self.timeout_s:g} s; it may still do so") from None

    async def each(self, bundles: Sequence[Bundle], do: Callable[[Bundle], Awaitable[None]]) -> None:
        """Run `do` for all bundles at once. Once all have ended, raises the error of the first that failed."""
        results = await asyncio.gather(*(do(b) for b in bundles), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    # --- writing

    async def publish(self, record: Record) -> Verdict:
        """Publish a record and return its verdict. Raises RecordTooLarge, Conflict if a broker is too old for it."""
        try:
            return await self.channel.publish(record)
        except NeedsNewerFormat as error:
            raise Conflict(str(error)) from None

    def on(
        self, entries: Sequence[Ownership], action: Action, to: BrokerId | None = None, reason: str = "admin"
    ) -> Record:
        """A record about these bundles as they are now."""
        role = Role.BROKER if action is Action.OWN else Role.ADMIN
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries)
        return Record("", action, self.me, role, subjects=subjects, to=to, reason=reason)

    def accepted(self, verdict: Verdict) -> Change:
        """The change, if it was accepted. Raises Conflict (refused), Unavailable (no verdict yet)."""
        match verdict:
            case Change():
                return verdict
            case Refusal():
                raise Conflict(f"refused, {verdict.reason}: {verdict.detail}")
            case _:
                raise Unavailable(
                    f"the channel gave no verdict: {verdict.detail}; it may still be done", record_id=verdict.record_id
                )


def lost_race(verdict: Verdict) -> bool:
    """Whether somebody else changed the bundle first."""
    return isinstance(verdict, Refusal) and verdict.reason in (Reason.STALE, Reason.ILLEGAL, Reason.NO_BUNDLE)


def always_changing(what: object) -> Conflict:
    """The error of an operation that lost all races."""
    return Conflict(f"{what} changes all the time: try again")
