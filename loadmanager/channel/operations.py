"""The operations that an administrator can ask of any broker: namespaces, moves, splits and merges.

Each one looks, writes one record in the role of the administrator, and waits until the cluster has done it. If another
change came first, it looks again. A refusal by the law becomes a Conflict that names the record that won. An operation
takes at most `timeout_s`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from loadmanager.cluster.membership import Membership
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS, NoCuts, check_parts, evenly, specified
from loadmanager.settings.choices import Algorithm
from statechannel.errors import InvalidName, NeedsNewerFormat, RecordTooLarge, StateChannelError
from statechannel.law import codec
from statechannel.law.bundle import MAX_BUNDLES_AT_CREATION, Bundle, Key, check_new_namespace, check_tiling
from statechannel.law.namespace import Namespace
from statechannel.law.record import BUNDLES_A_RECORD, NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Reason, Refusal
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import Turnstile

T = TypeVar("T")

RACES = 5
"""How often an operation looks again after another change came first."""
LOST_RACE = (Reason.STALE, Reason.ILLEGAL, Reason.NO_BUNDLE)
"""Refusals that mean: another change came first."""
LOOKED_AT_ONCE = 50
"""Bundles of one record that are looked at in one turn of the loop."""
LOOKS_AT_ONCE = 10
"""How many such looks begin in one turn of the loop: the same few records wake hundreds of tasks."""
SHOWN = 8
"""How many bundles an error names."""

_TOO_LATE = {
    State.ASSIGNING: "its new owner is taking it now",
    State.RELEASING: "its owner has stopped serving it already, and the move goes on",
    State.REVOKING: "the leader is taking it from its owner",
}


class Operations:
    """The administrator's operations on one broker. Looks read its replica.

    `forbids` returns the hard rule that keeps a bundle off a broker, or an empty string.
    """

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        membership: Membership,
        clock_s: Callable[[], float],
        timeout_s: float,
        forbids: Callable[[Bundle, BrokerId], str] = lambda _bundle, _to: "",
    ) -> None:
        self._me = me
        self._channel = channel
        self._membership = membership
        self._clock_s = clock_s
        self._timeout_s = timeout_s
        self._forbids = forbids
        self._turnstile = Turnstile(LOOKS_AT_ONCE)

    # --- looking

    def namespace(self, name: str) -> Namespace:
        """The existing namespace. Raises NotFound."""
        known = self._channel.table.namespace(name)
        if known is None or not known.exists:
            raise NotFound(f"there is no namespace {name}")
        return known

    def bundle(self, bundle: Bundle) -> Ownership:
        """The entry of an existing bundle. Raises NotFound, which lists the ranges of the namespace."""
        entry = self._channel.table.get(bundle)
        if entry is None:
            bundles = self.namespace(bundle.namespace).bundles
            shown = ", ".join(b.range for b in bundles[:SHOWN]) + (" …" if len(bundles) > SHOWN else "")
            raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
        return entry

    def bundle_of(self, topic: Key) -> Ownership:
        """The entry of the bundle that a key falls into. Raises NotFound."""
        self.namespace(topic.namespace)
        entry = self._channel.table.locate(topic)
        if entry is None:
            raise NotFound(f"there is no namespace {topic.namespace}")
        return entry

    # --- namespaces

    async def create_namespace(self, name: str, boundaries: Sequence[int]) -> None:
        """Create it with these boundaries. Raises Invalid, Conflict (it exists), Unavailable."""

        def last_revision() -> int:
            known = self._channel.table.namespace(name)
            if known is not None and known.exists:
                raise Conflict(f"namespace {name} exists already")
            return known.revision if known else NEVER

        try:
            check_new_namespace(name)
            check_tiling(boundaries)
            seen = await self._look(last_revision)
            await self._write(self._about_namespace(Action.CREATE_NAMESPACE, name, seen, tuple(boundaries)), lost=())
        except InvalidName as error:
            raise Invalid(str(error)) from None
        except RecordTooLarge as error:
            raise Invalid(f"too many boundaries: {error}") from None

    async def delete_namespace(self, name: str) -> None:
        """Unload all its bundles, then delete it. Raises NotFound, Conflict (it stays in use), Unavailable."""

        async def attempt() -> Change | None:
            known = await self._unload_once(name)
            if known is None:
                return None
            plain = self._about_namespace(Action.DELETE_NAMESPACE, name, known.revision)
            # it names the newest change of a bundle that was seen, if all brokers can read that
            record = msgspec.structs.replace(plain, seen_latest=known.latest)
            readable = codec.version_of(record) <= self._channel.write_version
            return await self._write(record if readable else plain, lost=(Reason.NOT_UNASSIGNED, Reason.STALE))

        await self._until_done(attempt, f"{name} is assigned again as fast as it is unloaded: stop its clients first")

    async def unload_namespace(self, name: str) -> None:
        """Unload every bundle. Raises NotFound, Conflict, Unavailable."""
        await self._until_done(lambda: self._unload_once(name), _keeps_changing(name))

    async def _unload_once(self, name: str) -> Namespace | None:
        """Unload its bundles; None if some were split or merged meanwhile. Raises NotFound, Conflict, Unavailable."""
        known = await self._look(lambda: self.namespace(name))
        unloads: list[asyncio.Task[None]] = []
        for begin in range(0, known.count, BUNDLES_A_RECORD):
            await self._channel.replica.steps.passed()
            entries = known.touched(begin, begin + BUNDLES_A_RECORD)
            owned = [entry.bundle for entry in entries if entry.state is not State.UNASSIGNED]
            if owned:
                unloads.append(asyncio.ensure_future(self._unload(owned)))
        try:
            await _all(unloads)
        except NotFound:
            return None
        return known

    # --- moves

    async def unload(self, bundle: Bundle) -> None:
        """Take the bundle from its owner; the next lookup assigns it. Does nothing if the bundle has no owner.

        Raises NotFound, Conflict, Unavailable.
        """
        await self._unload([bundle])

    async def _unload(self, wanted: Sequence[Bundle]) -> None:
        """As `unload`, for bundles of one namespace that one record can name."""
        first, count = wanted[0], len(wanted)

        async def attempt() -> bool | None:
            nonlocal wanted
            owned = [e for e in [await self._settled(b) for b in wanted] if e.state is not State.UNASSIGNED]
            if not owned:
                return True
            change = await self._write(self._about(owned, Action.UNLOAD))
            if change is None:
                return None
            moving = (State.RELEASING, change.offset)
            for place, transition in enumerate(change.transitions):
                if place % LOOKED_AT_ONCE == 0:
                    await self._turnstile.passed()
                await self._until(transition.bundle, lambda e: (e.state, e.revision) != moving)
            wanted = [refusal.bundle for refusal in change.refused if refusal.bundle is not None]
            return True if not wanted else None

        async with self._deadline(first if count == 1 else f"{count} bundles of {first.namespace}"):
            if count == 1:
                await self._look(lambda: self.bundle(first))
            changing = first if count == 1 else f"{first} and {count - 1} more"
            await self._until_done(attempt, _keeps_changing(changing))

    async def transfer(self, bundle: Bundle, destination: str, *, author: str = "admin", force: bool = False) -> None:
        """Move the bundle to a broker, by its name, and return on arrival. An unowned bundle is assigned to it.

        `force` overrides a hard rule that forbids the move; the record's reason then names the rule and the author.
        Raises NotFound (bundle, broker), Conflict (it is there already, a rule forbids it, the broker is draining or
        going away, the move was cancelled), Unavailable (not in time: the move may still happen).
        """
        await self._look(lambda: self.bundle(bundle))
        to = self._destination(destination)
        rule = self._forbids(bundle, to)
        if rule and not force:
            insist = "Change the rule, or insist (?force=true, --force)"
            raise Conflict(f"{bundle} may not go to {to.name}: {rule}. {insist}")
        reason = f"forced by {author}: {rule}" if rule else "admin"

        async def attempt() -> Change | None:
            entry = await self._settled(bundle)
            if entry.holder is not None and entry.holder.name == to.name:
                raise Conflict(f"{to.name} owns {bundle} already")
            action = Action.OWN if entry.state is State.UNASSIGNED else Action.TRANSFER
            return await self._write(self._about([entry], action, to, reason))

        async with self._deadline(bundle):
            await self._until_done(attempt, _keeps_changing(bundle))
            entry = await self._until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED, State.REVOKING))
        if entry.holder != to or entry.state is not State.ASSIGNED:
            now = f"{entry.state} at {entry.holder} after {entry.action}"
            raise Conflict(f"{bundle} did not arrive at {to.name}: {now}")

    def _destination(self, name: str) -> BrokerId:
        """The broker of that name, if it takes bundles now. Raises NotFound, Conflict."""
        peer = self._membership.peers.get(name)
        if peer is None:
            known = ", ".join(sorted(self._membership.peers)) or "none"
            raise NotFound(f"there is no broker {name}; registered: {known}")
        if not self._membership.is_live(peer.broker, self._clock_s()):
            raise Conflict(f"{name} does not answer: {self._membership.suspected.get(peer.broker, 'it is going away')}")
        if peer.registration.draining:
            raise Conflict(f"{name} is draining and takes no bundles")
        if peer.registration.behind:
            raise Conflict(f"{name} cannot read the channel at present, and would not notice the bundle")
        return peer.broker

    async def cancel(self, bundle: Bundle) -> None:
        """Call off the transfer or split that the bundle is in; it stays where it is, whole.

        Raises NotFound, Conflict (it is in none, or too far on its way), Unavailable.
        """

        def on_its_way() -> Ownership:
            entry = self.bundle(bundle)
            if entry.state in (State.TRANSFERRING, State.SPLITTING):
                return entry
            why = _TOO_LATE.get(entry.state, "no transfer and no split of it is under way")
            raise Conflict(f"{bundle} is {entry.state}, there is nothing to cancel: {why}")

        async def attempt() -> Change | None:
            return await self._write(self._about([await self._look(on_its_way)], Action.CANCEL))

        await self._until_done(attempt, _keeps_changing(bundle))

    # --- splits and merges

    async def split(
        self,
        bundle: Bundle,
        *,
        parts: int | None = None,
        positions: Sequence[int] | None = None,
        algorithm: str | None = None,
        unload: bool = False,
    ) -> tuple[Bundle, ...]:
        """Cut the bundle into `parts` (default 2), or at positions; returns the children, lowest first.

        The owner keeps them; with `unload` it then loses them, and lookups place them. In Pulsar the asked broker takes
        an unowned bundle and splits it. Here that would bypass the placement strategy, so it is refused. Raises
        Invalid, NotFound, Conflict (no owner, on its way, no cuts found, called off), Unavailable (not in time: it may
        still happen).
        """
        how = _how_to_split(bundle, parts, positions, algorithm)
        async with self._deadline(f"the split of {bundle}"):
            children = await self._split(bundle, how)
        if unload:
            try:
                await _all([asyncio.ensure_future(self.unload(child)) for child in children])
            except (NotFound, Conflict) as error:
                raise Conflict(f"{bundle} was split, but its parts were not all unloaded: {error}") from None
        return children

    async def _split(self, bundle: Bundle, how: _Split) -> tuple[Bundle, ...]:
        changes: list[Change] = []

        def note(change: Change) -> None:
            if any(transition.bundle == bundle for transition in change.transitions):
                changes.append(change)

        async def attempt() -> Change | None:
            entry = await self._look(lambda: _at_rest(self.bundle(bundle)))
            count = len(self.namespace(bundle.namespace).lower_bounds) - 1 + how.children
            if count > MAX_BUNDLES_AT_CREATION:
                most = f"at most {MAX_BUNDLES_AT_CREATION} are allowed"
                raise Conflict(f"{bundle.namespace} would have {count} bundles, {most}")
            record = self._about([entry], Action.SPLIT)
            return await self._write(
                msgspec.structs.replace(record, boundaries=how.boundaries, algorithm=how.algorithm, parts=how.parts)
            )

        self._channel.listen(note)
        try:
            begun = await self._until_done(attempt, _keeps_changing(bundle))
            while not (later := [change for change in changes if change.offset > begun.offset]):
                now = self._channel.table.get(bundle)
                if now is None or now.revision != begun.offset:
                    raise Unavailable(f"the outcome of the split of {bundle} is not known here: look at its namespace")
                await self._channel.next_change(bundle)
        finally:
            self._channel.unlisten(note)
        end = later[0].record
        if end.action is not Action.CREATE:
            why = end.reason or "no reason given"
            raise Conflict(f"{bundle} was not split: {why} ({end.action} by {end.actor})")
        return tuple(sorted(t.bundle for t in later[0].transitions if t.before is None))

    async def merge(self, parts: Sequence[Bundle]) -> Bundle:
        """Make one bundle of two or more neighbours of one owner, given in any order; returns it.

        Raises Invalid (too few or many, they do not touch), NotFound, Conflict (no owner, different owners, on their
        way), Unavailable.
        """
        bundles = _neighbours(parts)

        async def attempt() -> Change | None:
            entries = await self._look(lambda: _of_one_owner([_at_rest(self.bundle(bundle)) for bundle in bundles]))
            return await self._write(self._about(entries, Action.MERGE))

        async with self._deadline(f"the merge of {len(bundles)} bundles of {bundles[0].namespace}"):
            await self._until_done(attempt, _keeps_changing(" and ".join(bundle.range for bundle in bundles)))
        return Bundle(bundles[0].namespace, bundles[0].lo, bundles[-1].hi)

    # --- look, write, wait

    async def _look(self, look: Callable[[], T]) -> T:
        """The result of `look`; if it refuses, its result after catching up with the log.

        The caller may know from another broker what this one has not read yet. Writes nothing.
        """
        try:
            return look()
        except (NotFound, Conflict):
            with suppress(StateChannelError):
                await self._channel.catch_up(self._timeout_s)
            return look()

    async def _until_done(self, attempt: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """The result of the first attempt that gives one. Raises Conflict with `otherwise` after some without."""
        for _ in range(RACES):
            done = await attempt()
            if done is not None:
                return done
        raise Conflict(otherwise)

    async def _write(self, record: Record, lost: Sequence[Reason] = LOST_RACE) -> Change | None:
        """Publish the record and return its change, or None if it was refused for one of the reasons in `lost`.

        Raises RecordTooLarge, Conflict (refused, or a broker is too old for it), Unavailable (no verdict yet).
        """
        try:
            verdict = await self._channel.publish(record)
        except NeedsNewerFormat as error:
            raise Conflict(str(error)) from None
        match verdict:
            case Change():
                return verdict
            case Refusal():
                if verdict.reason in lost:
                    return None
                raise Conflict(f"refused, {verdict.reason}: {verdict.detail}")
            case _:
                raise Unavailable(
                    f"the channel gave no verdict: {verdict.detail}; it may still be done", record_id=verdict.record_id
                )

    def _about(
        self, entries: Sequence[Ownership], action: Action, to: BrokerId | None = None, reason: str = "admin"
    ) -> Record:
        """A record about these bundles as they are now."""
        role = Role.BROKER if action is Action.OWN else Role.ADMIN
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries)
        return Record("", action, self._me, role, subjects=subjects, to=to, reason=reason)

    def _about_namespace(self, action: Action, name: str, seen: int, boundaries: tuple[int, ...] = ()) -> Record:
        return Record(
            "", action, self._me, Role.ADMIN, namespace=name, boundaries=boundaries, seen_namespace=seen, reason="admin"
        )

    async def _settled(self, bundle: Bundle) -> Ownership:
        return await self._until(bundle, lambda e: e.state in (State.ASSIGNED, State.UNASSIGNED))

    async def _until(self, bundle: Bundle, holds: Callable[[Ownership], bool]) -> Ownership:
        """The entry once `holds` is true for it. Raises NotFound if the bundle is gone."""
        while not holds(entry := self.bundle(bundle)):
            await self._channel.next_change(bundle)
        return entry

    @asynccontextmanager
    async def _deadline(self, what: object) -> AsyncGenerator[None]:
        """A context that raises Unavailable after `timeout_s`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{what} did not finish within {self._timeout_s:g} s; it may still do so") from None


def _keeps_changing(what: object) -> str:
    return f"{what} changes all the time: try again"


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Once all have ended, raises the error of the first that failed."""
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(error, BaseException):
            raise error


class _Split(msgspec.Struct, frozen=True):
    """How to cut: at `boundaries`, or into `parts` where the owner finds the cuts by `algorithm`."""

    boundaries: tuple[int, ...] = ()
    algorithm: str = ""
    parts: int = 0

    @property
    def children(self) -> int:
        return len(self.boundaries) + 1 if self.boundaries else self.parts


def _how_to_split(bundle: Bundle, parts: int | None, positions: Sequence[int] | None, algorithm: str | None) -> _Split:
    """The split that is asked for. Raises Invalid if it makes no sense.

    Without an algorithm: at the positions if given, else into equal ranges. These cuts need no knowledge of the owner,
    so they are computed here and are in the record.
    """
    if algorithm and algorithm not in list(Algorithm):
        raise Invalid(f"there is no split algorithm {algorithm!r}; there are {', '.join(Algorithm)}")
    chosen = Algorithm(algorithm or (Algorithm.RANGE if positions is None else Algorithm.SPECIFIED))
    if chosen is Algorithm.SPECIFIED:
        if positions and parts is not None and parts != len(positions) + 1:
            raise Invalid(f"these positions make {len(positions) + 1} parts, not {parts}; leave the parts out")
        return _Split(_cuts(specified(bundle, positions or ())))
    if positions is not None:
        raise Invalid(f"positions are for {Algorithm.SPECIFIED}, not for {chosen}")
    wanted = FEWEST_PARTS if parts is None else parts
    if chosen is Algorithm.RANGE:
        return _Split(_cuts(evenly(bundle, wanted)))
    refusal = check_parts(wanted)
    if refusal is not None:
        raise Invalid(refusal.reason)
    return _Split(algorithm=chosen.value, parts=wanted)


def _cuts(found: tuple[int, ...] | NoCuts) -> tuple[int, ...]:
    if isinstance(found, NoCuts):
        raise Invalid(found.reason)
    return found


def _at_rest(entry: Ownership) -> Ownership:
    """The entry, if the bundle has an owner and is not on its way. Raises Conflict."""
    match entry.state:
        case State.ASSIGNED:
            return entry
        case State.UNASSIGNED:
            raise Conflict(
                f"no broker owns {entry.bundle}: look up a topic of it, or unload it with a destinationBroker; "
                "then ask again"
            )
        case State.TRANSFERRING | State.SPLITTING:
            raise Conflict(f"{entry.bundle} is {entry.state}: wait until that is over, or cancel it")
        case _:
            raise Conflict(f"{entry.bundle} is {entry.state}: wait until that is over")


def _neighbours(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The bundles, lowest first, if they are neighbours. Raises Invalid."""
    if not FEWEST_PARTS <= len(bundles) <= MOST_PARTS:
        raise Invalid(f"a merge takes {FEWEST_PARTS} to {MOST_PARTS} bundles, not {len(bundles)}")
    parts = sorted(bundles)
    if parts[0].namespace != parts[-1].namespace:
        raise Invalid(f"{parts[0]} and {parts[-1]} are of different namespaces")
    apart = next((pair for pair in itertools.pairwise(parts) if pair[0].hi != pair[1].lo), None)
    if apart is not None and apart[0] == apart[1]:
        raise Invalid(f"{apart[0].range} is named twice; a merge takes different bundles")
    if apart is not None:
        raise Invalid(f"{apart[0].range} and {apart[1].range} are no neighbours: one has to begin where the other ends")
    return parts


def _of_one_owner(entries: list[Ownership]) -> list[Ownership]:
    """The entries, if they have one owner. Raises Conflict, with the transfers that would bring them together."""
    owners = Counter(entry.holder for entry in entries)
    if len(owners) == 1:
        return entries
    owner, _ = owners.most_common(1)[0]
    assert owner is not None
    elsewhere = [entry for entry in entries if entry.holder != owner]
    shown = ", ".join(f"{entry.bundle.range} (at {entry.holder})" for entry in elsewhere[:SHOWN])
    more = " …" if len(elsewhere) > SHOWN else ""
    raise Conflict(
        f"the bundles have different owners: first transfer the others to {owner.name}: {shown}{more}; "
        "a transfer is an unload with a destinationBroker"
    )
