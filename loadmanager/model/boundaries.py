"""Where to cut a bundle into parts: at given positions, into equal ranges, or into parts of equally many keys.

The names are Pulsar's (`NamespaceBundleSplitAlgorithm`). Decides only the cuts, which lie strictly inside the bundle
and run strictly upwards; who may split what, and when, is the law's and the agent's. Cuts by load are found in
`loadmanager.strategies.splitting.cutting`. Pure.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadmanager.settings.algorithms import Algorithm
from statechannel.law.bundle import FULL_UPPER, Bundle

FEWEST_PARTS = 2
MOST_PARTS = 256
"""Into how many one split may cut: each part is acquired anew, all at the same moment."""


class NoCuts(msgspec.Struct, frozen=True):
    """The bundle cannot be cut so, and why."""

    reason: str


def check_parts(parts: int) -> NoCuts | None:
    """None if a split into so many is allowed."""
    if FEWEST_PARTS <= parts <= MOST_PARTS:
        return None
    return NoCuts(f"a split makes {FEWEST_PARTS} to {MOST_PARTS} parts, not {parts}")


def specified(bundle: Bundle, positions: Sequence[int]) -> tuple[int, ...] | NoCuts:
    """The positions themselves, if they run strictly upwards inside the bundle and are not too many."""
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
    """The `parts - 1` cuts that share out the keys at these positions (CRC-32, one for each key) most evenly.

    Keys at one position stay together. Positions outside the bundle do not count.
    """
    refusal = check_parts(parts)
    if refusal is not None:
        return refusal
    # The ring's last position cannot have a bundle of its own: its keys stay with those of the one before.
    keys = Counter(min(position, bundle.hi - 1) for position in positions if position in bundle)
    places = sorted(keys)
    if len(places) < parts:
        return NoCuts(
            f"{bundle} has {keys.total()} keys at {len(places)} positions, too few for {parts} parts; "
            f"{Algorithm.RANGE} and {Algorithm.SPECIFIED} do without keys"
        )
    return tuple(between(places[j - 1], places[j]) for j in shares([keys[place] for place in places], parts))


def shares(counts: Sequence[float], parts: int) -> list[int]:
    """How many places lie before each cut: each as near as may be to its share of the keys (or of whatever is counted),
    no part without a place."""
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
    """A cut that separates two positions, half-way."""
    return left + (right - left + 1) // 2
