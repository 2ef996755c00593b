"""A strategy's answer: moves with their numbers, refusals with reasons, and how good the plan is. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

CANDIDATES_KEPT = 10
"""How many of the best refused moves a decision names; it counts the others by rule."""


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

    Usages are the brokers' fullest resource as fractions, before and after this move, with the moves ahead of it made.
    `load` is what moves, as a fraction of the destination's capacity. Moves of one `group` (0: none) only make sense
    together.
    """

    bundle: Bundle
    source: BrokerId
    destination: BrokerId | None
    """None: unload the bundle; the next lookup chooses (Pulsar's shedders without transfer)."""
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


def grouped(moves: Sequence[Move]) -> Iterable[list[Move]]:
    """The groups of moves, in the order of their first moves; a move without a group is one by itself."""
    found: dict[int, list[Move]] = {}
    for position, move in enumerate(moves):
        key = -1 - position if move.group == 0 else move.group
        found.setdefault(key, []).append(move)
    return found.values()


class Refused(msgspec.Struct, frozen=True):
    """A broker or bundle that was excluded: the rule, and its numbers."""

    subject: str
    rule: str
    detail: str


class Candidate(msgspec.Struct, frozen=True):
    """A move that was refused: its gain, and the rule with its numbers."""

    bundle: Bundle
    source: BrokerId
    destination: BrokerId
    gain: float
    rule: str
    detail: str


class Certificate(msgspec.Struct, frozen=True):
    """The least load that any plan had to move that does as well as this one.

    `bound`, `moved` and `whole` are fractions of the mean broker's capacity in the resource `resource`.
    """

    bound: float
    moved: float
    """The load that this round moves."""
    resource: str
    text: str
    """The proven statement, in words."""
    whole: float | None = None
    """The load that the whole plan moves, if a limit lets this round make only a part; None: `moved`."""
    proven: bool = True
    """Whether no placement does better than the whole plan.

    If False, bound and plan cannot be compared: a better placement may have to move more.
    """

    @property
    def ratio(self) -> float:
        """Load of the whole plan / bound, 1.0 at best; 1.0 if both are 0, infinite if only the bound is.

        NaN if nothing is proven.
        """
        whole = self.moved if self.whole is None else self.whole
        if not self.proven:
            return float("nan")
        if self.bound <= 0:
            return 1.0 if whole <= 0 else float("inf")
        return whole / self.bound


class Decision(msgspec.Struct, frozen=True):
    """The moves to make now, in order, and why these or none.

    Spreads are max/mean - 1 of the brokers' fullest resource over brokers that take part, as fractions.
    """

    moves: tuple[Move, ...]
    reason: str
    refused: tuple[Refused, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    """At most CANDIDATES_KEPT refused moves, the best first."""
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """How many other candidates each rule refused."""
    spread_before: float = 0.0
    spread_after: float = 0.0
    certificate: Certificate | None = None
    memory: object = None
    """The strategy's input for its next round (hit counts, histories); None if it keeps nothing."""


def percent(usage: float) -> str:
    """`58.3 %`; without the decimal from 100 % on."""
    return f"{usage * 100:.1f} %" if usage < 1 else f"{usage * 100:.0f} %"
