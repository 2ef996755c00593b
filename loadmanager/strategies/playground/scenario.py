"""The world of one game: machines, bundles and their loads, round by round. Values only.

Everything is fixed before the first round, so that all strategies get the same world and decide only the owners. A
bundle's load is its activity in the round times its profile; a broker with a slow CPU needs that much more CPU for it.
Nothing saturates: a broker above 100 % has more demand than it can serve.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import DIMENSIONS, Flags, Floats, Ints
from statechannel.law.bundle import Bundle, even_boundaries, tile

CPU, MEMORY, BYTES_IN, BYTES_OUT, MESSAGES = range(DIMENSIONS)

CORES = 8.0
"""The cores of a usual broker."""
MEAN_USAGE = 0.5
"""The mean usage of the cluster, unless the workload has another one."""
MESSAGES_PER_CORE = 20_000.0
"""Messages in and out. With the next figure, a usual broker at half load moves 80,000 messages and 80 MB a second."""
BYTES_PER_MESSAGE = 1_000.0
NAMESPACES = 8


class Size(msgspec.Struct, frozen=True):
    """The size of a game."""

    brokers: int = 12
    bundles: int = 600
    rounds: int = 120


class Scenario(msgspec.Struct, frozen=True, eq=False):
    """One game: n brokers, m bundles, T rounds. Do not change the arrays.

    A row of brokers is a name, for the whole game; `present` says when it runs. After an absence it is a new
    incarnation. `draining` brokers are about to stop.
    """

    name: str
    interval_s: float
    bundles: tuple[Bundle, ...]
    namespaces: tuple[str, ...]
    namespace: Ints
    """(m,), index into `namespaces`."""
    profile: Floats
    """(m, DIMENSIONS): the cost of one unit of activity, in natural units. Usually activity is in cores."""
    activity: Floats
    """(T, m)"""
    capacity: Floats
    """(n, DIMENSIONS), infinite if a resource does not count."""
    home: Ints
    """(m,): the owner of each bundle before the first round."""
    foreign: Floats
    """(T, n, DIMENSIONS): load that no bundle causes."""
    slowness: Floats
    """(T, n): the factor of CPU for the same work; usually 1."""
    present: Flags
    """(T, n)"""
    draining: Flags
    """(T, n)"""
    fixed: Flags
    """(m,): whether the bundle is pinned to its broker."""

    @property
    def rounds(self) -> int:
        return len(self.activity)

    @property
    def brokers(self) -> int:
        return len(self.capacity)

    @property
    def one_dimension(self) -> bool:
        """Whether a single resource decides how full a broker is."""
        return bool((np.isfinite(self.capacity).any(axis=0)).sum() == 1)

    def asked(self, at: int) -> Floats:
        """(m, DIMENSIONS): the cost of each bundle in round `at` on a sound machine. The caller owns the array."""
        asked: Floats = self.activity[at][:, None] * self.profile
        return asked

    def loads(self, at: int, owner: Ints) -> Floats:
        """(m, DIMENSIONS): the cost of each bundle in round `at` at its owner; 0 without an owner."""
        load = self.asked(at)
        load[:, CPU] *= self.slowness[at][owner]
        load[owner < 0] = 0.0
        return load

    def total(self, at: int) -> Floats:
        """(DIMENSIONS,): the cost of all bundles in round `at` on sound machines."""
        total: Floats = self.activity[at] @ self.profile
        return total


def scenario(
    name: str,
    size: Size,
    rng: np.random.Generator,
    activity: Floats,
    *,
    cores: Floats | None = None,
    home: Ints | None = None,
    usage: float = MEAN_USAGE,
    interval_s: float = 60.0,
) -> Scenario:
    """A game in which only CPU counts, on brokers that run all the time.

    `activity` (T, m) in any unit: it is scaled so that the bundles use the fraction `usage` of all cores in the mean.
    `cores` (n,): the cores of each broker, CORES by default. `home` (m,): by default random with equal counts, as in a
    cluster that placed its bundles before it knew their loads.
    """
    capacity = np.full((size.brokers, DIMENSIONS), np.inf)
    capacity[:, CPU] = CORES if cores is None else cores
    scale = usage * capacity[:, CPU].sum() / activity.sum(axis=1).mean()
    bundles, namespaces, namespace = tiled(size.bundles)
    shape = (len(activity), size.brokers)
    return Scenario(
        name=name,
        interval_s=interval_s,
        bundles=bundles,
        namespaces=namespaces,
        namespace=namespace,
        profile=np.tile(PLAIN, (size.bundles, 1)),
        activity=activity * scale,
        capacity=capacity,
        home=rng.permutation(size.bundles) % size.brokers if home is None else home,
        foreign=np.zeros((*shape, DIMENSIONS)),
        slowness=np.ones(shape),
        present=np.ones(shape, np.bool_),
        draining=np.zeros(shape, np.bool_),
        fixed=np.zeros(size.bundles, np.bool_),
    )


def _plain() -> Floats:
    plain = np.zeros(DIMENSIONS)
    plain[[CPU, MESSAGES]] = 1.0, MESSAGES_PER_CORE
    plain[[BYTES_IN, BYTES_OUT]] = MESSAGES_PER_CORE * BYTES_PER_MESSAGE / 2
    return plain


PLAIN = _plain()
"""The profile of a usual bundle: messages and bytes in proportion to CPU, so that either can guide a strategy."""


def tiled(bundles: int, namespaces: int = NAMESPACES) -> tuple[tuple[Bundle, ...], tuple[str, ...], NDArray[np.int64]]:
    """Bundles in namespaces of about equal size, the namespaces' names, and the namespace of each bundle."""
    names = [f"play/ns-{number}" for number in range(min(namespaces, bundles))]
    counts = [bundles // len(names) + (number < bundles % len(names)) for number in range(len(names))]
    made: list[Bundle] = []
    for name, count in zip(names, counts, strict=True):
        made += tile(name, even_boundaries(count))
    return tuple(made), tuple(names), np.repeat(np.arange(len(names), dtype=np.int64), counts)


def broker_names(brokers: int) -> Sequence[str]:
    """The names of the rows; they sort as the rows do."""
    return [f"broker-{number:03}.play:6650" for number in range(brokers)]
