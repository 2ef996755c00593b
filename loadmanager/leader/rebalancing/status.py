"""The status of balance, at any broker: the last round, moves under way, limits, pauses, spread.

The leader knows the present outcome of each move of its last round; other brokers read the round's decision record.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import Outcome
from loadmanager.leader.rebalancing.limits import Limits, UnderWay
from loadmanager.leader.rebalancing.pausing import Paused, paused
from loadmanager.leader.rebalancing.planning import figures
from loadmanager.leader.rebalancing.rebalancer import Rebalancer
from loadmanager.strategies.rebalancing.decision import Certificate, Decision, Move
from statechannel.errors import LogError

HELD_SHOWN = 100
NOTHING_BECAME = Outcome("unknown")


class LastRound(msgspec.Struct, frozen=True):
    """The cluster's last round. `certificate` has the least load that had to move, whatever the algorithm."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    decision: Decision
    outcomes: tuple[Outcome, ...]
    """In the order of the decision's moves."""

    @property
    def certificate(self) -> Certificate | None:
        return self.decision.certificate

    @property
    def moves(self) -> tuple[tuple[Move, Outcome], ...]:
        """Each move with its outcome as far as known."""
        missing = len(self.decision.moves) - len(self.outcomes)
        return tuple(zip(self.decision.moves, (*self.outcomes, *(NOTHING_BECAME,) * missing), strict=True))


class BalanceStatus(msgspec.Struct, frozen=True):
    """The status of balance. `spread` is max/mean - 1 of the brokers' fullest resource, a fraction as `tolerance`."""

    balancing: bool
    review: bool
    strategy: str
    tolerance: float
    spread: float
    usages: Mapping[str, float]
    paused: Paused
    limits: Limits
    in_flight: int
    in_flight_by_broker: Mapping[str, int]
    in_flight_by_namespace: Mapping[str, int]
    held: tuple[str, ...]
    """What holds back moves of the last round and of running plans, one line each; only the leader knows."""
    last: LastRound | None
    """None if there was no round, or the log does not answer."""


async def balance_status(rebalancer: Rebalancer, decisions: DecisionLog, leader: str) -> BalanceStatus:
    """The present status."""
    deciding = rebalancer.deciding
    settings, policies = deciding.settings(), deciding.policies()
    model = await deciding.recent_model()
    now = figures(model, settings, [broker.name for broker in model.brokers.ids])
    under_way = UnderWay(deciding.table.in_flight())
    leads = rebalancer.running is not None
    return BalanceStatus(
        balancing=settings.balancing,
        review=settings.balancing_review,
        strategy=settings.balancing_strategy,
        tolerance=settings.tolerance,
        spread=now.spread,
        usages=now.usages,
        paused=paused(policies),
        limits=Limits.of(settings),
        in_flight=under_way.total,
        in_flight_by_broker=dict(under_way.brokers),
        in_flight_by_namespace=dict(under_way.namespaces),
        held=_held(rebalancer) if leads else (),
        last=(_own_last(rebalancer, leader) if leads else None) or await _recorded_last(decisions),
    )


def _held(rebalancer: Rebalancer) -> tuple[str, ...]:
    of_round = rebalancer.last.held if rebalancer.last is not None else ()
    of_plans = rebalancer.running.held.items() if rebalancer.running is not None else ()
    lines = [f"{each.move.bundle}: {each.rule}: {each.detail}" for each in of_round]
    lines += [
        f"plan {plan}: {each.move.bundle}: {each.rule}: {each.detail}" for plan, held in of_plans for each in held
    ]
    return (*lines[:HELD_SHOWN], *([f"and {len(lines) - HELD_SHOWN} more"] if len(lines) > HELD_SHOWN else []))


def _own_last(rebalancer: Rebalancer, leader: str) -> LastRound | None:
    last = rebalancer.last
    if last is None:
        return None
    outcomes = tuple(last.outcomes.get(move.bundle, NOTHING_BECAME) for move in last.decision.moves)
    return LastRound(last.id, last.at_ms, leader, last.settings.balancing_strategy, last.decision, outcomes)


async def _recorded_last(decisions: DecisionLog) -> LastRound | None:
    try:
        newest = await decisions.newest(1)
        found = await decisions.get(newest[0].id) if newest else None
    except (LogError, TimeoutError):
        return None
    if found is None:
        return None
    record = found.record
    return LastRound(record.id, record.at_ms, record.leader.name, record.strategy, record.decision, record.outcomes)
