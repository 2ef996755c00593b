"""Situations for tests: a small cluster, a round about it, and single respects in which it is different."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmanager.decisions.explaining.bundle import Whereabouts, explain_bundle
from loadmanager.decisions.explaining.edits import with_brokers, with_bundles, with_constraints
from loadmanager.decisions.explaining.situation import Round, Situation
from loadmanager.model.cluster import ALLOWED, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.registry import STRATEGIES
from tests.loadmanager.decisions.models import broker, bundle, model

A, B, C = (broker(name).name for name in "abc")
HERE = Whereabouts(exists=True, state="assigned", owner=A)


def uneven(**more: Any) -> ClusterModel:
    """a: 8 of 10 cores in bundles 0 to 3, b: 2 in bundle 4, c: 2 in bundle 5."""
    return model({"a": [3, 2, 2, 1], "b": [2], "c": [2]}, **more)


def even() -> ClusterModel:
    return model({"a": [2, 2], "b": [2, 2], "c": [2, 2]})


def situation(of: ClusterModel, decision: Decision | None = None, **more: Any) -> Situation:
    """As of a round of the strategy `plan`, unless another decision is given."""
    settings: Settings = more.pop("settings", None) or Settings()
    strategy = more.pop("strategy", "plan")
    if decision is None:
        decision = STRATEGIES.make("plan").decide(of, settings)
    taken = Round("3.17", of.at_ms, A, decision, more.pop("outcomes", ()))
    return Situation(of.at_ms, settings, strategy, of, round=taken, **more)


def explained(of: ClusterModel, number: int = 0, decision: Decision | None = None, **more: Any) -> Any:
    whereabouts = more.pop("whereabouts", HERE)
    return explain_bundle(situation(of, decision, **more), bundle(number), whereabouts, lambda: True)


def flagged(column: Any, *rows: int) -> Any:
    changed = column.copy()
    changed[list(rows)] = True
    return changed


def resting(of: ClusterModel, row: int, moved_s: float = 600.0) -> ClusterModel:
    ages = of.bundles.moved_s.copy()
    ages[row] = moved_s
    return with_bundles(of, moved_s=ages)


def kept(of: ClusterModel, row: int, rule: str) -> ClusterModel:
    fixed = of.constraints.fixed.copy()
    fixed[row] = len(of.constraints.rules)
    return with_constraints(of, fixed=fixed, rules=(*of.constraints.rules, rule))


def barred(of: ClusterModel, rule: str, *brokers: int) -> ClusterModel:
    forbidden = np.full((1, len(of.brokers)), ALLOWED, np.int16)
    forbidden[0, list(brokers)] = len(of.constraints.rules)
    return with_constraints(of, forbidden=forbidden, rules=(*of.constraints.rules, rule))


def in_flight(of: ClusterModel, row: int) -> ClusterModel:
    return with_bundles(of, in_flight=flagged(of.bundles.in_flight, row))


def paused(of: ClusterModel, *rows: int) -> ClusterModel:
    return with_brokers(of, paused=flagged(of.brokers.paused, *rows))


def draining(of: ClusterModel, *rows: int) -> ClusterModel:
    return with_brokers(of, draining=flagged(of.brokers.draining, *rows))


def silent(of: ClusterModel, *rows: int) -> ClusterModel:
    known = of.brokers.known.copy()
    known[list(rows)] = False
    return with_brokers(of, known=known)
