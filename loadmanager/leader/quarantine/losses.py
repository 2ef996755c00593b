"""Brokers that were lost, by the channel's records, and what became of each. Pure; the same for all who read them.

A leader's `revoke` of an orphan, or its `cancel` of a transfer whose target was lost, says that a broker was *lost*:
killed, stopped, cut off. Whether its process crashed shows later, when its name registers again or does not; the leader
finds that out (`fates.py`) and writes it into the channel as a no-op that names the incarnation: its *fate*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection
from enum import StrEnum

import msgspec

from statechannel.law.record import Action, BrokerId, Record, Role

FATE = "fate"
"""The `cause` of the no-op that tells one; its reason begins with the fate's word."""

CALM_S = 3_600.0
"""A cluster that was calm for longer counts as calm for so long; and how far back other losses are counted."""
RESTLESS = 3
"""Losses in a row of one name: who kills brokers in turn kills none so often before the others."""
KEPT_MS = 6 * 3_600_000
LOSSES_KEPT = 5_000


class Fate(StrEnum):
    """What became of a broker's process after it was lost."""

    OPEN = "open"
    CRASHED = "crashed"
    GONE = "gone"
    """Nobody has registered under its name since; so it counts as crashed, until it comes back."""
    LIVES = "lives"
    """It came back, or left on purpose: nothing killed it."""

    @property
    def is_death(self) -> bool:
        """Whether the process ended, as far as is known."""
        return self in (Fate.CRASHED, Fate.GONE)


class Loss(msgspec.Struct, frozen=True):
    """A lost broker. `calm_s`: for how long before nobody else had been lost. `share`: how likely it was to be the next
    one, if chance chose among the brokers by the losses of the last hour; those of others make it no less likely.
    `danger`: how much its bundles then were expected to kill it, per second."""

    broker: BrokerId
    at_ms: int
    alive_ms: int
    """It was alive then, by its own clock where it wrote anything itself."""
    calm_s: float
    share: float
    danger: float
    fate: Fate = Fate.OPEN
    why: str = ""


class Losses:
    """Those of the last hours, by incarnation."""

    def __init__(self) -> None:
        self._all: dict[BrokerId, Loss] = {}
        self._times: list[tuple[int, BrokerId]] = []
        self._undecided: dict[BrokerId, None] = {}
        self._since_ms: int | None = None
        self.version = 0
        """Grows with each loss and fate."""

    # --- feeding

    def watch(self, at_ms: int) -> None:
        """Records are read from this time on."""
        if self._since_ms is None:
            self._since_ms = at_ms

    def lost(self, broker: BrokerId, at_ms: int, alive_ms: int, brokers: int, danger: float) -> None:
        """A broker was lost, one of so many; what is known of it already is kept."""
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
        """A no-op that tells a fate (`fate_record`)."""
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
        """What is known of a lost incarnation; None for one that was not lost, or too long ago."""
        return self._all.get(broker)

    def undecided(self) -> list[Loss]:
        """Those whose fate is open, or may change yet."""
        return [self._all[broker] for broker in self._undecided]

    def newest_ms(self) -> int:
        """When a broker was lost last; from when on records were read, if none was."""
        return self._times[-1][0] if self._times else self._since_ms or 0

    def restless(self) -> str:
        """The name of the broker that the last losses were all of, if any: it may well be the next one."""
        names = {broker.name for _, broker in self._times[-RESTLESS:]}
        return names.pop() if len(names) == 1 and len(self._times) >= RESTLESS else ""

    def calm_after_s(self, at_ms: int, but: Collection[BrokerId]) -> float:
        """How long after a time the next one was lost that is none of these; `CALM_S` if none was."""
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
    """What a leader writes into the channel about a lost broker."""
    return Record("", Action.NOOP, leader, Role.LEADER, epoch, to=broker, cause=FATE, reason=f"{fate}: {why}")


def _time_of(entry: tuple[int, BrokerId]) -> int:
    return entry[0]
