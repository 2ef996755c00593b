"""What a strategy answers: moves with their numbers, what it did not do and why, how good the plan is. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

CANDIDATES_KEPT = 10
"""The best moves not made that a decision names; the others it counts by rule."""


class Stage(StrEnum):
    """Why a move is made."""

    POLICY = "policy"
    """A hard rule forbids where the bundle is."""
    DRAIN = "drain"
    OVERLOAD = "overload"
    BALANCE = "balance"
    SWAP = "swap"
    EXACT = "exact"
    UNDO = "undo"


class Move(msgspec.Struct, frozen=True):
    """Transfer a bundle. `reason` is one sentence with the numbers before and after.

    The usages are the brokers' fullest resource as fractions, each as of before and after this move, with the moves
    ahead of it made. `load` is what moves, as a fraction of the destination's capacity. Moves of one `group` (0: none)
    only make sense together.
    """

    bundle: Bundle
    source: BrokerId
    destination: BrokerId | None
    """None: unload it, and let the next lookup choose (Pulsar's shedders without transfer)."""
    reason: str
    stage: Stage = Stage.BALANCE
    load: float = 0.0
    gain: float = 0.0
    """By how much the objective falls."""
    source_before: float = 0.0
    source_after: float = 0.0
    destination_before: float = 0.0
    destination_after: float = 0.0
    group: int = 0


class Refused(msgspec.Struct, frozen=True):
    """A broker or bundle that was left out altogether: the rule, and its numbers."""

    subject: str
    rule: str
    detail: str


class Candidate(msgspec.Struct, frozen=True):
    """A move that was not made: what it would have gained, and the rule that refused it with its numbers."""

    bundle: Bundle
    source: BrokerId
    destination: BrokerId
    gain: float
    rule: str
    detail: str


class Certificate(msgspec.Struct, frozen=True):
    """The least load that had to move, whatever the algorithm, for every plan that does as well as this one.

    `bound`, `moved` and `whole` are in the same unit: fractions of the mean broker's capacity in the resource
    `resource`.
    """

    bound: float
    moved: float
    """By this round."""
    resource: str
    text: str
    """What is proven, in words."""
    whole: float | None = None
    """By the whole plan, where a limit on a round's moves lets this one make a part only. None: `moved`."""
    proven: bool = True
    """No placement does better than the whole plan. If not, the two are not to be compared: one that does better may
    have to move more."""

    @property
    def ratio(self) -> float:
        """What the whole plan moves / bound, 1.0 at best; 1.0 where nothing had to move and nothing does, infinite if
        something does then; NaN if nothing is proven."""
        whole = self.moved if self.whole is None else self.whole
        if not self.proven:
            return float("nan")
        if self.bound <= 0:
            return 1.0 if whole <= 0 else float("inf")
        return whole / self.bound


class Decision(msgspec.Struct, frozen=True):
    """The moves to make now, in order, and why these or none.

    Spreads are max/mean - 1 of the brokers' fullest resource over those that take part, as fractions.
    """

    moves: tuple[Move, ...]
    reason: str
    refused: tuple[Refused, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    """At most CANDIDATES_KEPT, the best first."""
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """How many other candidates each rule refused."""
    spread_before: float = 0.0
    spread_after: float = 0.0
    certificate: Certificate | None = None
    memory: object = None
    """What the strategy wants to be given in its next round (hit counts, histories); None if it keeps nothing."""
