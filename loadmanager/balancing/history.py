"""Which bundles planned moves brought where, and when: what the ownership table, which has no times, cannot tell.

Fed with the accepted changes of the channel. Only moves that the leader or an administrator asked for count. A bundle
that fled a dead broker, or one that was drained for a restart, owes nobody a rest: it may go back as soon as that
broker is there again. Every broker can keep one of these, so that a new leader knows what the old one did.
"""

from __future__ import annotations

import msgspec

from statechannel.bundle import Bundle
from statechannel.record import Action, Broker, Role
from statechannel.transitions import State
from statechannel.verdict import Change, Ownership, Transition

_PLANNED = (Action.TRANSFER, Action.UNLOAD)


class Arrival(msgspec.Struct, frozen=True):
    """The last planned move of a bundle: from which broker, when it was there, and the names of all it left so far."""

    source: Broker
    destination: Broker
    at_ms: int
    left: frozenset[str]


class MoveHistory:
    """Remembers arrivals for `memory_s`. `now_ms` is wall-clock time, as in the load reports it is compared with."""

    def __init__(self, memory_s: float) -> None:
        self._memory_ms = memory_s * 1000
        self._leaving: dict[Bundle, Broker] = {}
        self._arrivals: dict[Bundle, Arrival] = {}

    def observe(self, change: Change, now_ms: int) -> None:
        """Take the next accepted change of any partition."""
        planned = change.record.role is not Role.BROKER and change.record.action in _PLANNED
        for transition in change.transitions:
            self._step(transition, planned, now_ms)

    def _step(self, transition: Transition, planned: bool, now_ms: int) -> None:
        before, after = transition.before, transition.after
        if after is None:
            self._leaving.pop(transition.bundle, None)
            self._arrivals.pop(transition.bundle, None)
        elif planned and before is not None and before.holder is not None:
            self._leaving[after.bundle] = before.holder
        elif after.state is State.ASSIGNED:
            self._settle(after, now_ms)
        elif after.action is Action.REVOKE:
            self._leaving.pop(after.bundle, None)

    def _settle(self, entry: Ownership, now_ms: int) -> None:
        source = self._leaving.pop(entry.bundle, None)
        if source is None or entry.holder is None or source == entry.holder:
            return
        earlier = self.arrival(entry.bundle, now_ms)
        left = (earlier.left if earlier else frozenset[str]()) | {source.name}
        self._arrivals[entry.bundle] = Arrival(source, entry.holder, now_ms, left)

    def arrival(self, bundle: Bundle, now_ms: int) -> Arrival | None:
        """The bundle's last planned move, None if there was none or it is forgotten."""
        arrival = self._arrivals.get(bundle)
        if arrival is not None and now_ms - arrival.at_ms > self._memory_ms:
            del self._arrivals[bundle]
            return None
        return arrival

    def arrivals(self, now_ms: int) -> dict[Bundle, Arrival]:
        """Every arrival that is remembered; forgets the others."""
        return {bundle: each for bundle in tuple(self._arrivals) if (each := self.arrival(bundle, now_ms)) is not None}
