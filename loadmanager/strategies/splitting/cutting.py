"""Chooses where to cut a hot bundle, by the load of its keys. Pure.

`loadmanager.model.boundaries` has the cuts that need no loads.

* `flow_or_qps_equally_divide` is Pulsar's: it walks the keys upwards and cuts where a limit would be exceeded. It can
  yield several cuts, which Pulsar's extensible manager refuses (its issue 22254); here they make several parts.
* `load_equally_divide`: the weighted median of the load, or its n-quantiles.
* `hot_key_divide`: the hottest key gets its own bundle, [position, position + 1). Equal ranges would need up to 32
  splits to isolate it, and would fill the namespace with empty bundles on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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
from loadmanager.settings.algorithms import Algorithm
from loadmanager.strategies.splitting.conditions import Cause, Limits
from loadmanager.strategies.splitting.deciding import Hot
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key, position_of

DOMINATES = 0.5
"""A key with at least this fraction of its bundle's messages or bytes keeps its half hot wherever one cuts."""


class Cuts(msgspec.Struct, frozen=True):
    """Where to cut, by which algorithm, and why."""

    positions: tuple[int, ...]
    algorithm: Algorithm
    why: str = ""


class Bounds(msgspec.Struct, frozen=True):
    """The limits for cuts by load: a bundle's limits, and the margin above them from which Pulsar's algorithm cuts."""

    limits: Limits
    margin: float

    @staticmethod
    def of(settings: Settings) -> Bounds:
        return Bounds(Limits.of(settings), settings.split_margin_percent / 100)


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
        return NoCuts(f"no key of {bundle} lies behind what its limits allow")
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
            return NoCuts(f"there is no way {other!r} to cut by keys")


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
