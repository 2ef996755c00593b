"""Builds the `ClusterModel` from what a leader knows: registrations, load views, table, recent moves, policies. Pure.

Load reports lag behind the table, and behind each other. If a bundle has left the broker that reported it, or is
leaving, its load is subtracted there and added to its destination, until the destination has reported it. So no second
bundle is moved for the same reason. Each load counts at one broker: the one that reported it, if the bundle is (or is
about to be) there, else the one where the bundle is. If two brokers still list a bundle that both have lost, the later
report counts. (A bundle in neither broker's report is missing until its new owner reports, within
the least time between two reports of getting it.)

The memory of recent planned moves is part of the replay (`statechannel.law`) and of snapshots, so a new leader, and a
broker that has just started, know the earlier moves. This module only limits them to the time in which a move still
matters. The bundle's load at the time of a move is known to the leader that decided it, and from its recorded
decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TypeVar

import msgspec
import numpy as np

from loadmanager.model.cluster import NOWHERE, UNLIMITED, Brokers, Bundles, ClusterModel, Floats
from loadmanager.model.load import (
    RESOURCES,
    BrokerLoadData,
    Row,
    TopBundlesLoadData,
    broker_row,
    bundle_row,
    capacity_row,
)
from loadmanager.model.policies.constraints import constraints_for, kept_apart, misplaced, with_policies
from loadmanager.model.policies.model import NO_POLICIES, Policies
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, index_of
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

LOADS_KEPT = 10_000


class Arrival(msgspec.Struct, frozen=True):
    """The last planned move of a bundle: its ends, its time, and the names of all brokers that the bundle left."""

    source: BrokerId
    destination: BrokerId
    at_ms: int
    left: frozenset[str]


class MoveHistory:
    """Planned moves of the last `memory_s`, by the wall clocks of the brokers that took the bundles."""

    def __init__(self, table: OwnershipTable, memory_s: float) -> None:
        self._table = table
        self._memory_ms = memory_s * 1000
        self._loads: dict[tuple[Bundle, BrokerId, BrokerId], Row] = {}

    def set_memory(self, memory_s: float) -> None:
        """Set for how long moves matter."""
        self._memory_ms = memory_s * 1000

    def arrival(self, bundle: Bundle, now_ms: int) -> Arrival | None:
        """The bundle's last planned move; None if there was none, or it no longer matters."""
        # `abs`: a move by a clock far ahead of ours must not keep its bundle at rest until our clock catches up
        recent = [move for move in self._table.moves(bundle) if abs(now_ms - move.at_ms) <= self._memory_ms]
        if not recent:
            return None
        last = recent[-1]
        return Arrival(last.source, last.destination, last.at_ms, frozenset(move.source.name for move in recent))

    def remember(self, moves: Iterable[tuple[Bundle, BrokerId, BrokerId, Row]]) -> None:
        """Note the loads of bundles that are being moved: bundle, source, destination, load as in a model's row."""
        for bundle, source, destination, load in moves:
            self._loads.pop((bundle, source, destination), None)
            self._loads[bundle, source, destination] = load
        while len(self._loads) > LOADS_KEPT:
            del self._loads[next(iter(self._loads))]

    def newest(self, count: int) -> tuple[tuple[Bundle, BrokerId, BrokerId], ...]:
        """The last moves with a known load, the newest first: bundle, source, destination."""
        return tuple(islice(reversed(self._loads), count))

    def load_moved(self, bundle: Bundle, arrival: Arrival) -> Row | None:
        """The bundle's load when this move was decided; None if it is not known."""
        return self._loads.get((bundle, arrival.source, arrival.destination))


D = TypeVar("D", BrokerLoadData, TopBundlesLoadData)

NEWCOMERS = 1_000
"""How many of the last moved bundles are examined: more than settle at a time."""

NOTHING: Row = (0.0, 0.0, 0.0, 0.0, 0.0)


class Hot(msgspec.Struct, frozen=True, gc=False):
    """A bundle in a broker's report: who reported it, where it is or is about to be, and its load.

    `extra` is the load added to the reported one because the bundle has only just arrived and is not warm yet.
    """

    bundle: Bundle
    reporter: BrokerId
    entry: Ownership | None
    place: BrokerId | None
    arrival: Arrival | None
    load: Row
    rate_msg_s: float = 0.0
    throughput_bytes_s: float = 0.0
    extra: Row | None = None


class Reports(msgspec.Struct, frozen=True):
    """The reports of brokers' present incarnations. For `settle_ms` a moved bundle's reported load may be wrong."""

    loads: Mapping[BrokerId, BrokerLoadData]
    tops: Mapping[BrokerId, TopBundlesLoadData]
    table: OwnershipTable
    history: MoveHistory
    now_ms: int
    settle_ms: float


def current(data: Mapping[str, D], broker: BrokerId) -> D | None:
    """The load data of exactly this incarnation."""
    found = data.get(broker.name)
    return found if found is not None and found.broker == broker else None


def place_of(entry: Ownership | None) -> BrokerId | None:
    """Where a bundle is or is about to be; None if it is gone, or is being released without a destination."""
    if entry is None:
        return None
    if entry.state is State.ASSIGNED:
        return entry.holder
    if entry.state in (State.TRANSFERRING, State.RELEASING):
        return entry.target
    return None if entry.state is State.REVOKING else entry.holder


def reported(reports: Reports) -> list[Hot]:
    """Every listed bundle, also those that are elsewhere now."""
    table, history, now_ms = reports.table, reports.history, reports.now_ms
    found: list[Hot] = []
    for broker, top in reports.tops.items():
        of_broker = reports.loads[broker]
        for each in top.bundles:
            bundle, load = each.bundle, each.load
            row, entry, arrival = bundle_row(load, top.total, of_broker), table.get(bundle), None
            arrival, place = history.arrival(bundle, now_ms), place_of(entry)
            hot = Hot(bundle, broker, entry, place, arrival, row, load.rate_msg_s, load.throughput_bytes_s)
            found.append(hot if arrival is None or place != broker else _warm(hot, arrival, top, reports))
    return [*found, *_not_yet_hot(reports, {(each.bundle, each.reporter) for each in found})]


def _not_yet_hot(reports: Reports, listed: Collection[tuple[Bundle, BrokerId]]) -> Iterator[Hot]:
    """Bundles that have just arrived at a broker and are not among its hottest, because they are not warm yet."""
    history = reports.history
    for bundle, source, destination in history.newest(NEWCOMERS):
        top, entry = reports.tops.get(destination), reports.table.get(bundle)
        if top is None or entry is None or entry.holder != destination or (bundle, destination) in listed:
            continue
        arrival = history.arrival(bundle, reports.now_ms)
        if arrival is None or (arrival.source, arrival.destination) != (source, destination):
            continue
        then = history.load_moved(bundle, arrival)
        if then is not None and place_of(entry) == destination and top.sampled_ms - arrival.at_ms < reports.settle_ms:
            yield Hot(bundle, destination, entry, destination, arrival, then, then[4], then[2] + then[3], then)


def _warm(hot: Hot, arrival: Arrival, top: TopBundlesLoadData, reports: Reports) -> Hot:
    """The bundle with at least its load before the move, while clients return and the mean still has older samples.

    Otherwise its new owner would look idle, and the bundle's load changed, so that it could return at once.
    """
    then = reports.history.load_moved(hot.bundle, arrival)
    if then is None or arrival.destination != hot.reporter or top.sampled_ms - arrival.at_ms >= reports.settle_ms:
        return hot
    load, extra = np.maximum(hot.load, then), np.maximum(0.0, np.subtract(then, hot.load))
    return msgspec.structs.replace(hot, load=tuple(load.tolist()), extra=tuple(extra.tolist()))


def elsewhere(reports: Reports, hot: Sequence[Hot]) -> list[Hot]:
    """Bundles that their present broker does not list, each once, from the latest report."""
    listed = {(each.bundle, each.reporter) for each in hot}
    latest: dict[Bundle, Hot] = {}
    for each in hot:
        if each.place == each.reporter or each.entry is None or (each.bundle, each.place) in listed:
            continue
        other = latest.get(each.bundle)
        if other is None or reports.tops[each.reporter].sampled_ms > reports.tops[other.reporter].sampled_ms:
            latest[each.bundle] = each
    return list(latest.values())


def used(reports: Reports, hot: Sequence[Hot], away: Sequence[Hot]) -> dict[BrokerId, Floats]:
    """What each broker uses once all moves under way are done; `away` comes from `elsewhere`."""
    loads = reports.loads
    found = {broker: np.array(broker_row(load)) for broker, load in loads.items()}
    for each in hot:
        if each.extra is not None:
            found[each.reporter] = found[each.reporter] + each.extra
        elif each.place != each.reporter and _is_in_its_load(reports, each):
            staying = _part_that_stays(reports.table, each)
            found[each.reporter] = np.maximum(0.0, found[each.reporter] - np.multiply(each.load, 1.0 - staying))
    for each in away:
        place = each.place
        if place is not None and place in loads and not is_included(reports, each):
            found[place] = found[place] + each.load
    return found


def _is_in_its_load(reports: Reports, hot: Hot) -> bool:
    """Whether the reporter's load includes the bundle, which is leaving or has left.

    A broker writes its two reports one after the other: its load may be from a time when the bundle had already left.
    """
    holds = hot.entry is not None and hot.entry.holder == hot.reporter
    return holds or reports.loads[hot.reporter].sampled_ms <= reports.tops[hot.reporter].sampled_ms


def _part_that_stays(table: OwnershipTable, hot: Hot) -> float:
    """How much of a bundle that was split or merged is still where it was reported, 0 to 1."""
    if hot.entry is not None:
        return 0.0
    successors = list(_successors(table, hot.bundle))
    here = sum(place_of(each) == hot.reporter for each in successors)
    return here / len(successors) if successors else 0.0


def _successors(table: OwnershipTable, bundle: Bundle) -> Iterator[Ownership]:
    namespace = table.namespace(bundle.namespace)
    if namespace is None or not namespace.exists:
        return
    first, last = (index_of(namespace.lower_bounds, each) for each in (bundle.lo, bundle.hi - 1))
    for lower in namespace.lower_bounds[first : last + 1]:
        yield namespace.entry_at(lower)


def is_included(reports: Reports, hot: Hot) -> bool:
    """Whether the load that the bundle's present broker reported already includes the bundle."""
    if hot.entry is None or hot.place is None or hot.entry.holder != hot.place:
        return False
    arrival = hot.arrival
    since_ms = arrival.at_ms if arrival is not None else reports.loads[hot.reporter].sampled_ms
    return reports.loads[hot.place].sampled_ms > since_ms


_CPU, _ASKED = (0,), (2, 3, 4)
"""Columns of RESOURCES: the cost of a bundle, and the demand on it."""

LOAD_CHANGE = 0.5
"""A change of a bundle's load by this fraction frees it from its last move: the old placement says little then."""
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
    """Make the arrays read-only. Otherwise a strategy's changes would reach records and later rounds as facts."""
    for part in (model.brokers, model.bundles, model.constraints):
        for column in msgspec.structs.astuple(part):
            if isinstance(column, np.ndarray):
                column.setflags(write=False)
    return model


def _counts_still(reports: Reports, hot: Hot) -> bool:
    """Whether the reported load of a bundle that is elsewhere now still gives its load there."""
    if hot.place is None:
        return hot.entry is not None and hot.entry.holder == hot.reporter
    return hot.place in reports.loads and not is_included(reports, hot)


def _cold_but_ruled(observed: Observed, brokers: Brokers, hot: Sequence[Hot]) -> list[Hot]:
    """Bundles that policies want elsewhere or apart, but no report lists as hot; their unknown load counts as 0."""
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
        max_bundles=np.array([_most(each) for each in capacities], np.int64),
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


def _most(capacity: Mapping[str, float]) -> int:
    return int(capacity.get("bundles", UNLIMITED))


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
    """Whether the bundle's load has really changed since it was moved; False if the load at that time is not known.

    Judged by the demand on it (messages, bytes) if there is any. The same work costs different CPU on different
    machines, so a bundle that left a slow machine could otherwise return at once.
    """
    then = None if hot.arrival is None else observed.history.load_moved(hot.bundle, hot.arrival)
    load = observed.loads.get(hot.reporter.name)
    if then is None or load is None:
        return False
    part, whole = LOAD_CHANGE, broker_row(load)
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
