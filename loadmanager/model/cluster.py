"""The cluster as a balancing strategy sees it: columns, a row for each broker and each bundle. Values only.

Loads are in natural units (`UNITS`), in the order of `RESOURCES`; a usage is load / capacity, times the resource's
weight. Moves in flight count as done: a bundle on its way is already with its destination, in the owner's column and in
`used`. What no reported bundle explains of a broker's load (other work of the machine, bundles below the top n) is
foreign: it stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.model.constraints import Constraints
from loadmanager.model.load.usage import RESOURCES
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNITS = ("cores", "bytes", "bytes/s", "bytes/s", "messages/s")
DIMENSIONS = len(RESOURCES)
UNLIMITED = np.iinfo(np.int64).max
NOWHERE = -1
"""Instead of a row: no broker, no group, no rule."""


class Brokers(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The live brokers, n rows, in the order of their names. Arrays are not to be changed.

    `capacity` is infinite where a broker declares none: that resource then never counts there. `known` is false without
    fresh load data of this incarnation: such a broker neither gives nor takes by load, and stops nobody else.
    `draining` ones give everything away, `paused` ones are left alone by automatic decisions. `bundles` is what a
    broker holds, with what is coming and without what is leaving. Rates and throughput are those of its last report.
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
    """Failure domain (rack, zone), empty where none was given."""
    versions: tuple[str, ...]
    report_age_s: Floats | None = None
    """(n,), how old the last report of this incarnation is, infinite where there is none. None: nobody says; then what
    is known counts as new, and what is not as never reported."""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> Mapping[BrokerId, int]:
        """The row of each broker."""
        return {broker: row for row, broker in enumerate(self.ids)}


class Bundles(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The bundles that may be considered, m rows: those that their owners reported as hot.

    `moved_s` is how long ago a planned move brought a bundle where it is, infinite if none did that anyone remembers.
    `left` holds, for a bundle's row, the rows of the brokers that planned moves took it from within its rest time.
    `changed`: since its last planned move its load has really changed, so that move binds nobody any more.
    """

    ids: Sequence[Bundle]
    namespaces: tuple[str, ...]
    namespace: Ints
    """(m,), index into `namespaces`."""
    owner: Ints
    """(m,), row of the broker; NOWHERE where it has none."""
    load: Floats
    """(m, DIMENSIONS), in natural units."""
    rate_msg_s: Floats
    throughput_bytes_s: Floats
    in_flight: Flags
    """It is being moved, split or revoked."""
    moved_s: Floats
    changed: Flags
    left: Mapping[int, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.ids)


class ClusterModel(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One moment. `constraints` are the hard rules, worked out for these rows; `at_ms` is the leader's wall clock."""

    brokers: Brokers
    bundles: Bundles
    constraints: Constraints
    at_ms: int = 0

    @cached_property
    def digest(self) -> str:
        """16 hex digits that tell whether two models are the same, but for `at_ms`."""
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
