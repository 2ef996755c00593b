"""Builds the `ClusterModel` of a round, as a leader sees the simulated cluster: from reports that may be stale.

As in the live leader, moves under way count as done, and load that no reported bundle explains is foreign.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import (
    FREE,
    NOWHERE,
    UNLIMITED,
    Brokers,
    Bundles,
    ClusterModel,
    Constraints,
    Floats,
    Ints,
    unconstrained,
)
from loadmanager.settings import Settings
from loadmanager.strategies.playground.cluster import SimulatedCluster, summed
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, MESSAGES


class Conditions(msgspec.Struct, frozen=True):
    """Impairments of what a leader sees and does."""

    delay_rounds: int = 0
    """How many rounds moves take; with 0 they are done before the next round."""
    stale_rounds: int = 0
    """The most rounds by which a broker's report lags; drawn for each broker and round."""
    missing: float = 0.0
    """The probability that a broker's load is unknown in a round."""
    top_bundles: int | None = None
    """How many bundles a broker reports; None: all."""
    noise: float = 0.0
    """How wrongly a broker divides its load among its bundles: the standard deviation of the logarithm of each part,
    drawn for each bundle and round. The broker's own load is right."""


class View(msgspec.Struct, frozen=True, eq=False):
    """A model, with the scenario's rows of its brokers and bundles."""

    model: ClusterModel
    broker_rows: Ints
    bundle_rows: Ints


def observe(cluster: SimulatedCluster, settings: Settings, conditions: Conditions, rng: np.random.Generator) -> View:
    """The model of this round."""
    scenario, at = cluster.scenario, cluster.at
    rows = np.flatnonzero(scenario.present[at])
    model_row = np.full(scenario.brokers + 1, NOWHERE)
    model_row[rows] = np.arange(len(rows))
    lag = _lags(cluster, conditions, rng)
    loads = _reported(cluster, lag)
    ids = cluster.broker_ids
    used = (summed(loads, cluster.place, scenario.brokers) + scenario.foreign[at])[rows]
    loads = _attributed(loads, cluster.place, scenario.brokers, conditions.noise, rng)
    bundle_rows = _top(cluster, settings, conditions, loads)
    brokers = Brokers(
        ids=tuple(ids[row] for row in rows),
        capacity=scenario.capacity[rows],
        used=used,
        known=rng.random(len(rows)) >= conditions.missing,
        draining=scenario.draining[at][rows],
        paused=np.zeros(len(rows), np.bool_),
        bundles=np.bincount(cluster.place, minlength=scenario.brokers)[rows],
        max_bundles=np.full(len(rows), UNLIMITED),
        rate_msg_s=used[:, MESSAGES],
        throughput_bytes_s=used[:, BYTES_IN] + used[:, BYTES_OUT],
        domains=("",) * len(rows),
        versions=("",) * len(rows),
        report_age_s=(lag[rows] * scenario.interval_s).astype(np.float64),
    )
    bundles = _bundles(cluster, loads, bundle_rows, model_row)
    constraints = _constraints(cluster, settings, len(rows), bundle_rows)
    return View(ClusterModel(brokers, bundles, constraints, int(at * scenario.interval_s * 1000)), rows, bundle_rows)


def _lags(cluster: SimulatedCluster, conditions: Conditions, rng: np.random.Generator) -> Ints:
    """(n,): by how many rounds each broker's report lags."""
    if not conditions.stale_rounds:
        return np.zeros(cluster.scenario.brokers, np.int64)
    return np.minimum(cluster.at, rng.integers(0, conditions.stale_rounds + 1, cluster.scenario.brokers))


def _reported(cluster: SimulatedCluster, lag: Ints) -> Floats:
    loads = cluster.loads(cluster.place)
    if lag.any():
        scenario = cluster.scenario
        rounds = (cluster.at - lag)[cluster.place]
        then = scenario.activity[rounds, np.arange(len(rounds))]
        now = scenario.activity[cluster.at]
        loads = loads * np.divide(then, now, out=np.ones_like(now), where=now > 0)[:, None]
    return loads


def _attributed(loads: Floats, owners: Ints, brokers: int, noise: float, rng: np.random.Generator) -> Floats:
    """The loads as brokers divide them: each part is wrong, their sum is right."""
    if not noise:
        return loads
    wrong = loads * rng.lognormal(0.0, noise, len(loads))[:, None]
    true, told = summed(loads, owners, brokers), summed(wrong, owners, brokers)
    return wrong * np.divide(true, told, out=np.ones_like(true), where=told > 0)[owners]


def _top(cluster: SimulatedCluster, settings: Settings, conditions: Conditions, loads: Floats) -> Ints:
    """The bundles that brokers report: all, or each broker's with the largest shares of its load."""
    everything = np.arange(len(loads))
    if conditions.top_bundles is None:
        return everything
    totals = summed(loads, cluster.place, cluster.scenario.brokers)[cluster.place]
    heat = np.divide(loads, totals, out=np.zeros_like(loads), where=totals > 0).max(axis=1)
    order = np.lexsort((everything, -heat, cluster.place))
    owners = cluster.place[order]
    rank = np.arange(len(order)) - np.searchsorted(owners, owners)
    return np.sort(order[rank < conditions.top_bundles])


def _bundles(cluster: SimulatedCluster, loads: Floats, rows: Ints, model_row: Ints) -> Bundles:
    scenario = cluster.scenario
    loads = loads[rows]
    row_in_model = {int(row): number for number, row in enumerate(rows)}
    left = {
        row_in_model[bundle]: tuple(sorted(int(model_row[row]) for row in there if model_row[row] != NOWHERE))
        for bundle in cluster.moved_lately()
        if bundle in row_in_model and (there := cluster.left(bundle))
    }
    return Bundles(
        ids=scenario.bundles if len(rows) == len(scenario.bundles) else [scenario.bundles[row] for row in rows],
        namespaces=scenario.namespaces,
        namespace=scenario.namespace[rows],
        owner=model_row[cluster.place[rows]],
        load=loads,
        rate_msg_s=loads[:, MESSAGES],
        throughput_bytes_s=loads[:, BYTES_IN] + loads[:, BYTES_OUT],
        in_flight=(cluster.lands != NOWHERE)[rows],
        moved_s=cluster.moved_s()[rows],
        changed=cluster.changed()[rows],
        left={row: brokers for row, brokers in left.items() if brokers},
    )


def _constraints(cluster: SimulatedCluster, settings: Settings, brokers: int, rows: Ints) -> Constraints:
    free = unconstrained(brokers, len(rows), settings.bundle_rest_s)
    pinned = cluster.scenario.fixed[rows]
    if not pinned.any():
        return free
    return msgspec.structs.replace(
        free, rules=("pinned where it is",), fixed=np.where(pinned, 0, FREE).astype(np.int16)
    )
