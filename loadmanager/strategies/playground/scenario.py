"""What happens to a cluster in one game of the playground: machines, bundles and their loads, round by round. Values.

Everything is settled before the first round, so that all strategies play against the same world; only who holds what
is theirs to decide. A bundle's load is its activity of the round times its profile; on a broker whose CPU is slow it
costs that much more CPU. Nothing saturates: a broker above 100 % is one that is asked for more than it has.
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
"""Of a usual broker."""
MEAN_USAGE = 0.5
"""Of the cluster, unless the workload says otherwise."""
MESSAGES_PER_CORE = 20_000.0
"""In and out. With the next figure, a usual broker at half load moves 80,000 messages and 80 MB a second."""
BYTES_PER_MESSAGE = 1_000.0
NAMESPACES = 8


class Size(msgspec.Struct, frozen=True):
    """How large a game is."""

    brokers: int = 12
    bundles: int = 600
    rounds: int = 120


class Scenario(msgspec.Struct, frozen=True, eq=False):
    """One game: n brokers, m bundles, T rounds. Arrays are not to be changed.

    Rows of brokers are names, for the whole game; `present` says when each runs. One that was away comes back as a new
    incarnation. `draining` ones are about to stop.
    """

    name: str
    interval_s: float
    bundles: tuple[Bundle, ...]
    namespaces: tuple[str, ...]
    namespace: Ints
    """(m,), index into `namespaces`."""
    profile: Floats
    """(m, DIMENSIONS): what one unit of activity costs, in natural units. Usually activity is in cores."""
    activity: Floats
    """(T, m)"""
    capacity: Floats
    """(n, DIMENSIONS), infinite where a resource does not count."""
    home: Ints
    """(m,): who holds each bundle before the first round."""
    foreign: Floats
    """(T, n, DIMENSIONS): load of the machine that no bundle causes."""
    slowness: Floats
    """(T, n): 1, or by how much more CPU the same work takes there."""
    present: Flags
    """(T, n)"""
    draining: Flags
    """(T, n)"""
    fixed: Flags
    """(m,): pinned where they are."""

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
        """(m, DIMENSIONS): what each bundle costs in round `at` on a sound machine. The caller's own array."""
        asked: Floats = self.activity[at][:, None] * self.profile
        return asked

    def loads(self, at: int, owner: Ints) -> Floats:
        """(m, DIMENSIONS): what each bundle costs in round `at` where it is; nothing where it has no owner."""
        load = self.asked(at)
        load[:, CPU] *= self.slowness[at][owner]
        load[owner < 0] = 0.0
        return load

    def total(self, at: int) -> Floats:
        """(DIMENSIONS,): what all bundles cost in round `at` on sound machines."""
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
    """A game in which only CPU counts, on brokers that all run all the time.

    `activity` (T, m) in any unit: it is scaled so that the bundles use the fraction `usage` of all cores in the mean.
    `cores` (n,): of each broker, CORES by default. `home` (m,): drawn by default, with equal counts, as a cluster looks
    that placed its bundles before it knew their loads.
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
"""The profile of a usual bundle: messages and bytes in proportion to CPU, so that who steers by either is not wrong."""


def tiled(bundles: int, namespaces: int = NAMESPACES) -> tuple[tuple[Bundle, ...], tuple[str, ...], NDArray[np.int64]]:
    """So many bundles in namespaces of about equal size, the namespaces' names, and the namespace of each bundle."""
    names = [f"play/ns-{number}" for number in range(min(namespaces, bundles))]
    counts = [bundles // len(names) + (number < bundles % len(names)) for number in range(len(names))]
    made: list[Bundle] = []
    for name, count in zip(names, counts, strict=True):
        made += tile(name, even_boundaries(count))
    return tuple(made), tuple(names), np.repeat(np.arange(len(names), dtype=np.int64), counts)


def broker_names(brokers: int) -> Sequence[str]:
    """The names of the rows; they sort as the rows do."""
    return [f"broker-{number:03}.play:6650" for number in range(brokers)]
