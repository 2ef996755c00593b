"""When planned moves brought a bundle where it is, and which brokers it left, from the channel's own memory of them.

The memory is part of the fold (`statechannel.law.moves`) and of its snapshots, so a new leader, and a broker that was
just started, know what the old ones did. Here it is only limited to the time in which a move still matters. What a
bundle's load was when it was moved is known to the leader that moved it, and from the decisions that it recorded.
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
    """The last planned move of a bundle: from which broker, when it was there, and the names of all it left so far."""

    source: BrokerId
    destination: BrokerId
    at_ms: int
    left: frozenset[str]


class MoveHistory:
    """Planned moves of the last `memory_s`, by the wall clocks of those who took the bundles."""

    def __init__(self, table: OwnershipTable, memory_s: float) -> None:
        self._table = table
        self._memory_ms = memory_s * 1000
        self._loads: dict[tuple[Bundle, BrokerId, BrokerId], Row] = {}

    def set_memory(self, memory_s: float) -> None:
        """Let moves matter for so long from now on."""
        self._memory_ms = memory_s * 1000

    def arrival(self, bundle: Bundle, now_ms: int) -> Arrival | None:
        """The bundle's last planned move, None if there was none or it does not matter any more."""
        # a clock that runs ahead of ours must not let a bundle rest until ours has come so far
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
        """The moves whose loads were noted last, the newest first: bundle, source, destination."""
        return tuple(islice(reversed(self._loads), count))

    def load_moved(self, bundle: Bundle, arrival: Arrival) -> Row | None:
        """The bundle's load when it was decided to move it there; None if nobody remembers."""
        return self._loads.get((bundle, arrival.source, arrival.destination))
