"""The cluster as a balancing strategy sees it, and what a strategy answers. Values only.

Usages are fractions of each broker's own capacity (see `load/usage.py`). Moves in flight count as done: a bundle on its
way is already part of its destination's usage.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.load.usage import Usage
from statechannel.bundle import Bundle
from statechannel.record import Broker


class BrokerState(msgspec.Struct, frozen=True):
    """One live broker. `usage` is None without fresh load data of this incarnation: then it takes no part."""

    broker: Broker
    usage: Usage | None
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    bundles: int = 0
    draining: bool = False


class BundleState(msgspec.Struct, frozen=True):
    """A bundle that its owner reported as hot. `usage` is the part of the owner's usage that would go with it.

    `moved_s` is how long ago a planned move brought it here, None if none did that anyone remembers; `left` names the
    brokers that planned moves took it from. `in_flight`: it is being moved, split or revoked.
    """

    bundle: Bundle
    owner: Broker
    usage: Usage
    moved_s: float | None = None
    left: frozenset[str] = frozenset()
    in_flight: bool = False


class ClusterModel(msgspec.Struct, frozen=True):
    """All live brokers, and the bundles that may be considered, hottest first for each owner."""

    brokers: tuple[BrokerState, ...]
    bundles: tuple[BundleState, ...] = ()


class Move(msgspec.Struct, frozen=True):
    """Transfer a bundle. `reason` is one sentence with the numbers before and after.

    `gain` is by how much the difference of the two brokers falls.
    """

    bundle: Bundle
    source: Broker
    destination: Broker
    reason: str
    gain: float = 0.0


class Refused(msgspec.Struct, frozen=True):
    """A broker or bundle that was considered and left out: the rule, and its numbers."""

    subject: str
    rule: str
    detail: str


class Decision(msgspec.Struct, frozen=True):
    """The moves to make now, in order, and why these or none. `spread_after` is what the moves are expected to leave.

    Spreads are the difference of usage between the fullest and the emptiest broker that take part.
    """

    moves: tuple[Move, ...]
    reason: str
    refused: tuple[Refused, ...] = ()
    spread_before: float = 0.0
    spread_after: float = 0.0
