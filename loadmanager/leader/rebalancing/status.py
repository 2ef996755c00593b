"""The status of balance, at any broker, for REST and for Prometheus.

The leader knows the present outcome of each move of its last round; other brokers read the round's decision record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.metrics_core import Metric

from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import Outcome
from loadmanager.leader.plans.plan import PlanState
from loadmanager.leader.plans.proposals import figures
from loadmanager.leader.rebalancing.actions import Paused, paused
from loadmanager.leader.rebalancing.limits import Limits, Rule, UnderWay
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.model.families import counter, counters, gauge, gauges
from loadmanager.strategies.rebalancing.decision import Certificate, Decision, Move, Stage
from statechannel.errors import LogError
from statechannel.law.record import Action
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

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


def balance_metrics(rebalancer: Rebalancer, now_s: float) -> Iterator[Metric]:
    """All metrics; those of the last round only while this broker leads. `now_s` is the broker's own clock."""
    counts = rebalancer.counts
    yield counter("balancing_rounds", "Rounds that this broker led", counts.rounds)
    yield counter("balancing_failures", "Rounds in which a strategy or we ourselves failed", counts.rounds_failed)
    yield counter("balancing_records_lost", "Rounds whose decision was not recorded", counts.records_failed)
    yield counters(
        "balancing_moves", "Moves begun", "stage", {stage.value: counts.moves[stage.value] for stage in Stage}
    )
    yield counters(
        "balancing_held_back",
        "Moves that a round could not begin at once",
        "rule",
        {rule.value: counts.held_back[rule.value] for rule in Rule},
    )
    yield gauge("moves_in_flight", "Planned moves under way in the cluster", _under_way(rebalancer.deciding.table))
    yield from _plans(rebalancer)
    acts = {act: counts.advice[act] for act in ("applied", "kept", "withdrawn", "harmed")}
    yield counters("advice_acts", "What this broker did with advice as leader", "act", acts)
    yield counter("advice_failures", "Looks at advice that failed", counts.advice_failures)
    still = paused(rebalancer.deciding.policies())
    subjects = int(still.cluster) + len(still.namespaces) + len(still.brokers)
    yield gauge("balancing_paused", "How many subjects are paused: the cluster, namespaces, brokers", subjects)
    yield from _last_round(rebalancer, now_s)


def _under_way(table: OwnershipTable) -> int:
    """Bundles in planned moves, without a look at each: those of one record are alike."""
    total = 0
    for flight in table.flights():
        if flight.state in (State.TRANSFERRING, State.RELEASING):
            total += table.count_on(flight)
        elif flight.state is State.ASSIGNING:  # after a release it is part of a move, else it comes from a lookup
            first = table.get(table.on(flight)[0])
            total += table.count_on(flight) if first is not None and first.action is Action.RELEASE else 0
    return total


def _plans(rebalancer: Rebalancer) -> Iterator[Metric]:
    """All plans, and plans with advice, by state."""
    plans = rebalancer.plans.all()
    advised = [plan for plan in plans if plan.advice is not None]
    told = "Advice of the load history: plans that have some"
    for name, help_text, found in (("plans", "Plans of the cluster", plans), ("advice", told, advised)):
        states = Counter(plan.state for plan in found)
        yield gauges(name, help_text, "state", {state.value: states[state] for state in PlanState})
    skipped = "Entries of the topic of plans that this release cannot read"
    yield counter("plans_skipped", skipped, rebalancer.plans.documents.skipped)


def _last_round(rebalancer: Rebalancer, now_s: float) -> Iterator[Metric]:
    """NaN at brokers that do not lead, and where there was nothing to compare."""
    last = rebalancer.last if rebalancer.running is not None else None
    began_s = rebalancer.counts.last_round_s
    age_s = now_s - began_s if last is not None and began_s is not None else float("nan")
    certificate = None if last is None else last.decision.certificate
    yield gauge("balancing_round_age_seconds", "Since the last round began; NaN where none leads", age_s)
    interval_s = rebalancer.deciding.settings().balancing_interval_s
    yield gauge("balancing_interval_seconds", "Between two rounds, by the settings", interval_s)
    spread = float("nan") if last is None or last.model is None else last.decision.spread_before
    yield gauge("balancing_spread", "max/mean - 1 of the brokers' fullest resource, in the last round", spread)
    ratio = float("nan") if certificate is None else certificate.ratio
    yield gauge("balancing_bound_ratio", "Load that the last plan moves / the least that had to move", ratio)
