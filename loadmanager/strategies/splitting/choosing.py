"""Resolves Pulsar's shorthands for a bundle: LARGEST has the most keys, HOT the most load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from loadmanager.errors import Conflict
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import TopBundlesLoadData, heat, total_of
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State


class Extreme(StrEnum):
    """A shorthand for one bundle of a namespace."""

    LARGEST = "LARGEST"
    HOT = "HOT"


def choose(
    which: Extreme,
    namespace: str,
    table: OwnershipTable,
    tops: Mapping[str, TopBundlesLoadData],
    own: Mapping[Bundle, BundleLoad],
) -> Bundle:
    """The chosen bundle of those with known load: the ones that brokers report as hottest, and our own.

    Raises Conflict if none has any keys, or load. A bundle that is neither among its owner's hottest nor ours is not
    seen, however large; the setting `load_top_bundles` says how many are reported.
    """
    loads = {
        each.bundle: each.load
        for top in tops.values()
        for each in top.bundles
        if (entry := table.get(each.bundle)) is not None and entry.holder == top.broker
    } | dict(own)
    here = {bundle: load for bundle, load in loads.items() if bundle.namespace == namespace and _at_rest(table, bundle)}
    total = total_of(here.values())
    sizes = {
        bundle: float(load.keys) if which is Extreme.LARGEST else heat(load, total) for bundle, load in here.items()
    }
    largest = max(sorted(sizes), key=lambda bundle: sizes[bundle], default=None)
    if largest is None or sizes[largest] <= 0:
        what = "keys" if which is Extreme.LARGEST else "load"
        raise Conflict(f"nobody has reported any {what} of a bundle of {namespace}: name the bundle by its range")
    return largest


def _at_rest(table: OwnershipTable, bundle: Bundle) -> bool:
    entry = table.get(bundle)
    return entry is not None and entry.state is State.ASSIGNED
