"""Which bundles kill the brokers that take them: counted from the channel's accepted records, and held back. Pure.

A death is a leader's `revoke` of an orphan (`leader.core.ORPHAN`), or its `cancel` of a transfer whose target was lost.
It speaks against the bundles that the dead broker had been given within `quarantine_window_s`, or prepared for. One
proves nothing, for a broker dies with all that it holds; but what was innocent lands on brokers that live. So a bundle
is a suspect with the deaths *in succession* of those who took it; as soon as one keeps it for the window, or gives it
away alive, it is none. What `quarantine_deaths` of them prove, and against whom, says `blame.py`.

Every broker counts for itself, from the records alone and by their times: all come to the same result, and a new leader
goes on where the old one was. A broker that has just started has read the log from its newest snapshot on; what lies
before, it does not know. That is accepted: to write it into the snapshots would make it part of the law, and the
brokers that did not die remember. From the second death in succession on, a bundle is also held back for a while, twice
as long each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.splitting.blame import NOTHING_FOUND, Death, Findings, Suspect, findings
from statechannel.bundle import Bundle
from statechannel.record import Action, Broker, Record, Role
from statechannel.transitions import State
from statechannel.verdict import Change, Ownership, Transition

PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
GIVEN_KEPT = 100_000
"""Of the bundles that were given out last; of a whole cluster's start the oldest are forgotten."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """Who was given a bundle, and when, by the wall clock of whoever gave it."""

    to: Broker
    at_ms: int


class Quarantine:
    """What one broker has seen. Feed it every accepted change, in order, with those read at the start."""

    def __init__(self) -> None:
        self._given: dict[Bundle, Given] = {}
        self._suspects: dict[Bundle, Suspect] = {}
        self._pardons: dict[Bundle, int] = {}
        self._findings: dict[int, Findings] = {}
        """What follows from the suspects, by `quarantine_deaths`; until they change."""

    # --- feeding

    def observe(self, change: Change, window_s: float) -> None:
        """Take the next accepted record."""
        record = change.record
        if record.action is Action.NOOP:
            return
        self._findings.clear()
        if record.action in (Action.CREATE, Action.MERGE):
            self._reshape(change.transitions)
            return
        orphaned = record.action is Action.REVOKE and record.reason.startswith(ORPHAN)
        for transition in change.transitions:
            before, after = transition.before, transition.after
            if after is None:
                self._forget(transition.bundle)
            elif before is not None:
                self._step(before, after, record.at_ms)
                if orphaned and before.holder is not None:
                    self._died(before, before.holder, record.at_ms, window_s)
                elif record.action is Action.RELEASE and record.role is Role.BROKER:
                    self._gave_away(before)
                elif _lost_its_target(record, before) and before.target is not None:
                    self._count(before.bundle, Death(before.target, record.at_ms, 0, taking=True))

    def _step(self, before: Ownership, after: Ownership, at_ms: int) -> None:
        if after.state is State.ASSIGNING and after.holder is not None and after.token != before.token:
            self._given.pop(after.bundle, None)
            self._given[after.bundle] = Given(after.holder, at_ms)
            if len(self._given) > GIVEN_KEPT:
                del self._given[next(iter(self._given))]

    def _died(self, before: Ownership, holder: Broker, at_ms: int, window_s: float) -> None:
        given = self._given.get(before.bundle)
        if given is None or given.to != holder or at_ms - given.at_ms > window_s * 1000:
            self._suspects.pop(before.bundle, None)  # it lived with it for long enough
            return
        taking = before.state is State.ASSIGNING
        self._count(before.bundle, Death(holder, at_ms, max(0, at_ms - given.at_ms), taking))

    def _count(self, bundle: Bundle, death: Death) -> None:
        earlier = self._suspects.get(bundle)
        deaths = () if earlier is None else earlier.deaths
        if not (deaths and deaths[-1].broker == death.broker) and not self._pardoned(bundle, death.at_ms):
            self._suspects[bundle] = Suspect(bundle, (*deaths, death))

    def _gave_away(self, before: Ownership) -> None:
        """The holder itself wrote this `release`: it lives."""
        suspect = self._suspects.get(before.bundle)
        if suspect is None or before.state is State.ASSIGNING:  # it declined: it had not taken it
            return
        if before.state is State.REVOKING and suspect.deaths[-1].broker == before.holder:
            kept = suspect.deaths[:-1]  # it was taken for dead, wrongly
            if kept:
                self._suspects[before.bundle] = Suspect(before.bundle, kept)
                return
        del self._suspects[before.bundle]

    def _reshape(self, transitions: Iterable[Transition]) -> None:
        """What was born takes over what is known of what it took the place of."""
        gone = [t.bundle for t in transitions if t.after is None]
        born = [t.after.bundle for t in transitions if t.before is None and t.after is not None]
        given = [each for bundle in gone if (each := self._given.get(bundle)) is not None]
        suspects = [each for bundle in gone if (each := self._suspects.get(bundle)) is not None]
        for bundle in gone:
            self._forget(bundle)
        for bundle in born:
            if given:
                self._given[bundle] = max(given, key=lambda each: each.at_ms)
            if suspects:
                worst = max(suspects, key=lambda each: len(each.deaths))
                self._suspects[bundle] = Suspect(bundle, worst.deaths)

    def _forget(self, bundle: Bundle) -> None:
        self._given.pop(bundle, None)
        self._suspects.pop(bundle, None)

    def pardon(self, bundle: Bundle, at_ms: int) -> None:
        """An administrator let this part of the ring go at this time: deaths from before count no more, nor will they
        when they are read later."""
        self._pardons[bundle] = max(at_ms, self._pardons.get(bundle, at_ms))
        self._findings.clear()
        for suspect in [each for each in self._suspects.values() if _overlap(each.bundle, bundle)]:
            kept = tuple(death for death in suspect.deaths if death.at_ms > at_ms)
            del self._suspects[suspect.bundle]
            if kept:
                self._suspects[suspect.bundle] = Suspect(suspect.bundle, kept)

    def _pardoned(self, bundle: Bundle, at_ms: int) -> bool:
        return any(at_ms <= until_ms for each, until_ms in self._pardons.items() if _overlap(each, bundle))

    # --- asking

    def suspect(self, bundle: Bundle) -> Suspect | None:
        """What speaks against a bundle."""
        return self._suspects.get(bundle)

    def suspects(self, deaths: int = 2) -> list[Suspect]:
        """Those with so many deaths in succession, the most suspicious first."""
        found = (suspect for suspect in self._suspects.values() if len(suspect.deaths) >= deaths)
        return sorted(found, key=lambda each: (-len(each.deaths), each.suspicion))

    def condemned(self, least_of: Callable[[Bundle], int]) -> list[Suspect]:
        """The bundles to lock up; of those that went the same way one at most. `least_of` is a bundle's
        `quarantine_deaths`."""
        wanted = {bundle: least_of(bundle) for bundle, suspect in self._suspects.items() if len(suspect.deaths) > 0}
        found = {least: self._found(least).condemned for least in set(wanted.values())}
        return [found[least][bundle] for bundle, least in wanted.items() if bundle in found[least]]

    def held_back(self, bundle: Bundle, least: int, now_ms: int) -> str:
        """Why nobody is given the bundle now, empty if it may be. Cheap for what is no suspect."""
        suspect = self._suspects.get(bundle)
        if suspect is None or least <= 0 or (len(suspect.deaths) < 2 and least != 1):
            return ""
        found = self._found(least)
        if bundle in found.condemned:
            return f"it is being quarantined: {suspect}"
        pause_s = 0.0 if len(suspect.deaths) < 2 else PAUSE_S * 2.0 ** min(len(suspect.deaths) - 2, 30)
        pause_s = min(pause_s, LONGEST_PAUSE_S) + found.apart_s.get(bundle, 0.0)
        left_ms = suspect.last.at_ms + pause_s * 1000 - now_ms
        if not 0 < left_ms <= pause_s * 1000:
            return ""  # over, or by a clock that is far from ours
        return f"held back for {left_ms / 1000:.1f} s: {suspect}"

    def _found(self, least: int) -> Findings:
        if least <= 0:
            return NOTHING_FOUND
        if least not in self._findings:
            self._findings[least] = findings(self.suspects(least), least)
        return self._findings[least]


def _lost_its_target(record: Record, before: Ownership) -> bool:
    """Whether a transfer was called off because the broker died that prepared for it."""
    called_off = record.action is Action.CANCEL and record.role is Role.LEADER and before.state is State.TRANSFERRING
    return called_off and not record.reason.startswith(STUCK)


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi
