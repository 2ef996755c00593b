"""Prometheus metrics of balance at one broker: counters of its own rounds, and figures of the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadmanager.leader.plans.model import PlanState
from loadmanager.leader.rebalancing.limits import Rule, UnderWay
from loadmanager.leader.rebalancing.pausing import paused
from loadmanager.leader.rebalancing.rebalancer import Rebalancer
from loadmanager.strategies.rebalancing.decision import Stage

PREFIX = "loadmanager_"


def balance_metrics(rebalancer: Rebalancer, now_s: float) -> Iterator[Metric]:
    """All metrics; those of the last round only while this broker leads. `now_s` is the broker's own clock."""
    counts = rebalancer.counts
    yield _counter("balancing_rounds", "Rounds that this broker led", counts.rounds)
    yield _counter("balancing_failures", "Rounds in which a strategy or we ourselves failed", counts.rounds_failed)
    yield _counter("balancing_records_lost", "Rounds whose decision was not recorded", counts.records_failed)
    yield _counters("balancing_moves", "Moves begun", "stage", {stage: counts.moves[stage.value] for stage in Stage})
    yield _counters(
        "balancing_held_back",
        "Moves that a round could not begin at once",
        "rule",
        {rule: counts.held_back[rule.value] for rule in Rule},
    )
    under_way = UnderWay(rebalancer.deciding.table.in_flight())
    yield _gauge("moves_in_flight", "Planned moves under way in the cluster", under_way.total)
    yield from _plans(rebalancer)
    acts = {act: counts.advice[act] for act in ("applied", "kept", "withdrawn", "harmed")}
    yield _counters("advice_acts", "What this broker did with advice as leader", "act", acts)
    yield _counter("advice_failures", "Looks at advice that failed", counts.advice_failures)
    still = paused(rebalancer.deciding.policies())
    subjects = int(still.cluster) + len(still.namespaces) + len(still.brokers)
    yield _gauge("balancing_paused", "How many subjects are paused: the cluster, namespaces, brokers", subjects)
    yield from _last_round(rebalancer, now_s)


def _plans(rebalancer: Rebalancer) -> Iterator[Metric]:
    """All plans, and plans with advice, by state."""
    plans = rebalancer.plans.all()
    advised = [plan for plan in plans if plan.advice is not None]
    told = "Advice of the load history: plans that have some"
    for name, help_text, found in (("plans", "Plans of the cluster", plans), ("advice", told, advised)):
        states = Counter(plan.state for plan in found)
        family = GaugeMetricFamily(PREFIX + name, help_text, labels=("state",))
        for state in PlanState:
            family.add_metric((state.value,), states[state])
        yield family
    skipped = "Entries of the topic of plans that this release cannot read"
    yield _counter("plans_skipped", skipped, rebalancer.plans.documents.skipped)


def _last_round(rebalancer: Rebalancer, now_s: float) -> Iterator[Metric]:
    """NaN at brokers that do not lead, and where there was nothing to compare."""
    last = rebalancer.last if rebalancer.running is not None else None
    began_s = rebalancer.counts.last_round_s
    age_s = now_s - began_s if last is not None and began_s is not None else float("nan")
    certificate = None if last is None else last.decision.certificate
    yield _gauge("balancing_round_age_seconds", "Since the last round began; NaN where none leads", age_s)
    spread = float("nan") if last is None or last.model is None else last.decision.spread_before
    yield _gauge("balancing_spread", "max/mean - 1 of the brokers' fullest resource, in the last round", spread)
    ratio = float("nan") if certificate is None else certificate.ratio
    yield _gauge("balancing_bound_ratio", "Load that the last plan moves / the least that had to move", ratio)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value=float(value))


def _counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, help_text, labels=(label,))
    for key, value in values.items():
        family.add_metric((str(key),), value)
    return family
