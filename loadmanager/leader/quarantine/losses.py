"""Lost brokers, by the channel's records, and the fate of each. Pure; the same for all who read the records.

A leader's `revoke` of an orphan, or its `cancel` of a transfer whose target was lost, shows that a broker was *lost*:
killed, stopped or cut off. Whether its process crashed shows later, when its name registers again or does not. The
leader finds that out (`fates.py`) and writes it into the channel as a no-op that names the incarnation: its *fate*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection
from enum import StrEnum

import msgspec

from statechannel.law.record import Action, BrokerId, Record, Role

FATE = "fate"
"""The `cause` of the no-op that tells a fate; its reason begins with the fate's word."""

CALM_S = 3_600.0
"""The longest calm that counts; and how far back other losses are counted."""
RESTLESS = 3
"""Losses in a row under one name: somebody who kills brokers in turn does not hit one this often in a row."""
KEPT_MS = 6 * 3_600_000
LOSSES_KEPT = 5_000


class Fate(StrEnum):
    """The fate of a broker's process after it was lost."""

    OPEN = "open"
    CRASHED = "crashed"
    GONE = "gone"
    """No process has registered under its name since, so it counts as crashed until one does."""
    LIVES = "lives"
    """It came back, or left on purpose; nothing killed it."""

    @property
    def is_death(self) -> bool:
        """Whether the process ended, as far as is known."""
        return self in (Fate.CRASHED, Fate.GONE)


class Loss(msgspec.Struct, frozen=True):
    """A lost broker.

    `calm_s`: for how long no other broker had been lost. `share`: the probability that chance chooses this broker
    next, by the losses of the last hour; losses of others do not lower it. `danger`: the expected rate at which its
    bundles would kill it, per second.
    """

    broker: BrokerId
    at_ms: int
    alive_ms: int
    """When it was last known alive, by its own clock if it wrote a record itself."""
    calm_s: float
    share: float
    danger: float
    fate: Fate = Fate.OPEN
    why: str = ""


class Losses:
    """The losses of the last hours, by incarnation."""

    def __init__(self) -> None:
        self._all: dict[BrokerId, Loss] = {}
        self._times: list[tuple[int, BrokerId]] = []
        self._undecided: dict[BrokerId, None] = {}
        self._since_ms: int | None = None
        self.version = 0
        """Grows with each loss and fate."""

    # --- feeding

    def watch(self, at_ms: int) -> None:
        """Records are known from this time on."""
        if self._since_ms is None:
            self._since_ms = at_ms

    def lost(self, broker: BrokerId, at_ms: int, alive_ms: int, brokers: int, danger: float) -> None:
        """A broker was lost, one of `brokers`; a loss that is known already stays as it is."""
        if broker in self._all:
            return
        calm_s = (at_ms - max(self._before(at_ms), self._since_ms or at_ms)) / 1000
        loss = Loss(broker, at_ms, alive_ms, min(max(calm_s, 0.0), CALM_S), self._share(broker, at_ms, brokers), danger)
        self._all[broker] = loss
        self._undecided[broker] = None
        insort(self._times, (at_ms, broker))
        self._forget(at_ms)
        self.version += 1

    def take_fate(self, record: Record) -> None:
        """Take a no-op that tells a fate (`fate_record`)."""
        loss = self._all.get(record.to) if record.to is not None else None
        word = record.reason.partition(":")[0]
        if loss is None or word not in list(Fate):
            return
        fate = Fate(word)
        self._all[loss.broker] = msgspec.structs.replace(loss, fate=fate, why=record.reason)
        if fate is not Fate.GONE:
            self._undecided.pop(loss.broker, None)
        self.version += 1

    # --- asking

    def __contains__(self, broker: BrokerId) -> bool:
        return broker in self._all

    def get(self, broker: BrokerId) -> Loss | None:
        """The loss of an incarnation; None if it was not lost, or too long ago."""
        return self._all.get(broker)

    def undecided(self) -> list[Loss]:
        """Losses whose fate is open or may still change."""
        return [self._all[broker] for broker in self._undecided]

    def newest_ms(self) -> int:
        """When a broker was last lost; the start of the records if none was."""
        return self._times[-1][0] if self._times else self._since_ms or 0

    def restless(self) -> str:
        """The name that all of the last `RESTLESS` losses have in common, else empty: it may well be lost next."""
        names = {broker.name for _, broker in self._times[-RESTLESS:]}
        return names.pop() if len(names) == 1 and len(self._times) >= RESTLESS else ""

    def calm_after_s(self, at_ms: int, but: Collection[BrokerId]) -> float:
        """The time from `at_ms` to the next loss of a broker not in `but`, at most `CALM_S`."""
        for at in range(bisect_left(self._times, at_ms, key=_time_of), len(self._times)):
            later_ms, broker = self._times[at]
            if broker not in but:
                return min((later_ms - at_ms) / 1000, CALM_S)
        return CALM_S

    def _before(self, at_ms: int) -> int:
        at = bisect_right(self._times, at_ms, key=_time_of)
        return self._times[at - 1][0] if at else 0

    def _share(self, broker: BrokerId, at_ms: int, brokers: int) -> float:
        since = bisect_left(self._times, at_ms - CALM_S * 1000, key=_time_of)
        others = [other for _, other in self._times[since:]]
        of_name = sum(other.name == broker.name for other in others)
        return max((of_name + 1) / (len(others) + max(brokers, 1)), 1 / max(brokers, 1))

    def _forget(self, now_ms: int) -> None:
        gone = max(
            bisect_left(self._times, now_ms - KEPT_MS, key=_time_of),
            len(self._times) - LOSSES_KEPT,
        )
        for _, broker in self._times[: max(gone, 0)]:
            self._all.pop(broker, None)
            self._undecided.pop(broker, None)
        del self._times[: max(gone, 0)]


def fate_record(leader: BrokerId, epoch: int, broker: BrokerId, fate: Fate, why: str) -> Record:
    """The record by which a leader tells the fate of a lost broker."""
    return Record("", Action.NOOP, leader, Role.LEADER, epoch, to=broker, cause=FATE, reason=f"{fate}: {why}")


def _time_of(entry: tuple[int, BrokerId]) -> int:
    return entry[0]
