"""Which bundles planned moves brought where, and when, as the channel tells it: part of the fold and of snapshots.

Only moves that the leader or an administrator asked for count. A bundle that fled a dead broker, or one that was
drained for a restart, owes nobody a rest: it may go back as soon as that broker is there again. Times are those that
the records' authors wrote down. Bounded: of a bundle the newest moves are kept, of a partition the bundles moved last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership, Transition

MOVES_KEPT_A_BUNDLE = 8
BUNDLES_KEPT = 10_000

_LAST_MS = 2**63 - 1
"""Authors may write down any number as their time; what is kept must fit into a snapshot."""

_PLANNED = frozenset({Action.TRANSFER, Action.UNLOAD})
_BROKER, _ASSIGNED, _REVOKE = Role.BROKER, State.ASSIGNED, Action.REVOKE
"""Looked up once: this is asked of each record."""


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A planned move that arrived: from where, to where, and when its new owner said so (its wall clock)."""

    source: BrokerId
    destination: BrokerId
    at_ms: int


class Moves:
    """The planned moves of one partition's bundles: those under way, and those that arrived."""

    def __init__(
        self, leaving: Iterable[tuple[Bundle, BrokerId]] = (), arrived: Iterable[tuple[Bundle, tuple[Move, ...]]] = ()
    ) -> None:
        self._leaving: dict[str, dict[Bundle, BrokerId]] = {}
        """By namespace: one that is deleted while 65,536 of its bundles are under way is forgotten in one go."""
        for bundle, source in leaving:
            self._leaving.setdefault(bundle.namespace, {})[bundle] = source
        self._arrived = dict(arrived)

    def copy(self) -> Moves:
        """The same, and its own from now on."""
        copy = Moves()
        copy._leaving = {namespace: dict(some) for namespace, some in self._leaving.items()}
        copy._arrived = dict(self._arrived)
        return copy

    def of(self, bundle: Bundle) -> tuple[Move, ...]:
        """The bundle's planned moves as far as they are kept, newest last."""
        return self._arrived.get(bundle, ())

    @property
    def leaving(self) -> tuple[tuple[Bundle, BrokerId], ...]:
        """Bundles of planned moves that have not arrived, and the holder each came from; by namespace."""
        return tuple(chain.from_iterable(some.items() for some in self._leaving.values()))

    @property
    def arrived(self) -> tuple[tuple[Bundle, tuple[Move, ...]], ...]:
        """Bundles with their moves, the one that moved last at the end."""
        return tuple(self._arrived.items())

    def observe(self, record: Record, transitions: Sequence[Transition]) -> None:
        """Take the next accepted record of the partition."""
        planned = record.role is not _BROKER and record.action in _PLANNED
        for transition in transitions:
            self._step(transition, planned, record.at_ms)

    def forget(self, namespace: str) -> None:
        """Its bundles are gone."""
        for bundle in [bundle for bundle in self._arrived if bundle.namespace == namespace]:
            del self._arrived[bundle]
        self._leaving.pop(namespace, None)

    def _step(self, transition: Transition, planned: bool, at_ms: int) -> None:
        before, after = transition.before, transition.after
        if after is None:
            self._left(transition.bundle)
            self._arrived.pop(transition.bundle, None)
        elif planned and before is not None and before.holder is not None:
            self._leaving.setdefault(after.bundle.namespace, {})[after.bundle] = before.holder
        elif after.state is _ASSIGNED:
            self._settle(after, at_ms)
        elif after.action is _REVOKE:
            self._left(after.bundle)

    def _left(self, bundle: Bundle) -> BrokerId | None:
        """The bundle is not under way any more: the holder it came from, None if it was not."""
        some = self._leaving.get(bundle.namespace)
        source = None if some is None else some.pop(bundle, None)
        if some is not None and not some:
            del self._leaving[bundle.namespace]
        return source

    def _settle(self, entry: Ownership, at_ms: int) -> None:
        source = self._left(entry.bundle)
        if source is None or entry.holder is None or source == entry.holder:
            return
        earlier = self._arrived.pop(entry.bundle, ())
        move = Move(source, entry.holder, min(max(0, at_ms), _LAST_MS))
        self._arrived[entry.bundle] = (*earlier[1 - MOVES_KEPT_A_BUNDLE :], move)
        if len(self._arrived) > BUNDLES_KEPT:
            del self._arrived[next(iter(self._arrived))]
