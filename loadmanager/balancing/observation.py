"""Builds the `ClusterModel` from what a leader knows: registrations, load views, the ownership table, recent moves.

Pure. Load reports lag behind the table. What a report lists at a broker that the bundle has left, or is leaving, is
taken off that broker's usage and added to the usage of the one it goes to, until that one has reported it itself. So
nobody moves a second bundle for the same reason. (A bundle that is in neither's report is missed until its new owner
reports, which it does within `load_report_min_interval_s` of getting it.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from loadmanager.balancing.history import MoveHistory
from loadmanager.balancing.model import BrokerState, BundleState, ClusterModel
from loadmanager.load.model import BrokerLoadData, TopBundlesLoadData
from loadmanager.load.usage import Usage, bundle_usage, usage_of
from loadmanager.registration import Peer
from statechannel.bundle import Bundle
from statechannel.record import Broker
from statechannel.table import OwnershipTable
from statechannel.transitions import State

D = TypeVar("D", BrokerLoadData, TopBundlesLoadData)
Hot = Mapping[tuple[Bundle, Broker], Usage]
"""What each reported bundle costs the broker that reported it."""


class Observed(msgspec.Struct, frozen=True):
    """What a leader knows at one moment; `now_ms` is its wall clock."""

    peers: tuple[Peer, ...]
    loads: Mapping[str, BrokerLoadData]
    tops: Mapping[str, TopBundlesLoadData]
    table: OwnershipTable
    history: MoveHistory
    now_ms: int


def cluster_model(observed: Observed) -> ClusterModel:
    """The model, with moves in flight counted as done."""
    loads = {each.broker: load for each in observed.peers if (load := current(observed.loads, each.broker)) is not None}
    tops = {broker: top for broker in loads if (top := current(observed.tops, broker)) is not None}
    hot = {
        (each.bundle, broker): bundle_usage(each.load, top.total, loads[broker])
        for broker, top in tops.items()
        for each in top.bundles
    }
    usages = _settled_usages(observed, loads, hot)
    brokers = tuple(
        BrokerState(
            broker=each.broker,
            usage=usages.get(each.broker),
            capacity=loads[each.broker].capacity if each.broker in loads else each.registration.capacity,
            bundles=observed.table.count_held_by(each.broker),
            draining=each.registration.draining,
        )
        for each in observed.peers
    )
    return ClusterModel(brokers, tuple(_bundles(observed, hot)))


def current(data: Mapping[str, D], broker: Broker) -> D | None:
    """The load data of exactly this incarnation."""
    found = data.get(broker.name)
    return found if found is not None and found.broker == broker else None


def _settled_usages(observed: Observed, loads: Mapping[Broker, BrokerLoadData], hot: Hot) -> dict[Broker, Usage]:
    usages = {broker: usage_of(load) for broker, load in loads.items()}
    for (bundle, reporter), usage in hot.items():
        place = _place(observed.table, bundle)
        if place == reporter:
            continue
        usages[reporter] = usages[reporter].minus(usage)
        if place is not None and place in loads and not _reported(observed, loads, hot, bundle, reporter, place):
            usages[place] = usages[place].plus(usage.on(loads[reporter].capacity, loads[place].capacity))
    return usages


def _place(table: OwnershipTable, bundle: Bundle) -> Broker | None:
    """Where the bundle is or is about to be; None if it is gone, or on its way to nobody."""
    entry = table.get(bundle)
    if entry is None:
        return None
    if entry.state in (State.TRANSFERRING, State.RELEASING):
        return entry.target
    return None if entry.state is State.REVOKING else entry.holder


def _reported(
    observed: Observed,
    loads: Mapping[Broker, BrokerLoadData],
    hot: Hot,
    bundle: Bundle,
    reporter: Broker,
    place: Broker,
) -> bool:
    """Whether the usage that `place` reported already includes the bundle."""
    if (bundle, place) in hot:
        return True
    entry = observed.table.get(bundle)
    if entry is None or entry.holder != place:
        return False
    arrival = observed.history.arrival(bundle, observed.now_ms)
    since_ms = arrival.at_ms if arrival is not None else loads[reporter].sampled_ms
    return loads[place].sampled_ms > since_ms


def _bundles(observed: Observed, hot: Hot) -> Iterator[BundleState]:
    for (bundle, reporter), usage in hot.items():
        entry = observed.table.get(bundle)
        if entry is None or entry.holder != reporter:
            continue
        arrival = observed.history.arrival(bundle, observed.now_ms)
        yield BundleState(
            bundle=bundle,
            owner=reporter,
            usage=usage,
            moved_s=None if arrival is None else max(0.0, (observed.now_ms - arrival.at_ms) / 1000),
            left=frozenset() if arrival is None else arrival.left,
            in_flight=entry.state is not State.ASSIGNED,
        )
