"""Combines load reports and the table: where each reported bundle is, and what each broker uses after all moves. Pure.

Reports lag behind the table, and behind each other. Each load counts at one broker: the one that reported it, if the
bundle is (or is about to be) there, else the one where the bundle is. If two brokers still list a bundle that both have
lost, the later report counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from loadmanager.model.cluster import Floats
from loadmanager.model.history import Arrival, MoveHistory
from loadmanager.model.load.model import BrokerLoadData, TopBundlesLoadData
from loadmanager.model.load.usage import Row, broker_row, bundle_row
from statechannel.law.bundle import Bundle, index_of
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

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
    """Where a bundle is or is about to be; None if it is gone, or on its way to nobody."""
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

    Else its new owner would look idle, and the bundle's load really changed: it would be free to return at once.
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
