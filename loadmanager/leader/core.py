"""Decides the leader's duties: nothing stays with a dead owner, nothing stays in flight. `service.py` performs them.

Level-triggered: each sweep looks at the table, the registered brokers and the evidence, and returns the duties that are
due. A duty that was returned is not returned again for `retry_s`, nor while it is being done. Large sets are handled
together: the bundles that one record put in flight, or a namespace for all dead holders. A sweep runs in steps: a
`tick` does at most WORK_A_TURN of it, and the next tick continues. Pure: time comes in with the view, which is new in
each step.

The contract with `statechannel.runtime.proofs`: a leader releases a bundle from Revoking in place of its holder only
`validity_s + margin_s` after this leader *saw* both ways to a new proof closed. It has then read back the `revoke`
record and raised the holder's incarnation. A new leader starts with an empty memory, so it raises again and waits the
whole time again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from loadmanager.model.registration import Peer
from statechannel.law.bundle import Bundle
from statechannel.law.indices import Flight
from statechannel.law.record import BUNDLES_A_RECORD, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change

Seen = tuple[Bundle, int]
"""A bundle, and the revision at which it was seen."""


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """Publish `revoke` for these bundles, each as seen."""

    holder: BrokerId
    subjects: tuple[Seen, ...]
    reason: str


class Raise(msgspec.Struct, frozen=True, gc=False):
    """Raise the holder's incarnation; report success with `LeaderCore.raised`."""

    holder: BrokerId
    reason: str


class Place(msgspec.Struct, frozen=True, gc=False):
    """Give these bundles an owner: `release(to)` on behalf of a dead holder, if `revoked`.

    Else `own`, for bundles without an owner: revoked from `former`, or unassigned in an eager namespace.
    """

    subjects: tuple[Seen, ...]
    revoked: bool
    former: str = ""


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Publish `cancel` for these bundles: the move or split is called off."""

    subjects: tuple[Seen, ...]
    reason: str


class Evacuate(msgspec.Struct, frozen=True, gc=False):
    """Transfer these bundles away from a holder that is alive but remains cut off."""

    holder: BrokerId
    subjects: tuple[Seen, ...]
    reason: str


Duty = Revoke | Raise | Place | Cancel | Evacuate


ORPHAN = "orphan: "
"""Begins the reason of a `revoke` of a dead holder's bundle; other revocations have other reasons."""

STUCK = "stuck in flight"
"""The reason of a `cancel` after a time-out; the `cancel` for a dead target has another one."""

REVOCABLE = frozenset({State.ASSIGNING, State.ASSIGNED, State.TRANSFERRING, State.RELEASING, State.SPLITTING})

WORK_A_TURN = 500
"""About how many bundles, or groups of bundles, one tick deals with: a few milliseconds."""
PLACES_A_DUTY = 20_000
"""How many bundles are placed together: the more, the fewer records."""
LOOKED_AT_FOR_ONE = 16
"""How many bundles can be looked at in the time that it takes to deal with one."""


class LeaderSettings(msgspec.Struct, frozen=True):
    """See `loadmanager.settings`."""

    validity_s: float
    margin_s: float
    in_flight_timeout_s: float
    recovery_grace_s: float
    retry_s: float = 1.0


class View(msgspec.Struct, frozen=True):
    """What the leader knows at one instant, besides the table.

    `suspected` are incarnations that several brokers report dead, each with the evidence. `heard_s` is when a no-op of
    an incarnation was last read; `listening_since_s` is since when this broker has read no-ops. `places` stays equal as
    long as the same brokers may be given bundles by the same rules. Bundles of `eager` namespaces get a place without a
    lookup.
    """

    now_s: float
    peers: Mapping[str, Peer]
    suspected: Mapping[BrokerId, str]
    heard_s: Mapping[BrokerId, float]
    listening_since_s: float
    places: object = None
    eager: tuple[str, ...] = ()


class LeaderCore:
    """One term's memory: since when this leader has seen what it watches, and which duties it has asked for."""

    def __init__(self, settings: LeaderSettings) -> None:
        self.work = 0
        """Work done since the term began, in the unit of WORK_A_TURN."""
        self._settings = settings
        self._seen_s: dict[Flight, float] = {}
        self._observed: dict[Flight, float] = {}
        """Revocations that no sweep has seen yet, with the time when they were read."""
        self._to_raise: dict[BrokerId, None] = {}
        """Holders of those, if no tick has looked at them yet."""
        self._raised_s: dict[BrokerId, float] = {}
        self._unregistered_since_s: dict[BrokerId, float] = {}
        self._asked = Asked(settings.retry_s)
        self._homeless: dict[str, dict[Bundle, int]] = {}
        """Revoked bundles that have no place yet, by the name of the broker that had them."""
        self._settled: set[str] = set()
        """Eager namespaces in which no bundle was unassigned at the last look, and none has become so since."""
        self._dead: set[BrokerId] = set()
        """Holders that were dead at the last look."""
        self._places: object = None
        self._deadline_s: float | None = None
        self._view = View(0.0, {}, {}, {}, 0.0)
        self._sweep: Iterator[int] | None = None
        self._due: list[Duty] = []

    # --- events

    def observe(self, change: Change, now_s: float) -> bool:
        """Note an accepted change, right after it was read. Returns True if a tick is due because of it."""
        whole = change.whole
        due = whole is not None
        self._settled.discard(whole or "")
        for transition in () if whole is not None else change.transitions:
            before, after = transition.before, transition.after
            if after is None:
                continue
            due = due or after.state is not State.ASSIGNED
            if after.state is State.REVOKING and after.holder is not None:
                flight = Flight(change.partition, after.revision, after.state, after.holder, after.target)
                if flight not in self._observed:
                    self._observed[flight] = now_s
                    self._to_raise[after.holder] = None
            if after.state is State.UNASSIGNED:
                self._settled.discard(after.bundle.namespace)
            if self._dead and after.holder in self._dead and after.state in REVOCABLE:
                self._asked.forget("revoke", after.holder)  # look again at what it holds, although we just did
                due = True
            if after.state is State.UNASSIGNED and before is not None and before.state is State.REVOKING:
                assert before.holder is not None
                self._homeless.setdefault(before.holder.name, {})[after.bundle] = after.revision
        return due

    def reloaded(self) -> None:
        """The table jumped to a snapshot, which reports no single changes."""
        self._settled.clear()

    def raised(self, holder: BrokerId, now_s: float) -> None:
        """The holder has a newer incarnation."""
        self._raised_s.setdefault(holder, now_s)

    def next_deadline_s(self) -> float | None:
        """When to tick next if nothing happens before; at once while a sweep is unfinished."""
        return self._deadline_s

    @property
    def unfinished(self) -> bool:
        """Whether a sweep goes on with the next tick."""
        return self._sweep is not None

    # --- deciding

    def tick(self, table: OwnershipTable, view: View) -> list[Duty]:
        """The duties that are due now, within the work of one turn."""
        self._view, self._due = view, []
        if self._sweep is None:
            self._deadline_s = None
            self._sweep = self._swept(table)
        for holder in self._to_raise:
            if holder not in self._raised_s:
                self._raise(holder, view.now_s)  # at once: a sweep over many bundles takes a while
        self._to_raise.clear()
        left = WORK_A_TURN
        for work in self._sweep:
            self.work += work
            left -= work
            if left <= 0:
                self._remind(view.now_s)
                return self._due
        self._sweep = None
        return self._due

    def death_of(self, broker: BrokerId, view: View) -> str | None:
        """Why this incarnation counts as dead, None if it does not. A mistake costs a move, never makes two owners."""
        if broker in view.suspected:
            return view.suspected[broker]
        peer = view.peers.get(broker.name)
        if peer is not None and peer.broker.incarnation >= broker.incarnation:
            return None if peer.broker == broker else f"{broker} was replaced by {peer.broker}"
        quiet_since_s = max(view.heard_s.get(broker, view.listening_since_s), view.listening_since_s)
        if view.now_s - quiet_since_s <= 2 * self._settings.validity_s:
            self._remind(quiet_since_s + 2 * self._settings.validity_s + 0.001)
            return None
        return f"{broker} is not registered and silent on the channel"

    def _swept(self, table: OwnershipTable) -> Iterator[int]:
        """One sweep over everything, in steps; yields the work of each step."""
        self._asked.forget_old(self._view.now_s)
        yield from self._watch_holders(table)
        yield from self._watch_flights(table)
        yield from self._house(table)
        yield from self._place_eagerly(table)

    # --- holders

    def _watch_holders(self, table: OwnershipTable) -> Iterator[int]:
        revoking: Counter[BrokerId | None] = Counter()
        for flight in table.flights():
            yield 1
            if flight.state is State.REVOKING:
                revoking[flight.holder] += table.count_on(flight)
        holders = dict.fromkeys(table.holders())
        self._unregistered_since_s = {b: s for b, s in self._unregistered_since_s.items() if b in holders}
        self._dead.intersection_update(holders)
        dead: list[BrokerId] = []
        away: list[BrokerId] = []
        for holder in holders:
            yield 1
            left = table.count_held_by(holder) - revoking[holder]
            self._dead.discard(holder)
            if self.death_of(holder, self._view) is not None:
                self._dead.add(holder)
                if left and self._ask("revoke", holder, left):
                    dead.append(holder)
            elif self._is_cut_off(holder) and left and self._ask("evacuate", holder, left, patient=True):
                away.append(holder)
        if dead:
            yield from self._walk(table, dead, REVOCABLE)
        if away:
            yield from self._walk(table, away, frozenset({State.ASSIGNED}))

    def _is_cut_off(self, holder: BrokerId) -> bool:
        """Whether a living holder has been away from the coordination for longer than `recovery_grace_s`."""
        if holder.name in self._view.peers:
            self._unregistered_since_s.pop(holder, None)
            return False
        since_s = self._unregistered_since_s.setdefault(holder, self._view.now_s)
        due_s = since_s + self._settings.recovery_grace_s
        if self._view.now_s < due_s:
            self._remind(due_s)
        return self._view.now_s >= due_s

    def _walk(self, table: OwnershipTable, holders: Iterable[BrokerId], states: frozenset[State]) -> Iterator[int]:
        """Take the bundles in these states from these holders: one walk of the namespaces for all of them."""
        wanted = dict.fromkeys(holders)
        names: dict[str, None] = {}
        for holder in wanted:
            some = table.namespaces_of(holder)
            names.update(dict.fromkeys(some))
            yield 1 + len(some) // LOOKED_AT_FOR_ONE
        found: dict[tuple[BrokerId, int], list[Seen]] = {}
        for looked_at, entries in table.walk(names, wanted):
            yield 1 + looked_at // LOOKED_AT_FOR_ONE
            for entry in entries:
                if entry.holder is not None and entry.state in states:
                    group = entry.holder, table.partition_of(entry.bundle.namespace)
                    seen = found.setdefault(group, [])
                    seen.append((entry.bundle, entry.revision))
                    if len(seen) >= BUNDLES_A_RECORD:
                        yield self._take(entry.holder, found.pop(group))
        for (holder, _), seen in found.items():
            yield self._take(holder, seen)

    def _take(self, holder: BrokerId, seen: list[Seen]) -> int:
        reason = self.death_of(holder, self._view)
        if reason is not None:
            self._due.append(Revoke(holder, tuple(seen), f"{ORPHAN}{reason}"))
        elif self._is_cut_off(holder):
            away_s = self._settings.recovery_grace_s
            reason = f"{holder} is cut off from the coordination service for {away_s:g} s"
            self._due.append(Evacuate(holder, tuple(seen), reason))
        return len(seen)

    # --- in flight

    def _watch_flights(self, table: OwnershipTable) -> Iterator[int]:
        seen_s: dict[Flight, float] = {}
        earlier = tuple(self._observed)
        places: list[Seen] = []
        for flight in table.flights():
            yield 1
            left, seen_s[flight] = table.count_on(flight), self._since_s(flight)
            if left and self._is_placed(flight, left):
                for some in _parts(table, flight, BUNDLES_A_RECORD):
                    places += some
                    yield len(some)
                if len(places) >= PLACES_A_DUTY:
                    self._due.append(Place(tuple(places), revoked=True))
                    places = []
            elif left and (duty := self._owed(flight, left)) is not None:
                for some in _parts(table, flight, BUNDLES_A_RECORD):
                    self._due.append(msgspec.structs.replace(duty, subjects=some))
                    yield len(some)
        self._seen_s = seen_s
        for flight in earlier:
            del self._observed[flight]
        if places:
            self._due.append(Place(tuple(places), revoked=True))

    def _owed(self, flight: Flight, left: int) -> Revoke | Cancel | None:
        """The duty for a flight that is not being revoked, if it is overdue or its target is dead; else None."""
        overdue_s = self._since_s(flight) + self._settings.in_flight_timeout_s
        overdue = self._view.now_s >= overdue_s
        if not overdue:
            self._remind(overdue_s)
        match flight.state:
            case State.TRANSFERRING | State.SPLITTING:
                lost = self.death_of(flight.target, self._view) if flight.target is not None else None
                reason = lost or (STUCK if overdue else None)
                return Cancel((), reason) if reason and self._ask("cancel", flight, left) else None
            case State.ASSIGNING | State.RELEASING if overdue and flight.holder is not None:
                reason = f"stuck in {flight.state} for {self._settings.in_flight_timeout_s:g} s"
                return Revoke(flight.holder, (), reason) if self._ask("unstick", flight, left) else None
            case _:
                return None

    def _is_placed(self, flight: Flight, left: int) -> bool:
        """Whether to name a new owner now: only `validity_s + margin_s` after both ways to a proof were seen closed."""
        if flight.state is not State.REVOKING or flight.holder is None:
            return False
        holder, since_s, now_s = flight.holder, self._since_s(flight), self._view.now_s
        raised_s = self._raised_s.get(holder)
        if raised_s is None:
            self._raise(holder, since_s)
            return False
        due_s = max(raised_s, since_s) + self._settings.validity_s + self._settings.margin_s
        if now_s < due_s:
            self._remind(due_s)
            return False
        return self._ask("place", flight, left)

    def _raise(self, holder: BrokerId, since_s: float) -> None:
        """Raise a dead holder at once; give a living one `validity_s` to release by itself."""
        reason = self.death_of(holder, self._view)
        patience_s = since_s + self._settings.validity_s
        if reason is None and self._view.now_s < patience_s:
            self._remind(patience_s)
        elif self._ask("raise", holder, 1):
            self._due.append(Raise(holder, reason or f"{holder} did not release what was revoked"))

    def _since_s(self, flight: Flight) -> float:
        """When this leader read the record, if it is a revocation that it read; else when it first saw the flight."""
        return self._seen_s.setdefault(flight, self._observed.get(flight, self._view.now_s))

    # --- without a place

    def _house(self, table: OwnershipTable) -> Iterator[int]:
        """Place revoked bundles that have no destination, without a lookup: all of one former holder together.

        Ask again as soon as other brokers or other rules apply; else less and less often.
        """
        if self._view.places != self._places:
            self._places = self._view.places
            self._asked.forget_all("house")
            self._asked.forget_all("eager")
        for former, homeless in list(self._homeless.items()):
            yield 1
            if not self._ask("house", former, len(homeless), patient=True):
                continue
            found: list[Seen] = []
            for bundle, revision in list(homeless.items()):
                yield 1
                entry = table.get(bundle)
                if entry is None or entry.revision != revision:
                    homeless.pop(bundle, None)
                else:
                    found.append((bundle, revision))
            if found:
                self._due.append(Place(tuple(found), revoked=False, former=former))
            elif not homeless:
                del self._homeless[former]

    def _place_eagerly(self, table: OwnershipTable) -> Iterator[int]:
        """Place the unassigned bundles of eager namespaces without a lookup; ask again as in `_house`."""
        for name in self._view.eager:
            namespace = table.namespace(name)
            if name in self._settled or namespace is None:
                continue
            self._settled.add(name)  # a bundle that becomes unassigned while we look removes it again
            found: list[Seen] = []
            for index, lo in enumerate(namespace.lower_bounds):
                if index % LOOKED_AT_FOR_ONE == 0:
                    yield 1
                entry = namespace.entry_at(lo)
                if entry.state is State.UNASSIGNED:
                    found.append((entry.bundle, entry.revision))
            if not found:
                self._asked.forget("eager", name)
                continue
            self._settled.discard(name)
            if self._ask("eager", name, len(found), patient=True):
                self._due.append(Place(tuple(found), revoked=False))

    # --- memory

    def _ask(self, duty: str, about: BrokerId | Flight | str, left: int, *, patient: bool = False) -> bool:
        """Whether this duty may be asked for now; see `Asked.is_due`."""
        is_due = self._asked.is_due(duty, about, left, self._view.now_s, patient=patient)
        self._remind(self._asked.due_s(duty, about))
        return is_due

    def _remind(self, at_s: float) -> None:
        if self._deadline_s is None or at_s < self._deadline_s:
            self._deadline_s = at_s


def _parts(table: OwnershipTable, flight: Flight, most: int) -> Iterator[tuple[Seen, ...]]:
    """The bundles that are still on a flight, each with the revision at which it began, in parts of at most `most`."""
    bundles = iter(table.on(flight))
    while some := tuple((bundle, flight.revision) for bundle in islice(bundles, most)):
        yield some


LONGEST_PAUSE_S = 60.0
FORGOTTEN_AFTER = 10
"""After how many pauses an entry is forgotten."""
MUCH = 1_000


class Asking(msgspec.Struct, frozen=True, gc=False):
    """When a duty was asked for, about how many bundles, and the pause before it is asked again without progress."""

    at_s: float
    left: int
    pause_s: float


class Asked:
    """What was asked for, by duty and subject."""

    def __init__(self, retry_s: float) -> None:
        self.retry_s = retry_s
        self._asked: dict[tuple[str, Hashable], Asking] = {}
        self._in_turn: deque[tuple[tuple[str, Hashable], Asking]] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    def due_s(self, duty: str, about: Hashable) -> float:
        """When it may be asked for again."""
        asked = self._asked.get((duty, about))
        return float("-inf") if asked is None else asked.at_s + asked.pause_s

    def is_due(self, duty: str, about: Hashable, left: int, now_s: float, *, patient: bool = False) -> bool:
        """Whether to ask for it now: never asked, or asked `pause_s` ago without any progress since.

        If so it counts as asked. The pause is `retry_s`; for a `patient` duty it doubles each time.
        """
        asked = self._asked.get((duty, about))
        if asked is None or left > asked.left:
            self._note((duty, about), Asking(now_s, left, self.retry_s))
            return True
        if left < asked.left:  # progress
            self._note((duty, about), Asking(now_s, left, self.retry_s))
            return False
        if now_s - asked.at_s < asked.pause_s:
            return False
        pause_s = min(2 * asked.pause_s, LONGEST_PAUSE_S) if patient else self.retry_s
        self._note((duty, about), Asking(now_s, left, pause_s))
        return True

    def forget(self, duty: str, about: Hashable) -> None:
        """Allow to ask again at once."""
        self._asked.pop((duty, about), None)

    def forget_all(self, duty: str) -> None:
        """As `forget`, for all subjects of this duty."""
        for key in [key for key in self._asked if key[0] == duty]:
            del self._asked[key]

    def forget_old(self, now_s: float) -> None:
        """Forget old entries, if there are many: some of them each time, in turn."""
        for key, asked in [self._in_turn.popleft() for _ in range(min(MUCH, len(self._in_turn) - MUCH))]:
            if self._asked.get(key) is not asked:
                continue
            if asked.at_s + FORGOTTEN_AFTER * asked.pause_s > now_s:
                self._in_turn.append((key, asked))
            else:
                del self._asked[key]

    def _note(self, key: tuple[str, Hashable], asked: Asking) -> None:
        self._asked[key] = asked
        self._in_turn.append((key, asked))
