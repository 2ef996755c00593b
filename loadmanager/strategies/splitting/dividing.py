"""Estimates the load of each child of a split until it is measured, and what its owner reports until then. Pure.

A service measures rates over its own window, in which a new child shows too little. So an owner reports for a child its
inherited load, until `until_s`, or until more is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager.strategies.splitting.cutting import position_of_key
from statechannel.law.bundle import FULL_UPPER, Bundle


def divide(load: BundleLoad, children: Sequence[Bundle], keys: Iterable[KeyRate] = ()) -> dict[Bundle, BundleLoad]:
    """The load divided over the children of one bundle: by its known keys, and the rest by the width of the ranges.

    The parts add up to the whole.
    """
    known = list(keys)
    messages = _parts(children, [(key.position, key.rate_msg_s) for key in known], load.rate_msg_s)
    rates = _parts(children, [(key.position, key.rate_bytes_s) for key in known], load.throughput_bytes_s)
    counts = _parts(children, [(key.position, 1.0) for key in known], float(load.keys))
    numbers = _whole_numbers(counts, load.keys)
    sessions = _whole_numbers(messages, load.sessions)
    return {
        child: BundleLoad(
            keys=numbers[i],
            sessions=sessions[i],
            in_rate_msg_s=load.in_rate_msg_s * messages[i],
            out_rate_msg_s=load.out_rate_msg_s * messages[i],
            in_rate_bytes_s=load.in_rate_bytes_s * rates[i],
            out_rate_bytes_s=load.out_rate_bytes_s * rates[i],
            cpu_percent=load.cpu_percent * messages[i],
            hottest_keys=tuple(each for each in load.hottest_keys if position_of_key(each[0]) in child),
        )
        for i, child in enumerate(children)
    }


def _parts(children: Sequence[Bundle], known: Sequence[tuple[int, float]], whole: float) -> list[float]:
    """Each child's share, as fractions of 1."""
    width = children[-1].hi - children[0].lo
    widths = [(child.hi - child.lo) / width for child in children]
    explained = [sum(max(0.0, rate) for position, rate in known if _lies_in(position, child)) for child in children]
    total = sum(explained)
    if total <= 0:
        return widths
    covered = min(1.0, total / whole) if whole > 0 else 1.0
    return [covered * part / total + (1 - covered) * share for part, share in zip(explained, widths, strict=True)]


def _lies_in(position: int, child: Bundle) -> bool:
    return position in child and not (child.hi != FULL_UPPER and position == child.hi)


def _whole_numbers(shares: Sequence[float], total: int) -> list[int]:
    """`total` in whole numbers by these shares; the remainder goes to the largest rounding errors."""
    exact = [share * total for share in shares]
    found = [int(part) for part in exact]
    missing = sorted(range(len(shares)), key=lambda i: found[i] - exact[i])
    for i in missing[: total - sum(found)]:
        found[i] += 1
    return found


class Inherited(msgspec.Struct, frozen=True):
    """A child's load by its parent's measurement, and until when it counts."""

    load: BundleLoad
    until_s: float


class Inheritance:
    """An owner's young children; `spread` are those for which it asks the leader to find a place."""

    def __init__(self) -> None:
        self._loads: dict[Bundle, Inherited] = {}
        self._spread: dict[Bundle, float] = {}

    def give(self, loads: Mapping[Bundle, BundleLoad], until_s: float, *, spread: bool) -> None:
        """Add children with these loads."""
        for bundle, load in loads.items():
            self._loads[bundle] = Inherited(load, until_s)
            if spread:
                self._spread[bundle] = until_s

    def applied(self, measured: Mapping[Bundle, BundleLoad], now_s: float) -> dict[Bundle, BundleLoad]:
        """The measured loads; a child that shows less than it inherited has the inherited load."""
        self._forget(now_s)
        loads = dict(measured)
        for bundle, inherited in list(self._loads.items()):
            found = loads.get(bundle)
            if (
                found is None
                or found.rate_msg_s + found.cpu_percent < inherited.load.rate_msg_s + inherited.load.cpu_percent
            ):
                loads[bundle] = inherited.load
            else:
                del self._loads[bundle]
        return loads

    def spread(self, now_s: float) -> tuple[Bundle, ...]:
        """The children that still wait for the leader."""
        self._forget(now_s)
        return tuple(sorted(self._spread))

    def bundles(self) -> tuple[Bundle, ...]:
        """All known children."""
        return (*self._loads, *self._spread)

    def settle(self, bundle: Bundle) -> None:
        """Forget a bundle: the leader has moved it, or it is gone."""
        self._loads.pop(bundle, None)
        self._spread.pop(bundle, None)

    def _forget(self, now_s: float) -> None:
        for bundle in [b for b, inherited in self._loads.items() if now_s >= inherited.until_s]:
            del self._loads[bundle]
        for bundle in [b for b, until_s in self._spread.items() if now_s >= until_s]:
            del self._spread[bundle]
