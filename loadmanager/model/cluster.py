"""The cluster as a strategy sees it: columns with one row for each broker or bundle, and the hard rules. Values only.

Loads are in natural units (`UNITS`), in the order of `RESOURCES`; a usage is load / capacity, times the resource's
weight. Moves in flight count as done: in `owner` and `used` the bundle is already with its destination. Load that no
reported bundle explains (other work of the machine, bundles below the top n) is foreign: it stays with its broker.

The hard rules say who may hold a bundle, and which bundles must stay. `loadmanager.model.policies` computes them from
policies; a model without policies has `unconstrained(…)`. Bundles with the same permissions share a row of `forbidden`,
so 100,000 bundles under ten policies cost ten rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.load import RESOURCES, weights_of
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

ALLOWED = -1
FREE = -1


class Constraints(msgspec.Struct, frozen=True, eq=False):
    """The rules for n brokers, m bundles, k kinds of bundles and g anti-affinity groups.

    A bundle may go to broker b iff `forbidden[kind[bundle], b] == ALLOWED`; else the number names the rule that refuses
    it. A bundle whose own broker is forbidden is misplaced and must go. `fixed[bundle]` names the rule that keeps it
    where it is (pinned, quarantined, paused, namespace excluded from balancing), FREE if there is none.
    """

    rules: tuple[str, ...]
    """The rules that `forbidden` and `fixed` index, in words: "isolation policy 'pay'", "pinned to a:6650"."""
    kind: NDArray[np.int64]
    """(m,)"""
    forbidden: NDArray[np.int16]
    """(k, n)"""
    fixed: NDArray[np.int16]
    """(m,)"""
    rest_s: NDArray[np.float64]
    """(m,), how long a moved bundle rests."""
    weight: NDArray[np.float64]
    """(m,), the cost of a move as a multiple of a usual one; above 0."""
    group: NDArray[np.int64]
    """(m,), the anti-affinity group of the bundle's namespace, FREE if none."""
    groups: tuple[str, ...] = ()
    spread_over_domains: bool = False
    """Whether a group is spread over failure domains first, then over brokers."""
    presence: NDArray[np.int64] | None = None
    """(g, n): how many *namespaces* of the group have bundles on the broker, by the whole table; None: no groups."""
    namespace_here: NDArray[np.int64] | None = None
    """(namespaces, n): how many bundles of the namespace the broker holds, for namespaces in a group; None without."""
    isolated: NDArray[np.bool_] | None = None
    """(m,): whether an isolation policy holds for the bundle's namespace; None if for no bundle."""

    def columns(self) -> tuple[NDArray[np.generic], ...]:
        """All arrays."""
        columns = (self.kind, self.forbidden, self.fixed, self.rest_s, self.weight, self.group)
        optional = (self.presence, self.namespace_here, self.isolated)
        return (*columns, *(each for each in optional if each is not None))


def unconstrained(brokers: int, bundles: int, rest_s: float) -> Constraints:
    """Constraints without any policy."""
    return Constraints(
        rules=(),
        kind=np.zeros(bundles, np.int64),
        forbidden=np.full((1, brokers), ALLOWED, np.int16),
        fixed=np.full(bundles, FREE, np.int16),
        rest_s=np.full(bundles, rest_s),
        weight=np.ones(bundles),
        group=np.full(bundles, FREE, np.int64),
    )


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNITS = ("cores", "bytes", "bytes/s", "bytes/s", "messages/s")
DIMENSIONS = len(RESOURCES)
UNLIMITED = np.iinfo(np.int64).max
NOWHERE = -1
"""In place of a row: no broker, no group, no rule."""


class Brokers(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The live brokers, n rows, in the order of their names. Do not change the arrays.

    `capacity` is infinite if a broker declares none: that resource then never counts there. `known` is false without
    fresh load data of this incarnation: such a broker neither gives nor takes bundles by load, and delays no other.
    `draining` brokers give everything away; automatic decisions leave `paused` ones alone. `bundles` counts what a
    broker holds, plus what arrives, less what leaves. Rates and throughput are from its last report.
    """

    ids: tuple[BrokerId, ...]
    capacity: Floats
    """(n, DIMENSIONS), above 0."""
    used: Floats
    """(n, DIMENSIONS), 0 or more."""
    known: Flags
    draining: Flags
    paused: Flags
    bundles: Ints
    max_bundles: Ints
    rate_msg_s: Floats
    throughput_bytes_s: Floats
    domains: tuple[str, ...]
    """The failure domain (rack, zone), empty if none is declared."""
    versions: tuple[str, ...]
    report_age_s: Floats | None = None
    """(n,), the age of this incarnation's last report, infinite without one.

    None: no ages are given; known brokers then count as freshly reported, others as never reported.
    """

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> Mapping[BrokerId, int]:
        """The row of each broker."""
        return {broker: row for row, broker in enumerate(self.ids)}

    @cached_property
    def takes_part(self) -> Flags:
        """(n,): the broker's load is known, and it may take bundles."""
        return self.known & ~self.draining & ~self.paused

    def usages(self, settings: Settings) -> Floats:
        """(n, DIMENSIONS): load / capacity, times the weight."""
        return self.used / self.capacity * np.array(weights_of(settings).row)

    def fullness(self, settings: Settings) -> Floats:
        """(n,): the fullest resource of each broker, as a fraction."""
        return self.usages(settings).max(axis=1, initial=0.0)

    def mean_usage(self, settings: Settings) -> float:
        """The mean of the fullest resource over brokers that take part; 0 if none does."""
        chosen = self.fullness(settings)[self.takes_part]
        return float(chosen.mean()) if len(chosen) else 0.0

    def spread(self, settings: Settings) -> float:
        """max/mean - 1 of the fullest resource over brokers that take part."""
        return spread_of(self.fullness(settings)[self.takes_part])


def spread_of(usage: Floats) -> float:
    """max/mean - 1 of these brokers' usages; 0 without brokers or load."""
    mean = float(usage.mean()) if len(usage) else 0.0
    return float(usage.max()) / mean - 1 if mean > 0 else 0.0


class Bundles(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The bundles to consider, m rows: those that their owners reported as hot, and those that policies concern.

    `moved_s` is how long ago a planned move brought a bundle to its owner, infinite if no such move is known. `left`
    maps a bundle's row to the rows of brokers that planned moves took it from within its rest time. `changed`: its load
    has really changed since its last planned move, which therefore no longer binds.
    """

    ids: Sequence[Bundle]
    namespaces: tuple[str, ...]
    namespace: Ints
    """(m,), index into `namespaces`."""
    owner: Ints
    """(m,), row of the broker; NOWHERE without an owner."""
    load: Floats
    """(m, DIMENSIONS), in natural units."""
    rate_msg_s: Floats
    throughput_bytes_s: Floats
    in_flight: Flags
    """The bundle is being moved, split or revoked."""
    moved_s: Floats
    changed: Flags
    left: Mapping[int, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.ids)


class ClusterModel(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The cluster at one moment. `constraints` are the hard rules of these rows; `at_ms` is the leader's wall clock."""

    brokers: Brokers
    bundles: Bundles
    constraints: Constraints
    at_ms: int = 0

    @cached_property
    def digest(self) -> str:
        """16 hex digits, equal for models that are equal apart from `at_ms`."""
        brokers, bundles = self.brokers, self.bundles
        seal = blake2b(digest_size=8)
        seal.update(msgspec.msgpack.encode((brokers.ids, brokers.domains, brokers.versions, bundles.namespaces)))
        seal.update(msgspec.msgpack.encode([str(bundle) for bundle in bundles.ids]))
        seal.update(msgspec.msgpack.encode(sorted(bundles.left.items())))
        for column in (
            *(brokers.capacity, brokers.used, brokers.known, brokers.draining, brokers.paused, brokers.bundles),
            *(brokers.max_bundles, brokers.rate_msg_s, brokers.throughput_bytes_s),
            *(bundles.namespace, bundles.owner, bundles.load, bundles.rate_msg_s, bundles.throughput_bytes_s),
            *(bundles.in_flight, bundles.moved_s, bundles.changed),
            *(() if brokers.report_age_s is None else (brokers.report_age_s,)),
            *self.constraints.columns(),
        ):
            seal.update(np.ascontiguousarray(column).tobytes())
        return seal.hexdigest()
