"""Which bundles crash the brokers that acquire them, judged from the channel's records alone. Pure.

A broker is *lost* when the leader revokes its bundles as orphans, calls off a transfer to it, or reports its end in a
no-op. Each loss counts against the bundles that this broker had acquired within `quarantine_window_s`, and ends the
evidence against all others. So the evidence against a bundle is a *row* of losses. Each broker in it was lost soon
after it acquired this bundle, and meanwhile no broker without the bundle was lost. A holder that releases the bundle,
or that turns out to be alive, ends the row too.

From the second loss on (`DRAWN_FROM`) the bundle goes to a broker drawn at random, and the record that gives it out
says from how many. If losses have another cause, which does not depend on that draw, the next lost broker is the drawn
one of n with probability 1/n at most. So the product of these n is a test martingale: whatever else kills brokers, and
in whatever order, it exceeds x with a probability of at most 1/x (Ville 1939). The *odds* divide it by the number of
bundles with such a row, and by a prior of 1 : 1,000. A bundle is *suspected* after losses of `quarantine_deaths`
different brokers, at least three, and locked above odds of 1,000 : 1. Suspected bundles are served.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from math import prod

import msgspec

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.model.policies.effective import intersects
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ends_a_failed_move
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership

LOSS = "fate"
"""The `cause` of the no-op by which a leader reports the end of a broker, `Record.to`: its reason begins with an
`End`."""
DRAWN = "drawn:"
"""Begins the `cause` of a record that gives a bundle to a broker drawn at random; the number of candidates follows."""

LEAST = 3
"""Suspected after losses of this many different brokers at least, whatever `quarantine_deaths` says."""
DRAWN_FROM = 2
"""From this many losses in a row on a bundle is given to a broker drawn at random."""
PRIOR = 1e-3
"""The odds, before any evidence, that one of the bundles in a row of losses is their cause."""
LOCKED_ABOVE = 1e3
"""The odds above which a suspected bundle is locked."""

GIVEN_KEPT = 100_000
ROWS_KEPT = 1_000
"""If a lost broker had acquired more bundles within the window, none of them begins a row."""
DEATHS_KEPT = 64
LOST_KEPT = 10_000


class End(StrEnum):
    """What became of the process of a lost broker."""

    OPEN = "open"
    CRASHED = "crashed"
    """Its name registered again with another process, or not at all for a long time."""
    LIVES = "lives"
    """The same process came back, or it left on purpose."""


class Acquired(msgspec.Struct, frozen=True, gc=False):
    """A bundle was given to a broker, by a record of this time, out of `drawn_from` candidates at random (1: not)."""

    bundle: Bundle
    to: BrokerId
    at_ms: int
    drawn_from: int


class Death(msgspec.Struct, frozen=True, gc=False):
    """A broker was lost `held_ms` after it got the bundle; `among`: bundles with `DRAWN_FROM` losses then."""

    broker: BrokerId
    at_ms: int
    held_ms: int
    drawn_from: int
    among: int

    def __str__(self) -> str:
        drawn = f", drawn from {self.drawn_from}" if self.drawn_from > 1 else ""
        return f"{self.broker} {self.held_ms / 1000:.1f} s after it got the bundle{drawn}"


class Evidence(msgspec.Struct, frozen=True):
    """The row of losses with one bundle, oldest first."""

    bundle: Bundle
    deaths: tuple[Death, ...] = ()

    @property
    def odds(self) -> float:
        """The odds that the bundle is the cause."""
        among = self.deaths[DRAWN_FROM - 1].among if len(self.deaths) >= DRAWN_FROM else 1
        return PRIOR * prod(death.drawn_from for death in self.deaths) / among

    @property
    def names(self) -> frozenset[str]:
        """The names of the lost brokers."""
        return frozenset(death.broker.name for death in self.deaths)

    def is_suspected(self, least: int) -> bool:
        """Returns True if enough different brokers were lost; `least` is `quarantine_deaths`, 0 for never."""
        return least > 0 and len(self.names) >= max(least, LEAST)

    def __str__(self) -> str:
        return (
            f"{len(self.deaths)} brokers were lost one after the other, each soon after it got the bundle, and no "
            f"other; the last one: {self.deaths[-1]}; odds {self.odds:.2g} : 1 that the bundle is the cause, locked "
            f"above {LOCKED_ABOVE:,.0f} : 1; lost earlier: "
            f"{', '.join(str(death.broker) for death in self.deaths[:-1])}"
        )


class Quarantine:
    """The evidence of one broker, which is the same at all that read the same records.

    Feed every accepted change in order. `holds` says whether a broker owns a bundle now, or is to get it.
    """

    def __init__(self, holds: Callable[[Bundle, BrokerId], bool]) -> None:
        self._holds = holds
        self._given: deque[Acquired] = deque()
        self._acquired: dict[BrokerId, dict[Bundle, Acquired]] = {}
        self._lost: OrderedDict[BrokerId, End] = OrderedDict()
        self._rows: dict[Bundle, Evidence] = {}
        self._last: OrderedDict[Bundle, Death] = OrderedDict()
        self._pardons: OrderedDict[Bundle, int] = OrderedDict()

    # --- feeding

    def observe(self, change: Change, window_s: float) -> None:
        """Take the next accepted record."""
        record = change.record
        if record.action is Action.NOOP:
            if record.cause == LOSS and record.to is not None:
                self.lose(record.to, record.at_ms, window_s)
                self.tell(record.to, record.reason.partition(":")[0])
            return
        if change.whole is not None:
            for bundle in change.bundles(tuple(self._rows)):
                del self._rows[bundle]
            return
        for transition in change.transitions:
            before, after = transition.before, transition.after
            if before is None or after is None:
                self._rows.pop(transition.bundle, None)
                continue
            if record.action is Action.REVOKE and record.reason.startswith(ORPHAN) and before.holder is not None:
                self.lose(before.holder, record.at_ms, window_s)
            elif _lost_its_target(record, before) and before.target is not None:
                self.lose(before.target, record.at_ms, window_s, {each.bundle for each in change.transitions})
            elif record.action is Action.RELEASE and record.role is Role.BROKER and before.state is not State.ASSIGNING:
                self.live_with(before.bundle)
            to = after.target if after.state is State.TRANSFERRING else after.holder
            if after.state in (State.TRANSFERRING, State.ASSIGNING) and to is not None and to != before.target:
                self.give(after.bundle, to, record.at_ms, _drawn_from(record))

    def give(self, bundle: Bundle, to: BrokerId, at_ms: int, drawn_from: int = 1) -> None:
        """A broker is to acquire a bundle, or to prepare for it."""
        given = Acquired(bundle, to, at_ms, drawn_from)
        self._acquired.setdefault(to, {})[bundle] = given
        self._given.append(given)
        if len(self._given) > GIVEN_KEPT:
            oldest = self._given.popleft()
            theirs = self._acquired.get(oldest.to, {})
            if theirs.get(oldest.bundle) is oldest:
                del theirs[oldest.bundle]
            if not theirs:
                self._acquired.pop(oldest.to, None)

    def live_with(self, bundle: Bundle) -> None:
        """The holder of a bundle gave it away, alive."""
        self._rows.pop(bundle, None)

    def lose(self, broker: BrokerId, at_ms: int, window_s: float, left: Collection[Bundle] = ()) -> None:
        """A broker was lost. Only the first loss of an incarnation counts. `left`: bundles just taken from it."""
        if broker in self._lost:
            return
        self._lost[broker] = End.OPEN
        if len(self._lost) > LOST_KEPT:
            self._lost.popitem(last=False)
        acquired = self._acquired.pop(broker, {})
        known = self._rows if len(acquired) > ROWS_KEPT else acquired
        given = [
            each
            for bundle in known
            if (each := acquired.get(bundle)) is not None
            and at_ms - each.at_ms <= window_s * 1000
            and (bundle in left or self._holds(bundle, broker))
            and not self._is_pardoned(bundle, at_ms)
        ]
        among = sum(each.bundle in self._rows for each in given)
        rows = dict[Bundle, Evidence]()
        for each in given:
            death = Death(broker, at_ms, max(0, at_ms - each.at_ms), each.drawn_from, among)
            before = self._rows.get(each.bundle)
            deaths = (*(before.deaths if before is not None else ()), death)
            rows[each.bundle] = Evidence(each.bundle, deaths[-DEATHS_KEPT:])
            self._last[each.bundle] = death
            self._last.move_to_end(each.bundle)
        self._rows = rows
        while len(self._last) > ROWS_KEPT:
            self._last.popitem(last=False)

    def tell(self, broker: BrokerId, word: str) -> None:
        """A leader found out what became of a lost broker: the text of an `End`."""
        if broker not in self._lost:
            return
        if word in ("gone", End.CRASHED):  # `gone` is what earlier releases wrote
            self._lost[broker] = End.CRASHED
        elif word == End.LIVES:
            self._lost[broker] = End.LIVES
            lived = [row.bundle for row in self._rows.values() if any(d.broker == broker for d in row.deaths)]
            for bundle in lived:
                del self._rows[bundle]

    def pardon(self, bundle: Bundle, at_ms: int) -> None:
        """A lock on this range has ended: earlier losses no longer count.

        Those that were read already do not, whatever the clocks say. A replay may read them later; then those up to
        `at_ms` do not.
        """
        for each in [each for each in self._rows if intersects(each, bundle)]:
            del self._rows[each]
        self._pardons[bundle] = at_ms
        if len(self._pardons) > ROWS_KEPT:
            self._pardons.popitem(last=False)

    def _is_pardoned(self, bundle: Bundle, at_ms: int) -> bool:
        return any(at_ms <= until_ms and intersects(each, bundle) for each, until_ms in self._pardons.items())

    # --- asking

    def end_of(self, broker: BrokerId) -> End | None:
        """What became of a lost broker; None if it was not lost."""
        return self._lost.get(broker)

    def evidence(self, bundle: Bundle) -> Evidence:
        """The evidence against a bundle; empty if there is none."""
        return self._rows.get(bundle) or Evidence(bundle)

    def rows(self) -> Iterator[Evidence]:
        """The evidence against each bundle with which `DRAWN_FROM` or more brokers in a row were lost."""
        return (each for each in tuple(self._rows.values()) if len(each.deaths) >= DRAWN_FROM)

    def is_drawn(self, bundle: Bundle) -> bool:
        """Returns True if the bundle is to go to a broker drawn at random."""
        row = self._rows.get(bundle)
        return row is not None and len(row.deaths) >= DRAWN_FROM

    def last_death(self, bundle: Bundle) -> Death | None:
        """The newest loss soon after the bundle was given out, in a row or not."""
        return self._last.get(bundle)


def drawn(candidates: int) -> str:
    """The `cause` of a record that gives a bundle to one of this many candidates, drawn at random."""
    return f"{DRAWN}{candidates}"


def loss_record(leader: BrokerId, epoch: int, broker: BrokerId, end: End, why: str) -> Record:
    """The record by which a leader reports the end of a broker."""
    return Record("", Action.NOOP, leader, Role.LEADER, epoch, to=broker, cause=LOSS, reason=f"{end}: {why}")


def _drawn_from(record: Record) -> int:
    number = record.cause.removeprefix(DRAWN)
    return int(number) if number != record.cause and number.isascii() and number.isdigit() and len(number) < 6 else 1


def _lost_its_target(record: Record, before: Ownership) -> bool:
    """Returns True if a transfer was called off because its target was lost."""
    failed = before.state is State.TRANSFERRING and ends_a_failed_move(record)
    return failed and not record.reason.startswith(STUCK)
