"""Prometheus metrics of balance at one broker: counters of its own rounds, and figures of the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from loadmanager.leader.plans.model import PlanState
from loadmanager.leader.rebalancing.limits import Rule
from loadmanager.leader.rebalancing.pausing import paused
from loadmanager.leader.rebalancing.rebalancer import Rebalancer
from loadmanager.model.families import counter, counters, gauge, gauges
from loadmanager.strategies.rebalancing.decision import Stage
from statechannel.law.record import Action
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State


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
