"""Chooses where to cut a bundle: at given positions, into equal ranges, or into parts with equally many keys. Pure.

The names are Pulsar's (`NamespaceBundleSplitAlgorithm`). Decides only the cuts, which lie strictly inside the bundle
and ascend strictly; the law and the agent decide who may split, and when. `loadmanager.strategies.splitting.cuts`
chooses cuts by load.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import FULL_UPPER, Bundle

DEFAULT_BUNDLES = 4
"""Of a namespace that is created without a number; Pulsar's default."""
FEWEST_PARTS = 2
MOST_PARTS = 256
"""The most parts of one split: all of them are acquired at the same moment."""


class NoCuts(msgspec.Struct, frozen=True):
    """Why the bundle cannot be cut this way."""

    reason: str


def check_parts(parts: int) -> NoCuts | None:
    """None if a split into this many parts is allowed."""
    if FEWEST_PARTS <= parts <= MOST_PARTS:
        return None
    return NoCuts(f"a split makes {FEWEST_PARTS} to {MOST_PARTS} parts, not {parts}")


def specified(bundle: Bundle, positions: Sequence[int]) -> tuple[int, ...] | NoCuts:
    """The given positions, if they ascend strictly inside the bundle and are not too many."""
    if not positions:
        return NoCuts(f"say where to cut {bundle}: give at least one position")
    if len(positions) >= MOST_PARTS:
        return NoCuts(f"{len(positions)} positions are too many: give at most {MOST_PARTS - 1}, for {MOST_PARTS} parts")
    outside = next((p for p in positions if not bundle.lo < p < bundle.hi), None)
    if outside is not None:
        return NoCuts(f"0x{outside:08x} does not lie inside {bundle}; its own ends are no cuts")
    unordered = next((pair for pair in itertools.pairwise(positions) if pair[0] >= pair[1]), None)
    if unordered is not None and unordered[0] == unordered[1]:
        return NoCuts(f"0x{unordered[0]:08x} is given twice; positions must run strictly upwards")
    if unordered is not None:
        return NoCuts(f"positions must run strictly upwards; 0x{unordered[0]:08x} comes before 0x{unordered[1]:08x}")
    return tuple(positions)


def evenly(bundle: Bundle, parts: int) -> tuple[int, ...] | NoCuts:
    """The `parts - 1` cuts of equal ranges, rounded down."""
    refusal = check_parts(parts)
    if refusal is not None:
        return refusal
    if bundle.hi - bundle.lo < parts:
        return NoCuts(f"{bundle} is too narrow for {parts} parts")
    width = bundle.hi + (bundle.hi == FULL_UPPER) - bundle.lo
    return tuple(bundle.lo + i * width // parts for i in range(1, parts))


def by_count(bundle: Bundle, positions: Iterable[int], parts: int) -> tuple[int, ...] | NoCuts:
    """The `parts - 1` cuts that divide the keys at these positions (CRC-32, one for each key) most evenly.

    Keys at one position stay together. Positions outside the bundle do not count.
    """
    refusal = check_parts(parts)
    if refusal is not None:
        return refusal
    # The ring's last position cannot have a bundle of its own: its keys stay with those of the position before.
    keys = Counter(min(position, bundle.hi - 1) for position in positions if position in bundle)
    places = sorted(keys)
    if len(places) < parts:
        return NoCuts(
            f"{bundle} has {keys.total()} keys at {len(places)} positions, too few for {parts} parts; "
            f"{Algorithm.RANGE} and {Algorithm.SPECIFIED} do without keys"
        )
    return tuple(between(places[j - 1], places[j]) for j in shares([keys[place] for place in places], parts))


def shares(counts: Sequence[float], parts: int) -> list[int]:
    """How many places lie before each cut, as close as possible to equal shares of the counts; no part is empty."""
    before = list(itertools.accumulate(counts, initial=0))
    chosen: list[int] = []
    for k in range(1, parts):
        first, last = (chosen[-1] if chosen else 0) + 1, len(counts) - (parts - k)
        share = k * before[-1] / parts
        above = min(max(bisect_left(before, share), first), last)
        nearer_below = above > first and share - before[above - 1] <= before[above] - share
        chosen.append(above - 1 if nearer_below else above)
    return chosen


def between(left: int, right: int) -> int:
    """A cut half-way between two positions."""
    return left + (right - left + 1) // 2
