"""One round of the leader, and the counts over this broker's rounds. Values only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from loadmanager.decisions.record import Outcome
from loadmanager.leader.rebalancing.limits import HeldBack
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.bundle import Bundle


class Round(msgspec.Struct, frozen=True):
    """A decision with its input, and the outcomes of its moves so far. `id` is `epoch.round`.

    `memory` is what the strategy was given. `model` is None if the round looked at nothing; `why_no_model` says why.
    """

    id: str
    at_ms: int
    settings: Settings
    policies: int
    decision: Decision
    model: ClusterModel | None = None
    memory: object = None
    why_no_model: str = ""
    outcomes: Mapping[Bundle, Outcome] = msgspec.field(default_factory=dict)
    held: tuple[HeldBack, ...] = ()
    plan: str = ""
    """The id of the proposed plan, if moves are reviewed."""


class Counts:
    """Counts since this incarnation began."""

    def __init__(self) -> None:
        self.rounds = 0
        self.rounds_failed = 0
        self.records_failed = 0
        self.plans = 0
        """Plans that rounds proposed, if moves are reviewed."""
        self.moves: Counter[str] = Counter()
        """Moves that rounds and plans began, by stage."""
        self.held_back: Counter[str] = Counter()
        """Moves that a round could not begin at once, by rule."""
        self.advice: Counter[str] = Counter()
        """Acts on plans with advice, by kind; see `balance_metrics`."""
        self.advice_failures = 0
        self.last_round_s: float | None = None
        """When the last round began, on this broker's clock."""
