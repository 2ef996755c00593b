"""Which decided moves may begin now, and what holds the others back: limits of moves under way, and pauses. Pure.

Every move under way counts, from all sources: rounds, plans, administrators, draining brokers. Moves of one group begin
together or not at all. A move that is held back is not lost: the leader tries again while the round lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from loadmanager.model.policies.model import Policies
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Move, grouped
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class Rule(StrEnum):
    """What holds a move back. The three limits are named after their settings."""

    CLUSTER_PAUSED = "cluster paused"
    NAMESPACE_PAUSED = "namespace paused"
    BROKER_PAUSED = "broker paused"
    TOTAL = "moves_in_flight"
    BROKER = "moves_in_flight_per_broker"
    NAMESPACE = "moves_in_flight_per_namespace"
    WAVE = "wave"
    """The plan's earlier wave is not over yet."""
    DESTINATION = "destination away"
    """The destination of a plan's move takes no bundles at this moment, but may come back."""
    GROUP = "group"
    """Another move of its group is held back."""


class Deferred(msgspec.Struct, frozen=True):
    """A move that may not begin now; `detail` has the numbers."""

    move: Move
    rule: Rule
    detail: str


class Admission(msgspec.Struct, frozen=True):
    """The moves that may begin now, in their order, and the others."""

    moves: tuple[Move, ...]
    held: tuple[Deferred, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """How many moves may be under way."""

    total: int
    per_broker: int
    per_namespace: int

    @staticmethod
    def of(settings: Settings) -> Limits:
        """As many as one round may decide; a tenth of them for a broker, half of them for a namespace.

        A broker also opens bundles one after the other, and one tenant does not block the others.
        """
        most = settings.balancing_moves_per_round
        return Limits(most, max(1, most // 10), max(1, most // 2))


class UnderWay:
    """Counts the moves under way, by broker (as source or destination) and by namespace."""

    def __init__(self, entries: Iterable[Ownership] = ()) -> None:
        self.total = 0
        self.brokers: Counter[str] = Counter()
        self.namespaces: Counter[str] = Counter()
        for entry in entries:
            self._count_entry(entry)

    def _count_entry(self, entry: Ownership) -> None:
        """Count a bundle in a planned move; an assignment by a lookup, a split or a revocation does not count."""
        names = [broker.name for broker in (entry.holder, entry.target) if broker is not None]
        if entry.state in (State.TRANSFERRING, State.RELEASING) or (
            entry.state is State.ASSIGNING and entry.action.value == "release"
        ):
            self.add(entry.bundle.namespace, names)

    def add(self, namespace: str, brokers: Iterable[str], count: int = 1) -> None:
        """Count one more move; with -1 one less."""
        self.total += count
        self.namespaces[namespace] += count
        for name in brokers:
            self.brokers[name] += count

    def add_moves(self, moves: Iterable[Move], count: int = 1) -> None:
        """As `add`, for each of them."""
        for move in moves:
            self.add(move.bundle.namespace, _ends(move), count)


def allow(moves: Sequence[Move], under_way: UnderWay, limits: Limits, policies: Policies) -> Admission:
    """The moves that may begin now; `under_way` counts them from then on.

    Earlier moves have priority; a later move may overtake one whose brokers have no room.
    """
    begun: list[Move] = []
    held: list[Deferred] = []
    for group in grouped(moves):
        under_way.add_moves(group)
        refusals = [found for move in group if (found := _refusal(move, under_way, limits, policies)) is not None]
        if refusals:
            under_way.add_moves(group, -1)
            held += _all_held(group, refusals)
        else:
            begun += group
    return Admission(tuple(begun), tuple(held))


def paused_by(move: Move, policies: Policies) -> Deferred | None:
    """The pause that stops this move, None if there is none. Pauses stop plans as well as rounds."""
    if policies.cluster.paused:
        why = f": {policies.cluster.reason}" if policies.cluster.reason else ""
        return Deferred(move, Rule.CLUSTER_PAUSED, f"the cluster is paused{why}")
    namespace = policies.namespaces.get(move.bundle.namespace)
    if namespace is not None and namespace.paused:
        return Deferred(move, Rule.NAMESPACE_PAUSED, f"namespace {move.bundle.namespace} is paused")
    for name in _ends(move):
        broker = policies.brokers.get(name)
        if broker is not None and broker.paused:
            return Deferred(move, Rule.BROKER_PAUSED, f"broker {name} is paused")
    return None


def _refusal(move: Move, with_it: UnderWay, limits: Limits, policies: Policies) -> Deferred | None:
    """What holds the move back; `with_it` already counts the move and its group."""
    paused = paused_by(move, policies)
    if paused is not None:
        return paused
    if with_it.total > limits.total:
        return Deferred(move, Rule.TOTAL, _numbers("in all", with_it.total, limits.total))
    for name in _ends(move):
        if with_it.brokers[name] > limits.per_broker:
            return Deferred(move, Rule.BROKER, _numbers(f"at {name}", with_it.brokers[name], limits.per_broker))
    count = with_it.namespaces[move.bundle.namespace]
    if count > limits.per_namespace:
        return Deferred(move, Rule.NAMESPACE, _numbers(f"of {move.bundle.namespace}", count, limits.per_namespace))
    return None


def _numbers(where: str, would_be: int, limit: int) -> str:
    return f"{would_be} moves would be under way {where}, at most {limit} may be"


def _all_held(group: Sequence[Move], refusals: Sequence[Deferred]) -> Iterable[Deferred]:
    by_bundle = {refusal.move.bundle: refusal for refusal in refusals}
    first = refusals[0]
    for move in group:
        yield by_bundle.get(move.bundle) or Deferred(
            move, Rule.GROUP, f"only together with {first.move.bundle}, which is held back: {first.detail}"
        )


def _ends(move: Move) -> tuple[str, ...]:
    return (move.source.name,) if move.destination is None else (move.source.name, move.destination.name)
