"""Draws splits and merges for simulated administrators: where to cut, and which neighbours to join.

All cuts fall between cells of the ring, so that `storage.py` can keep one token per cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from random import Random
from typing import TypedDict

from loadmanager.settings.algorithms import Algorithm
from loadmanager.simulation.storage import CELL_SIZE, cells_of
from statechannel.law.bundle import Bundle
from statechannel.law.verdict import Ownership

MOST_PARTS = 4
BAD_CHANCE = 0.05


class Cut(TypedDict, total=False):
    """Arguments of `Operations.split`."""

    parts: int
    positions: list[int]
    algorithm: str
    unload: bool


def draw_cut(random: Random, bundle: Bundle) -> Cut | None:
    """One of the ways to split a bundle; None if it is a single cell. A few are impossible, and must be refused."""
    cells = cells_of(bundle)
    if len(cells) < 2:
        return None
    if random.random() < BAD_CHANCE:
        return Cut(positions=[bundle.lo, bundle.lo])
    ways = [_by_positions, _by_count, _by_range]
    cut = random.choice(ways)(random, cells)
    if random.random() < 0.1:
        cut["unload"] = True
    return cut


def _by_positions(random: Random, cells: range) -> Cut:
    inside = cells[1:]
    chosen = random.sample(inside, random.randint(1, min(MOST_PARTS - 1, len(inside))))
    return Cut(positions=[cell * CELL_SIZE for cell in sorted(chosen)])


def _by_count(random: Random, cells: range) -> Cut:
    """By the service's positions: the middle of each cell, so that half-way between two of them is a cell's edge."""
    return Cut(parts=random.randint(2, min(MOST_PARTS, len(cells))), algorithm=Algorithm.TOPIC_COUNT)


def _by_range(random: Random, cells: range) -> Cut:
    parts = [parts for parts in range(2, MOST_PARTS + 1) if len(cells) % parts == 0]
    return Cut(parts=random.choice(parts)) if parts else _by_positions(random, cells)


def draw_neighbours(random: Random, entries: Iterable[Ownership]) -> list[Bundle]:
    """Some adjacent bundles, most often of one holder; empty if there are none."""
    alike = random.random() > BAD_CHANCE
    runs = list(_runs(sorted(entries, key=lambda entry: entry.bundle), alike))
    if not runs:
        return []
    run = random.choice(runs)
    size = random.randint(2, min(MOST_PARTS, len(run)))
    first = random.randint(0, len(run) - size)
    return run[first : first + size]


def _runs(entries: list[Ownership], alike: bool) -> Iterator[list[Bundle]]:
    """Longest runs of two or more bundles that touch, of one holder if `alike`."""
    run: list[Bundle] = []
    for before, entry in itertools.pairwise([None, *entries]):
        assert entry is not None
        bundle = entry.bundle
        touches = before is not None and before.bundle.namespace == bundle.namespace and before.bundle.hi == bundle.lo
        if touches and not (alike and before is not None and before.holder != entry.holder):
            run.append(bundle)
            continue
        if len(run) > 1:
            yield run
        run = [bundle]
    if len(run) > 1:
        yield run
