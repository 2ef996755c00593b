"""The recent planned moves of each bundle, as the channel remembers them.

This memory is part of the replay (`statechannel.law.moves`) and of snapshots, so a new leader, and a broker that has
just started, know the earlier moves. This module only limits them to the time in which a move still matters. The
bundle's load at the time of a move is known to the leader that decided it, and from its recorded decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from loadmanager.model.load.usage import Row
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable

LOADS_KEPT = 10_000


class Arrival(msgspec.Struct, frozen=True):
    """The last planned move of a bundle: its ends, its time, and the names of all brokers that the bundle left."""

    source: BrokerId
    destination: BrokerId
    at_ms: int
    left: frozenset[str]


class MoveHistory:
    """Planned moves of the last `memory_s`, by the wall clocks of the brokers that took the bundles."""

    def __init__(self, table: OwnershipTable, memory_s: float) -> None:
        self._table = table
        self._memory_ms = memory_s * 1000
        self._loads: dict[tuple[Bundle, BrokerId, BrokerId], Row] = {}

    def set_memory(self, memory_s: float) -> None:
        """Change for how long moves matter."""
        self._memory_ms = memory_s * 1000

    def arrival(self, bundle: Bundle, now_ms: int) -> Arrival | None:
        """The bundle's last planned move; None if there was none, or it no longer matters."""
        # `abs`: a move by a clock far ahead of ours must not keep its bundle at rest until our clock catches up
        recent = [move for move in self._table.moves(bundle) if abs(now_ms - move.at_ms) <= self._memory_ms]
        if not recent:
            return None
        last = recent[-1]
        return Arrival(last.source, last.destination, last.at_ms, frozenset(move.source.name for move in recent))

    def remember(self, moves: Iterable[tuple[Bundle, BrokerId, BrokerId, Row]]) -> None:
        """Note the loads of bundles that are being moved: bundle, source, destination, load as in a model's row."""
        for bundle, source, destination, load in moves:
            self._loads.pop((bundle, source, destination), None)
            self._loads[bundle, source, destination] = load
        while len(self._loads) > LOADS_KEPT:
            del self._loads[next(iter(self._loads))]

    def newest(self, count: int) -> tuple[tuple[Bundle, BrokerId, BrokerId], ...]:
        """The last moves with a known load, the newest first: bundle, source, destination."""
        return tuple(islice(reversed(self._loads), count))

    def load_moved(self, bundle: Bundle, arrival: Arrival) -> Row | None:
        """The bundle's load when this move was decided; None if it is not known."""
        return self._loads.get((bundle, arrival.source, arrival.destination))
