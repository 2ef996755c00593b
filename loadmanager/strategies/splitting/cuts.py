"""Where to cut a hot bundle by the load of its keys, and what load each part carries until it is measured. Pure.

`loadmanager.model.boundaries` has the cuts that need no loads.

* `flow_or_qps_equally_divide` is Pulsar's: it walks the keys upwards and cuts where a limit would be exceeded. It can
  yield several cuts, which Pulsar's extensible manager refuses (its issue 22254); here they make several parts.
* `load_equally_divide`: the weighted median of the load, or its n-quantiles.
* `hot_key_divide`: the hottest key gets its own bundle, [position, position + 1). Equal ranges would need up to 32
  splits to isolate it, and would fill the namespace with empty bundles on the way.

A service measures rates over its own window, in which a new child shows too little. So an owner reports for a child its
inherited load, until `until_s`, or until more is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loadmanager.model.boundaries import (
    FEWEST_PARTS,
    MOST_PARTS,
    NoCuts,
    between,
    by_count,
    check_parts,
    evenly,
    shares,
)
from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager.settings import Settings
from loadmanager.settings.choices import Algorithm
from loadmanager.strategies.splitting.splits import Cause, Hot, Limits
from statechannel.errors import InvalidName
from statechannel.law.bundle import FULL_UPPER, Bundle, Key, position_of

DOMINATES = 0.5
"""A key with at least this fraction of its bundle's messages or bytes keeps its part hot, wherever the cut is."""


class Cuts(msgspec.Struct, frozen=True):
    """Where to cut, by which algorithm, and why."""

    positions: tuple[int, ...]
    algorithm: Algorithm
    why: str = ""


MARGIN = 0.1
"""`flow_or_qps_equally_divide` cuts above a limit by this fraction; Pulsar's default."""


class Bounds(msgspec.Struct, frozen=True):
    """The limits for cuts by load: a bundle's limits, and the margin above them from which Pulsar's algorithm cuts."""

    limits: Limits
    margin: float

    @staticmethod
    def of(settings: Settings) -> Bounds:
        return Bounds(Limits.of(settings), MARGIN)


UNBOUNDED = Bounds(Limits(math.inf, math.inf, math.inf, math.inf), 0.0)


def merged(bundle: Bundle, keys: Iterable[KeyRate]) -> list[KeyRate]:
    """The bundle's keys by position, one entry for each; without idle keys and negative rates.

    The ring's last position cannot have a bundle of its own: its keys stay with those of the position before.
    """
    found: dict[int, tuple[float, float]] = {}
    for key in keys:
        if key.position in bundle and (key.rate_msg_s > 0 or key.rate_bytes_s > 0):
            position = min(key.position, bundle.hi - 1)
            messages, rate = found.get(position, (0.0, 0.0))
            found[position] = messages + max(0.0, key.rate_msg_s), rate + max(0.0, key.rate_bytes_s)
    return [KeyRate(position, *found[position]) for position in sorted(found)]


def by_flow(bundle: Bundle, keys: Iterable[KeyRate], limits: Limits, margin: float) -> tuple[int, ...] | NoCuts:
    """Pulsar's `flow_or_qps_equally_divide`; no cuts while both rates are below their limits times (1 + margin)."""
    busy = merged(bundle, keys)
    messages, rate = sum(key.rate_msg_s for key in busy), sum(key.rate_bytes_s for key in busy)
    if len(busy) < FEWEST_PARTS:
        return NoCuts(f"{bundle} has keys with traffic at {len(busy)} positions, too few to cut between")
    if messages < limits.rate_msg_s * (1 + margin) and rate < limits.bandwidth_bytes_s * (1 + margin):
        return NoCuts(
            f"{bundle} carries {messages:,.0f} messages/s and {rate:,.0f} bytes/s: not {margin:.0%} above its limits"
        )
    cuts: list[int] = []
    messages, rate = busy[0].rate_msg_s, busy[0].rate_bytes_s
    for i in range(1, len(busy)):
        key = busy[i]
        messages, rate = messages + key.rate_msg_s, rate + key.rate_bytes_s
        if messages > limits.rate_msg_s or rate > limits.bandwidth_bytes_s:
            left = busy[i - 1].position
            cuts.append(left + (key.position - left) // 2 + 1)
            messages, rate = key.rate_msg_s, key.rate_bytes_s
    if not cuts:
        return NoCuts(f"no key of {bundle} lies beyond what its limits allow")
    if len(cuts) >= MOST_PARTS:
        return by_load(bundle, busy, MOST_PARTS)
    return tuple(cuts)


def by_load(bundle: Bundle, keys: Iterable[KeyRate], parts: int) -> tuple[int, ...] | NoCuts:
    """The cuts that divide the load most evenly into `parts`, or into as many as there are keys with load.

    A key's weight is the larger of its shares of the bundle's messages and bytes.
    """
    refusal = check_parts(parts)
    if refusal is not None:
        return refusal
    busy = merged(bundle, keys)
    if len(busy) < FEWEST_PARTS:
        return NoCuts(
            f"{bundle} has keys with traffic at {len(busy)} positions, too few to cut by load; "
            f"{Algorithm.RANGE} and {Algorithm.SPECIFIED} do without"
        )
    weights = weights_of(busy)
    places = [key.position for key in busy]
    return tuple(between(places[j - 1], places[j]) for j in shares(weights, min(parts, len(busy))))


def weights_of(keys: Sequence[KeyRate]) -> list[float]:
    """The larger of each key's shares of all messages and of all bytes."""
    messages, rate = sum(key.rate_msg_s for key in keys) or 1.0, sum(key.rate_bytes_s for key in keys) or 1.0
    return [max(key.rate_msg_s / messages, key.rate_bytes_s / rate) for key in keys]


def around(bundle: Bundle, position: int) -> tuple[int, ...] | NoCuts:
    """The cuts that give one position its own bundle; at the bundle's edge one cut is enough."""
    if position not in bundle:
        return NoCuts(f"0x{position:08x} does not lie in {bundle}")
    alone = min(position, bundle.hi - 1)
    cuts = tuple(cut for cut in (alone, alone + 1) if bundle.lo < cut < bundle.hi)
    return cuts or NoCuts(f"{bundle} is that key's own bundle already")


def hottest_of(bundle: Bundle, keys: Iterable[KeyRate]) -> KeyRate | None:
    """The key with the largest weight, the lowest of equal ones; None if none has traffic."""
    busy = merged(bundle, keys)
    weights = weights_of(busy)
    return max(zip(weights, busy, strict=True), key=lambda pair: pair[0], default=(0.0, None))[1]


def estimated(bundle: Bundle, load: BundleLoad, positions: Iterable[int] = ()) -> list[KeyRate]:
    """An estimate of the keys' load for a service without `rates`.

    The hottest keys have their own rates; all other positions share the rest equally.
    """
    by_position: dict[int, float] = {}
    for name, rate in load.hottest_keys:
        position = position_of_key(name)
        if position in bundle:
            by_position[position] = by_position.get(position, 0.0) + max(0.0, rate)
    others = sorted({position for position in positions if position in bundle} - by_position.keys())
    bytes_each = load.throughput_bytes_s / load.rate_msg_s if load.rate_msg_s > 0 else 0.0
    if others:
        rest = max(0.0, load.rate_msg_s - sum(by_position.values())) / len(others)
        by_position |= dict.fromkeys(others, rest)
    return [KeyRate(place, rate, rate * bytes_each) for place, rate in sorted(by_position.items())]


def position_of_key(name: str) -> int:
    """The position of a key in `hottest_keys`: in Pulsar's or our spelling, or any other string as it is."""
    try:
        return Key.parse(name).position
    except InvalidName:
        return position_of(name)


def dominant(hot: Hot, keys: Iterable[KeyRate]) -> KeyRate | None:
    """The key that carries at least half of the quantity above the limit, so that the bundle is hot because of it."""
    whole = {Cause.MSG_RATE: hot.load.rate_msg_s, Cause.BANDWIDTH: hot.load.throughput_bytes_s}.get(hot.measure.cause)
    if not whole:
        return None
    by_bytes = hot.measure.cause is Cause.BANDWIDTH
    busy = merged(hot.bundle, keys)
    top = max(busy, key=lambda key: key.rate_bytes_s if by_bytes else key.rate_msg_s, default=None)
    carried = 0.0 if top is None else (top.rate_bytes_s if by_bytes else top.rate_msg_s)
    return top if carried >= DOMINATES * whole else None


def cuts_of(
    bundle: Bundle, algorithm: str, parts: int, keys: Sequence[KeyRate], bounds: Bounds
) -> tuple[int, ...] | NoCuts:
    """The cuts by an algorithm in `BY_KEYS`."""
    match algorithm:
        case Algorithm.TOPIC_COUNT:
            return by_count(bundle, (key.position for key in keys), parts)
        case Algorithm.FLOW_OR_QPS:
            return by_flow(bundle, keys, bounds.limits, bounds.margin)
        case Algorithm.LOAD:
            return by_load(bundle, keys, parts)
        case Algorithm.HOT_KEY:
            hottest = hottest_of(bundle, keys)
            return NoCuts(f"no key of {bundle} has traffic") if hottest is None else around(bundle, hottest.position)
        case other:
            return NoCuts(f"{other!r} is not a way to cut by keys")


def automatic_cuts(hot: Hot, algorithm: str, keys: Sequence[KeyRate] | NoCuts, bounds: Bounds) -> Cuts | NoCuts:
    """Where an owner cuts a hot bundle automatically. `keys` may be a refusal of the service.

    A dominant key is isolated, whatever the algorithm. If the algorithm finds no cuts, equal ranges serve: any cut of a
    bundle above its limits is better than none.
    """
    known = [] if isinstance(keys, NoCuts) else keys
    bundle = hot.bundle
    top = dominant(hot, known)
    if top is not None and hot.room > FEWEST_PARTS and not isinstance(found := around(bundle, top.position), NoCuts):
        return Cuts(found, Algorithm.HOT_KEY, f"the key at 0x{top.position:08x} carries {_carried(hot, top)}")
    if algorithm in (Algorithm.RANGE, Algorithm.SPECIFIED):
        return _ranges(hot)
    by_traffic = hot.measure.cause in (Cause.MSG_RATE, Cause.BANDWIDTH)
    chosen = algorithm if by_traffic or algorithm != Algorithm.FLOW_OR_QPS else Algorithm.TOPIC_COUNT
    found = keys if isinstance(keys, NoCuts) else cuts_of(bundle, chosen, hot.parts, known, bounds)
    if not isinstance(found, NoCuts) and len(found) >= hot.room:
        found = by_load(bundle, known, hot.room)
    if isinstance(found, NoCuts):
        return _ranges(hot, f"{chosen} finds none: {found.reason}")
    return Cuts(found, Algorithm(chosen))


def _ranges(hot: Hot, why: str = "") -> Cuts | NoCuts:
    width = hot.bundle.hi - hot.bundle.lo
    found = evenly(hot.bundle, min(hot.parts, width))
    return found if isinstance(found, NoCuts) else Cuts(found, Algorithm.RANGE, why)


def _carried(hot: Hot, top: KeyRate) -> str:
    if hot.measure.cause is Cause.BANDWIDTH:
        return f"{top.rate_bytes_s:,.0f} of {hot.load.throughput_bytes_s:,.0f} bytes/s"
    return f"{top.rate_msg_s:,.0f} of {hot.load.rate_msg_s:,.0f} messages/s"


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
