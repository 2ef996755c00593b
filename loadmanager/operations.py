"""What an administrator can ask of any broker: create and delete namespaces, transfer and unload bundles.

Each checks what it can before it writes, publishes one record in the role of the admin, and waits until the cluster has
done it. A refusal by the law becomes a Conflict that names who came first; nothing is retried behind the caller's back
except a lost race.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.membership import Membership
from statechannel.bundle import Bundle, Topic, check_namespace, check_tiling
from statechannel.errors import InvalidName, RecordTooLarge
from statechannel.record import NEVER, Action, Broker, Record, Role, Subject
from statechannel.service import Channel
from statechannel.table import Namespace
from statechannel.transitions import State
from statechannel.verdict import Change, Ownership, Reason, Refusal, Verdict

RACES = 5
"""How often an operation looks again after somebody else changed the bundle first."""


class Operations:
    """The administrator's hands on one broker."""

    def __init__(
        self, me: Broker, channel: Channel, membership: Membership, clock_s: Callable[[], float], timeout_s: float
    ) -> None:
        self._me = me
        self._channel = channel
        self._membership = membership
        self._clock_s = clock_s
        self._timeout_s = timeout_s

    # --- namespaces

    async def create_namespace(self, name: str, boundaries: Sequence[int]) -> None:
        """Create it with these boundaries. Raises Invalid, Conflict (it exists), Unavailable."""
        try:
            check_namespace(name)
            check_tiling(boundaries)
        except InvalidName as error:
            raise Invalid(str(error)) from None
        known = self._channel.table.namespace(name)
        if known is not None and known.exists:
            raise Conflict(f"namespace {name} exists already")
        record = self._record(
            Action.CREATE_NAMESPACE,
            namespace=name,
            boundaries=tuple(boundaries),
            seen_namespace=known.revision if known else NEVER,
        )
        try:
            self._accepted(await self._channel.publish(record))
        except RecordTooLarge as error:
            raise Invalid(f"too many boundaries: {error}") from None

    async def delete_namespace(self, name: str) -> None:
        """Unload all its bundles, then delete it. Raises NotFound, Conflict (in use all the time), Unavailable."""
        for _ in range(RACES):
            known = self.namespace(name)
            await self._each(known.bundles, self.unload)
            verdict = await self._channel.publish(
                self._record(Action.DELETE_NAMESPACE, namespace=name, seen_namespace=known.revision)
            )
            if not isinstance(verdict, Refusal) or verdict.reason not in (Reason.NOT_UNASSIGNED, Reason.STALE):
                self._accepted(verdict)
                return
        raise Conflict(f"{name} is assigned again as fast as it is unloaded: stop its clients first")

    async def unload_namespace(self, name: str) -> None:
        """Unload every bundle. Raises NotFound, Unavailable."""
        await self._each(self.namespace(name).bundles, self.unload)

    def namespace(self, name: str) -> Namespace:
        """The existing namespace. Raises NotFound."""
        known = self._channel.table.namespace(name)
        if known is None or not known.exists:
            raise NotFound(f"there is no namespace {name}")
        return known

    # --- bundles

    def bundle(self, bundle: Bundle) -> Ownership:
        """The entry of an existing bundle. Raises NotFound, with the ranges that there are."""
        entry = self._channel.table.get(bundle)
        if entry is None:
            bundles = self.namespace(bundle.namespace).bundles
            shown = ", ".join(b.range for b in bundles[:8]) + (" …" if len(bundles) > 8 else "")
            raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
        return entry

    def bundle_of(self, topic: Topic) -> Ownership:
        """The entry of the bundle that a topic falls into. Raises NotFound."""
        self.namespace(topic.namespace)
        entry = self._channel.table.locate(topic)
        if entry is None:
            raise NotFound(f"there is no namespace {topic.namespace}")
        return entry

    async def unload(self, bundle: Bundle) -> None:
        """Take the bundle from its owner; the next lookup assigns it. Nothing to do if nobody owns it.

        Raises NotFound, Conflict, Unavailable.
        """
        async with self._deadline(bundle):
            for _ in range(RACES):
                entry = await self._settled(bundle)
                if entry.state is State.UNASSIGNED:
                    return
                verdict = await self._channel.publish(self._on(entry, Action.UNLOAD))
                if not _lost_race(verdict):
                    await self._released(bundle, self._accepted(verdict).offset)
                    return
        raise Conflict(f"{bundle} changes all the time: try again")

    async def transfer(self, bundle: Bundle, destination: str) -> None:
        """Move the bundle to a broker, by its name, and return when that one has it; an unowned one is assigned to it.

        Raises NotFound (bundle, broker), Conflict (it is there already, the broker is draining or going away, the move
        was cancelled), Unavailable (not in time: the move may still happen).
        """
        self.bundle(bundle)
        to = self._destination(destination)
        async with self._deadline(bundle):
            for _ in range(RACES):
                entry = await self._settled(bundle)
                if entry.holder is not None and entry.holder.name == destination:
                    raise Conflict(f"{destination} owns {bundle} already")
                action = Action.OWN if entry.state is State.UNASSIGNED else Action.TRANSFER
                verdict = await self._channel.publish(self._on(entry, action, to))
                if not _lost_race(verdict):
                    self._accepted(verdict)
                    await self._arrived(bundle, to)
                    return
        raise Conflict(f"{bundle} changes all the time: try again")

    async def _released(self, bundle: Bundle, revision: int) -> None:
        await self._until(bundle, lambda e: e.state is not State.RELEASING or e.revision != revision)

    def _destination(self, name: str) -> Broker:
        peer = self._membership.peers.get(name)
        if peer is None:
            known = ", ".join(sorted(self._membership.peers)) or "none"
            raise NotFound(f"there is no broker {name}; registered: {known}")
        if not self._membership.is_live(peer.broker, self._clock_s()):
            raise Conflict(f"{name} does not answer: {self._membership.condemned.get(peer.broker, 'it is going away')}")
        if peer.registration.draining:
            raise Conflict(f"{name} is draining and takes no bundles")
        if peer.registration.behind:
            raise Conflict(f"{name} does not get at the channel at present: it would not notice the bundle")
        return peer.broker

    async def _arrived(self, bundle: Bundle, to: Broker) -> None:
        entry = await self._until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED, State.REVOKING))
        if entry.holder != to or entry.state is not State.ASSIGNED:
            raise Conflict(
                f"{bundle} did not arrive at {to.name}: {entry.state} at {entry.holder} after {entry.action}"
            )

    async def _settled(self, bundle: Bundle) -> Ownership:
        """The bundle once it is not on its way anywhere."""
        return await self._until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED))

    async def _until(self, bundle: Bundle, holds: Callable[[Ownership], bool]) -> Ownership:
        while True:
            entry = self.bundle(bundle)
            if holds(entry):
                return entry
            await self._channel.next_change(bundle)

    # --- records and verdicts

    def _record(
        self, action: Action, *, namespace: str, boundaries: tuple[int, ...] = (), seen_namespace: int = NEVER
    ) -> Record:
        return Record(
            "",
            action,
            self._me,
            Role.ADMIN,
            namespace=namespace,
            boundaries=boundaries,
            seen_namespace=seen_namespace,
            reason="admin",
        )

    def _on(self, entry: Ownership, action: Action, to: Broker | None = None) -> Record:
        role = Role.BROKER if action is Action.OWN else Role.ADMIN
        return Record(
            "", action, self._me, role, subjects=(Subject(entry.bundle, entry.revision),), to=to, reason="admin"
        )

    def _accepted(self, verdict: Verdict) -> Change:
        match verdict:
            case Change():
                return verdict
            case Refusal():
                raise Conflict(f"refused, {verdict.reason}: {verdict.detail}")
            case _:
                raise Unavailable(
                    f"the channel gave no verdict: {verdict.detail}; it may still be done", record_id=verdict.record_id
                )

    @asynccontextmanager
    async def _deadline(self, bundle: Bundle) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{bundle} did not get there within {self._timeout_s:g} s; it may still do so") from None

    async def _each(self, bundles: Sequence[Bundle], do: Callable[[Bundle], Awaitable[None]]) -> None:
        results = await asyncio.gather(*(do(b) for b in bundles), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error


def _lost_race(verdict: Verdict) -> bool:
    return isinstance(verdict, Refusal) and verdict.reason in (Reason.STALE, Reason.ILLEGAL)
