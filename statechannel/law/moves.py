"""The planned moves of each bundle: from where, to where, when. Part of the ownership table and of snapshots.

Only moves that the leader or an administrator asked for count. After a failover or a drain for a restart a bundle may
go back as soon as its old broker is there again. A move fails if its target can't prepare for the bundle or acquire it,
or the leader ends it. Then the bundle counts as arrived at the target and gone from it again, so that it rests before
the next try. Times are those of the records' authors. Bounded: keeps the newest
moves of a bundle, and in a partition the bundles that moved last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Transition

MOVES_KEPT_A_BUNDLE = 8
BUNDLES_KEPT = 10_000

_LAST_MS = 2**63 - 1
"""Authors may write any number as their time; this is the largest that fits into a snapshot."""

_PLANNED = frozenset({Action.TRANSFER, Action.UNLOAD})
_BROKER, _LEADER, _REVOKE = Role.BROKER, Role.LEADER, Action.REVOKE
_ASSIGNING, _ASSIGNED, _TRANSFERRING = State.ASSIGNING, State.ASSIGNED, State.TRANSFERRING
"""Looked up once, because every record needs them."""


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A planned move that arrived: from where, to where, and when its new owner said so (its wall clock)."""

    source: BrokerId
    destination: BrokerId
    at_ms: int


class Moves:
    """The planned moves of one partition: under way, and arrived."""

    def __init__(
        self, leaving: Iterable[tuple[Bundle, BrokerId]] = (), arrived: Iterable[tuple[Bundle, tuple[Move, ...]]] = ()
    ) -> None:
        self._leaving: dict[str, dict[Bundle, BrokerId]] = {}
        """By namespace, so that `forget` is quick for a namespace with 65,536 bundles under way."""
        for bundle, source in leaving:
            self._leaving.setdefault(bundle.namespace, {})[bundle] = source
        self._arrived = dict(arrived)

    def copy(self) -> Moves:
        """An independent copy."""
        copy = Moves()
        copy._leaving = {namespace: dict(some) for namespace, some in self._leaving.items()}
        copy._arrived = dict(self._arrived)
        return copy

    def of(self, bundle: Bundle) -> tuple[Move, ...]:
        """The bundle's planned moves as far as they are kept, newest last."""
        return self._arrived.get(bundle, ())

    @property
    def leaving(self) -> tuple[tuple[Bundle, BrokerId], ...]:
        """Bundles of planned moves that have not arrived, each with the holder it came from; by namespace."""
        return tuple(chain.from_iterable(some.items() for some in self._leaving.values()))

    @property
    def arrived(self) -> tuple[tuple[Bundle, tuple[Move, ...]], ...]:
        """Bundles with their moves, the bundle that moved last at the end."""
        return tuple(self._arrived.items())

    def observe(self, record: Record, transitions: Sequence[Transition]) -> None:
        """Take the next accepted record of the partition."""
        planned = record.role is not _BROKER and record.action in _PLANNED
        for transition in transitions:
            self._step(transition, planned, record)

    def forget(self, namespace: str) -> None:
        """Drop the moves of a namespace whose bundles are gone."""
        for bundle in [bundle for bundle in self._arrived if bundle.namespace == namespace]:
            del self._arrived[bundle]
        self._leaving.pop(namespace, None)

    def _step(self, transition: Transition, planned: bool, record: Record) -> None:
        before, after = transition.before, transition.after
        if after is None:
            self._left(transition.bundle)
            self._arrived.pop(transition.bundle, None)
        elif planned and before is not None and before.holder is not None:
            self._leaving.setdefault(after.bundle.namespace, {})[after.bundle] = before.holder
        elif after.state is _ASSIGNED:
            source = self._left(after.bundle)
            if source is not None and before is not None and before.state is _TRANSFERRING:  # cancelled
                failed = record.role is _LEADER or (record.role is _BROKER and record.actor == before.target)
                source = before.target if failed else None
            self._arrive(after.bundle, source, after.holder, record.at_ms)
        elif before is not None and before.state is _ASSIGNING:  # given back or revoked
            source = self._left(after.bundle)
            self._arrive(after.bundle, source, before.holder, record.at_ms)
            if source is not None and before.holder is not None:
                self._leaving.setdefault(after.bundle.namespace, {})[after.bundle] = before.holder
        elif after.action is _REVOKE:
            self._left(after.bundle)

    def _left(self, bundle: Bundle) -> BrokerId | None:
        """End a move under way; returns the holder that the bundle came from, None if it was not under way."""
        some = self._leaving.get(bundle.namespace)
        source = None if some is None else some.pop(bundle, None)
        if some is not None and not some:
            del self._leaving[bundle.namespace]
        return source

    def _arrive(self, bundle: Bundle, source: BrokerId | None, at: BrokerId | None, at_ms: int) -> None:
        if source is None or at is None or source == at:
            return
        earlier = self._arrived.pop(bundle, ())
        move = Move(source, at, min(max(0, at_ms), _LAST_MS))
        self._arrived[bundle] = (*earlier[1 - MOVES_KEPT_A_BUNDLE :], move)
        if len(self._arrived) > BUNDLES_KEPT:
            del self._arrived[next(iter(self._arrived))]
