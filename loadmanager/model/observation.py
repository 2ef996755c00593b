"""Builds the `ClusterModel` from what a leader knows: registrations, load views, table, recent moves, policies. Pure.

Load reports lag behind the table. If a bundle has left the broker that reported it, or is leaving, its load is
subtracted there and added to its destination, until the destination has reported it. So nobody moves a second bundle
for the same reason. (A bundle in neither broker's report is missing until its new owner reports, within
`load_report_min_interval_s` of getting it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import msgspec
import numpy as np

from loadmanager.model.cluster import NOWHERE, UNLIMITED, Brokers, Bundles, ClusterModel, Floats
from loadmanager.model.history import MoveHistory
from loadmanager.model.load.model import BrokerLoadData, TopBundlesLoadData
from loadmanager.model.load.usage import RESOURCES, broker_row, capacity_row
from loadmanager.model.policies.constraining import constraints_for, with_policies
from loadmanager.model.policies.misplacing import kept_apart, misplaced
from loadmanager.model.policies.model import NO_POLICIES, Policies
from loadmanager.model.registration import Peer
from loadmanager.model.reported import NOTHING, Hot, Reports, current, elsewhere, is_included, place_of, reported, used
from loadmanager.settings import Settings
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

_CPU, _ASKED = (0,), (2, 3, 4)
"""Columns of RESOURCES: the cost of a bundle, and the demand on it."""

_LEAST_PART = 0.01
"""Changes below this fraction of the broker do not count: from a hundredth of a percent to two is noise."""


class Observed(msgspec.Struct, frozen=True):
    """What a leader knows at one moment; `now_ms` is its wall clock."""

    peers: tuple[Peer, ...]
    loads: Mapping[str, BrokerLoadData]
    tops: Mapping[str, TopBundlesLoadData]
    table: OwnershipTable
    history: MoveHistory
    now_ms: int
    settings: Settings
    policies: Policies = NO_POLICIES


def cluster_model(observed: Observed) -> ClusterModel:
    """The model, with moves in flight counted as done. Its arrays are read-only."""
    peers = sorted(observed.peers, key=lambda peer: peer.broker)
    loads = {each.broker: load for each in peers if (load := current(observed.loads, each.broker)) is not None}
    tops = {broker: top for broker in loads if (top := current(observed.tops, broker)) is not None}
    settle_ms = observed.settings.load_window_s * 1000
    reports = Reports(loads, tops, observed.table, observed.history, observed.now_ms, settle_ms)
    hot = reported(reports)
    away = elsewhere(reports, hot)
    brokers = with_policies(observed.policies, _brokers(observed, peers, loads, used(reports, hot, away)))
    chosen = [each for each in hot if each.place == each.reporter]
    chosen += [each for each in away if _counts_still(reports, each)]
    chosen += _cold_but_ruled(observed, brokers, hot)
    bundles = _bundles(observed, brokers, chosen)
    constraints = constraints_for(
        observed.policies, brokers, bundles, _holdings(observed.table, observed.policies), observed.settings
    )
    return _sealed(ClusterModel(brokers, _bound(bundles, constraints.rest_s), constraints, observed.now_ms))


def _sealed(model: ClusterModel) -> ClusterModel:
    """Make the arrays read-only: a strategy's changes would reach records and later rounds as facts."""
    for part in (model.brokers, model.bundles, model.constraints):
        for column in msgspec.structs.astuple(part):
            if isinstance(column, np.ndarray):
                column.setflags(write=False)
    return model


def _counts_still(reports: Reports, hot: Hot) -> bool:
    """Whether the reported load of a bundle that is elsewhere now still tells its load there."""
    if hot.place is None:
        return hot.entry is not None and hot.entry.holder == hot.reporter
    return hot.place in reports.loads and not is_included(reports, hot)


def _cold_but_ruled(observed: Observed, brokers: Brokers, hot: Sequence[Hot]) -> list[Hot]:
    """Bundles that policies want elsewhere or apart, but nobody reported as hot; their unknown load counts as 0."""
    policies, table = observed.policies, observed.table
    ruled = dict(misplaced(policies, brokers, table, observed.settings))
    ruled.update(kept_apart(policies, brokers, table))
    for each in hot:
        ruled.pop(each.bundle, None)
    history, now_ms = observed.history, observed.now_ms
    return [
        Hot(bundle, holder, table.get(bundle), holder, history.arrival(bundle, now_ms), NOTHING)
        for bundle, holder in ruled.items()
    ]


# --- brokers


def _brokers(
    observed: Observed,
    peers: Sequence[Peer],
    loads: Mapping[BrokerId, BrokerLoadData],
    uses: Mapping[BrokerId, Floats],
) -> Brokers:
    capacities = [loads[p.broker].capacity if p.broker in loads else p.registration.capacity for p in peers]
    idle = np.zeros(len(RESOURCES))
    reports = [loads.get(peer.broker) for peer in peers]
    return Brokers(
        ids=tuple(peer.broker for peer in peers),
        capacity=np.array([capacity_row(each) for each in capacities]).reshape(-1, len(RESOURCES)),
        used=np.array([uses.get(peer.broker, idle) for peer in peers]).reshape(-1, len(RESOURCES)),
        known=np.array([each is not None for each in reports], bool),
        draining=np.array([peer.registration.draining for peer in peers], bool),
        paused=np.zeros(len(peers), bool),
        bundles=_counts(observed.table, peers),
        max_bundles=np.array([_most(each, observed.settings.broker_max_bundles) for each in capacities], np.int64),
        rate_msg_s=np.array([0.0 if each is None else each.rate_msg_s for each in reports]),
        throughput_bytes_s=np.array([0.0 if each is None else each.throughput_bytes_s for each in reports]),
        domains=tuple(peer.registration.failure_domain for peer in peers),
        versions=tuple(peer.registration.version for peer in peers),
        report_age_s=np.array([_age_s(each, observed.now_ms) for each in reports]),
    )


def _age_s(load: BrokerLoadData | None, now_ms: int) -> float:
    return inf if load is None else max(0.0, (now_ms - load.sampled_ms) / 1000)


def _counts(table: OwnershipTable, peers: Sequence[Peer]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The number of bundles of each broker, plus those that arrive, less those that leave."""
    counts = {peer.broker: table.count_held_by(peer.broker) for peer in peers}
    for state in (State.TRANSFERRING, State.RELEASING, State.REVOKING):
        for bundle in table.in_state(state):
            entry = table.get(bundle)
            if entry is None:
                continue
            for broker, change in ((entry.target, 1), (entry.holder, -1)):
                if broker in counts:
                    counts[broker] += change
    return np.array(list(counts.values()), np.int64)


def _most(capacity: Mapping[str, float], otherwise: int | None) -> int:
    return int(capacity.get("bundles", UNLIMITED if otherwise is None else otherwise))


# --- bundles


def _bundles(observed: Observed, brokers: Brokers, chosen: Sequence[Hot]) -> Bundles:
    """One row for each chosen bundle."""
    names = {name: row for row, name in enumerate(sorted({each.bundle.namespace for each in chosen}))}
    by_name = {broker.name: row for broker, row in brokers.rows.items()}
    resting = [(row, each) for row, each in enumerate(chosen) if each.arrival is not None]
    moved_s, changed = np.full(len(chosen), inf), np.zeros(len(chosen), bool)
    for row, each in resting:
        moved_s[row], changed[row] = _moved_s(each, observed.now_ms), _changed(observed, each)
    return Bundles(
        ids=tuple(each.bundle for each in chosen),
        namespaces=tuple(names),
        namespace=np.array([names[each.bundle.namespace] for each in chosen], np.int64),
        owner=np.array([_row(brokers, each.place) for each in chosen], np.int64),
        load=np.array([each.load for each in chosen]).reshape(-1, len(RESOURCES)),
        rate_msg_s=np.array([each.rate_msg_s for each in chosen]),
        throughput_bytes_s=np.array([each.throughput_bytes_s for each in chosen]),
        in_flight=np.array([each.entry is None or each.entry.state is not State.ASSIGNED for each in chosen], bool),
        moved_s=moved_s,
        changed=changed,
        left={
            row: tuple(sorted({by_name[name] for name in each.arrival.left if name in by_name}))
            for row, each in resting
            if each.arrival is not None
        },
    )


def _row(brokers: Brokers, broker: BrokerId | None) -> int:
    return NOWHERE if broker is None else brokers.rows.get(broker, NOWHERE)


def _moved_s(hot: Hot, now_ms: int) -> float:
    return inf if hot.arrival is None else max(0.0, (now_ms - hot.arrival.at_ms) / 1000)


def _changed(observed: Observed, hot: Hot) -> bool:
    """Whether the bundle's load has really changed since it was moved; False if the load of then is not known.

    Judged by the demand on it (messages, bytes) if there is any: the same work costs different CPU on different
    machines, and a bundle that left a slow machine for that reason would be free to return at once.
    """
    then = None if hot.arrival is None else observed.history.load_moved(hot.bundle, hot.arrival)
    load = observed.loads.get(hot.reporter.name)
    if then is None or load is None:
        return False
    part, whole = observed.settings.load_change_percent / 100, broker_row(load)
    asked = [resource for resource in _ASKED if hot.load[resource] > 0 or then[resource] > 0]
    return any(
        abs(hot.load[resource] - then[resource]) > max(part * then[resource], _LEAST_PART * whole[resource])
        for resource in asked or _CPU
    )


def _bound(bundles: Bundles, rest_s: Floats) -> Bundles:
    """The bundles, with only those former owners to which their rest time still forbids a return."""
    left = {row: brokers for row, brokers in bundles.left.items() if bundles.moved_s[row] < rest_s[row] and brokers}
    return msgspec.structs.replace(bundles, left=left)


def _holdings(table: OwnershipTable, policies: Policies) -> dict[str, dict[BrokerId, int]]:
    """For each namespace in an anti-affinity group: how many bundles each broker holds, or is about to hold."""
    holdings: dict[str, dict[BrokerId, int]] = {}
    for name, policy in policies.namespaces.items():
        namespace = table.namespace(name)
        if not policy.anti_affinity_group or namespace is None:
            continue
        held = holdings.setdefault(name, {})
        for entry in namespace.entries:
            place = place_of(entry)
            if place is not None:
                held[place] = held.get(place, 0) + 1
    return holdings
