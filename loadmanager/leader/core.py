"""What the leader owes the cluster: nothing stays with a dead owner, nothing stays in flight. Decided, not done, here.

Level-triggered: each `tick` looks at the table, the registered brokers and the evidence, and returns the duties that
are due; a duty that was asked for is not asked again for `retry_s`. Pure: time comes in with the view.

The bargain with `statechannel.proofs`: a bundle leaves Revoking in its holder's place only when `validity_s + margin_s`
have passed since this leader *saw* both ways to a new proof closed: the `revoke` record read back, and the holder's
incarnation raised. A new leader starts with an empty memory, so it raises again and waits anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from loadmanager.registration import Peer
from statechannel.bundle import Bundle
from statechannel.record import Broker
from statechannel.table import OwnershipTable
from statechannel.transitions import State
from statechannel.verdict import Change, Ownership

ORPHAN = "orphan: "
"""Begins the reason of a `revoke` because its holder is dead; other revocations have other reasons."""

STUCK = "stuck in flight"
"""The reason of a `cancel` because of the time; a target that is lost has another."""

REVOCABLE = frozenset({State.ASSIGNING, State.ASSIGNED, State.TRANSFERRING, State.RELEASING, State.SPLITTING})


class LeaderSettings(msgspec.Struct, frozen=True):
    """See `loadmanager.settings`."""

    validity_s: float
    margin_s: float
    in_flight_timeout_s: float
    recovery_grace_s: float
    retry_s: float = 1.0


class View(msgspec.Struct, frozen=True):
    """What the leader knows at one instant, besides the table.

    `condemned` are incarnations that several brokers found dead, each with the evidence. `heard_s` is when a no-op of
    an incarnation was last read; `listening_since_s` since when anybody could have been heard.
    """

    now_s: float
    peers: Mapping[str, Peer]
    condemned: Mapping[Broker, str]
    heard_s: Mapping[Broker, float]
    listening_since_s: float


# --- duties


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """Publish `revoke` for these bundles, each as seen."""

    holder: Broker
    subjects: tuple[tuple[Bundle, int], ...]
    reason: str


class Raise(msgspec.Struct, frozen=True, gc=False):
    """Raise the holder's incarnation; report with `raised`."""

    holder: Broker
    reason: str


class Place(msgspec.Struct, frozen=True, gc=False):
    """Give these bundles a new owner in their dead holder's place (`release(to)`), or `own` what has none."""

    subjects: tuple[tuple[Bundle, int], ...]
    former: str
    revoked: bool


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Publish `cancel`: the move or split is off."""

    bundle: Bundle
    seen: int
    reason: str


class Evacuate(msgspec.Struct, frozen=True, gc=False):
    """Transfer these bundles away from a holder that is alive but cut off for good."""

    holder: Broker
    subjects: tuple[tuple[Bundle, int], ...]
    reason: str


Duty = Revoke | Raise | Place | Cancel | Evacuate


class LeaderCore:
    """One term's memory: since when this leader has seen what it watches, and what it has asked for."""

    def __init__(self, settings: LeaderSettings) -> None:
        self._settings = settings
        self._seen: dict[Bundle, tuple[int, float]] = {}
        self._raised_s: dict[Broker, float] = {}
        self._unregistered_since_s: dict[Broker, float] = {}
        self._asked_s: dict[tuple[str, Bundle | Broker, int], float] = {}
        self._homeless: dict[Bundle, tuple[int, str]] = {}
        self._deadlines_s: list[float] = []
        self._revoking: Counter[Broker | None] = Counter()

    # --- events

    def observe(self, change: Change) -> bool:
        """Note an accepted change; whether a tick is due because of it."""
        due = False
        for transition in change.transitions:
            before, after = transition.before, transition.after
            if after is None or after.state is State.ASSIGNED:
                self._seen.pop(transition.bundle, None)
            else:
                due = True
            if after is None or after.state is not State.UNASSIGNED or before is None or before.holder is None:
                continue
            if before.state is State.REVOKING:
                self._homeless[after.bundle] = (after.revision, before.holder.name)
        return due

    def raised(self, holder: Broker, now_s: float) -> None:
        """The holder's incarnation is known not to be current any more."""
        self._raised_s.setdefault(holder, now_s)

    def next_deadline_s(self) -> float | None:
        """When to tick next if nothing happens before."""
        return min(self._deadlines_s, default=None)

    # --- deciding

    def tick(self, table: OwnershipTable, view: View) -> list[Duty]:
        """The duties that are due now."""
        self._deadlines_s = []
        self._forget(view.now_s)
        duties: list[Duty] = []
        holders = table.holders()
        self._revoking = Counter(e.holder for e in table.in_flight() if e.state is State.REVOKING)
        self._unregistered_since_s = {b: s for b, s in self._unregistered_since_s.items() if b in holders}
        for holder in holders:
            duties += self._watch_holder(holder, table, view)
        places: dict[str, list[tuple[Bundle, int]]] = {}
        for entry in table.in_flight():
            duties += self._watch_in_flight(entry, view, places)
        duties += [Place(tuple(subjects), former, revoked=True) for former, subjects in places.items()]
        duties += self._house(table, view.now_s)
        return duties

    def death_of(self, broker: Broker, view: View) -> str | None:
        """Why this incarnation counts as dead, None if it does not. Being wrong costs a move, never two owners."""
        if broker in view.condemned:
            return view.condemned[broker]
        peer = view.peers.get(broker.name)
        if peer is not None and peer.broker.incarnation >= broker.incarnation:
            return None if peer.broker == broker else f"{broker} was replaced by {peer.broker}"
        quiet_since_s = max(view.heard_s.get(broker, view.listening_since_s), view.listening_since_s)
        if view.now_s - quiet_since_s <= 2 * self._settings.validity_s:
            self._deadlines_s.append(quiet_since_s + 2 * self._settings.validity_s + 0.001)
            return None
        return f"{broker} is not registered and silent on the channel"

    def _watch_holder(self, holder: Broker, table: OwnershipTable, view: View) -> Iterable[Duty]:
        reason = self.death_of(holder, view)
        if reason is not None:
            if self._revoking[holder] == table.count_held_by(holder):
                return []  # all of it is on its way: not to walk a million bundles in every tick until it has gone
            entries = [e for b in table.held_by(holder) if (e := table.get(b)) is not None and e.state in REVOCABLE]
            subjects = self._new("revoke", entries, view.now_s)
            return [Revoke(holder, subjects, f"{ORPHAN}{reason}")] if subjects else []
        return self._watch_cut_off(holder, table, view)

    def _watch_cut_off(self, holder: Broker, table: OwnershipTable, view: View) -> Iterable[Duty]:
        if holder.name in view.peers:
            self._unregistered_since_s.pop(holder, None)
            return []
        since_s = self._unregistered_since_s.setdefault(holder, view.now_s)
        due_s = since_s + self._settings.recovery_grace_s
        if view.now_s < due_s:
            self._deadlines_s.append(due_s)
            return []
        entries = [e for b in table.held_by(holder) if (e := table.get(b)) is not None and e.state is State.ASSIGNED]
        subjects = self._new("evacuate", entries, view.now_s)
        reason = f"{holder} is cut off from the coordination service for {self._settings.recovery_grace_s:g} s"
        return [Evacuate(holder, subjects, reason)] if subjects else []

    def _watch_in_flight(
        self, entry: Ownership, view: View, places: dict[str, list[tuple[Bundle, int]]]
    ) -> Iterable[Duty]:
        since_s = self._since(entry, view.now_s)
        overdue_s = since_s + self._settings.in_flight_timeout_s
        overdue = view.now_s >= overdue_s
        if not overdue:
            self._deadlines_s.append(overdue_s)
        match entry.state:
            case State.REVOKING:
                return self._finish_revocation(entry, since_s, view, places)
            case State.TRANSFERRING:
                reason = self._target_lost(entry, view) or (STUCK if overdue else None)
                return self._cancel(entry, reason, view.now_s)
            case State.SPLITTING:
                return self._cancel(entry, STUCK if overdue else None, view.now_s)
            case State.ASSIGNING | State.RELEASING if overdue and entry.holder is not None:
                subjects = self._new("revoke", [entry], view.now_s)
                reason = f"stuck in {entry.state} for {self._settings.in_flight_timeout_s:g} s"
                return [Revoke(entry.holder, subjects, reason)] if subjects else []
            case _:
                return []

    def _target_lost(self, entry: Ownership, view: View) -> str | None:
        return self.death_of(entry.target, view) if entry.target is not None else None

    def _cancel(self, entry: Ownership, reason: str | None, now_s: float) -> Iterable[Duty]:
        if reason is None or not self._new("cancel", [entry], now_s):
            return []
        return [Cancel(entry.bundle, entry.revision, reason)]

    def _finish_revocation(
        self, entry: Ownership, since_s: float, view: View, places: dict[str, list[tuple[Bundle, int]]]
    ) -> Iterable[Duty]:
        holder = entry.holder
        assert holder is not None
        raised_s = self._raised_s.get(holder)
        if raised_s is None:
            reason = self.death_of(holder, view)
            patience_s = since_s + self._settings.validity_s
            if reason is None and view.now_s < patience_s:
                self._deadlines_s.append(patience_s)
                return []
            if self._ask("raise", holder, holder.incarnation, view.now_s):
                return [Raise(holder, reason or f"{holder} did not release {entry.bundle}")]
            return []
        due_s = max(raised_s, since_s) + self._settings.validity_s + self._settings.margin_s
        if view.now_s < due_s:
            self._deadlines_s.append(due_s)
        elif subjects := self._new("place", [entry], view.now_s):
            places.setdefault(holder.name, []).extend(subjects)
        return []

    def _house(self, table: OwnershipTable, now_s: float) -> Iterable[Duty]:
        """Bundles that a revoked but living holder released to nobody: give them a place, without any lookup."""
        for bundle, (revision, former) in list(self._homeless.items()):
            entry = table.get(bundle)
            if entry is None or entry.revision != revision:
                del self._homeless[bundle]
            elif subjects := self._new("house", [entry], now_s):
                yield Place(subjects, former, revoked=False)

    # --- memory

    def _since(self, entry: Ownership, now_s: float) -> float:
        revision, since_s = self._seen.get(entry.bundle, (None, now_s))
        if revision != entry.revision:
            since_s = now_s
            self._seen[entry.bundle] = (entry.revision, now_s)
        return since_s

    def _new(self, duty: str, entries: Iterable[Ownership], now_s: float) -> tuple[tuple[Bundle, int], ...]:
        return tuple((e.bundle, e.revision) for e in entries if self._ask(duty, e.bundle, e.revision, now_s))

    def _ask(self, duty: str, subject: Bundle | Broker, seen: int, now_s: float) -> bool:
        """Whether this duty may be asked for now: not asked before, or long enough ago."""
        key = (duty, subject, seen)
        asked_s = self._asked_s.get(key)
        if asked_s is not None and now_s - asked_s < self._settings.retry_s:
            self._deadlines_s.append(asked_s + self._settings.retry_s)
            return False
        self._asked_s[key] = now_s
        self._deadlines_s.append(now_s + self._settings.retry_s)
        return True

    def _forget(self, now_s: float) -> None:
        if len(self._asked_s) > 1_000:
            horizon_s = now_s - 10 * self._settings.retry_s
            self._asked_s = {key: asked_s for key, asked_s in self._asked_s.items() if asked_s > horizon_s}
