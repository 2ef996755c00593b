"""One round of the leader, and what the rounds of this broker add up to. Values only."""

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
    """What was decided, from what, and what has become of the moves so far. `id` is `epoch.round`.

    `memory` is what the strategy had been given. `model` is None where nothing was looked at; `why_no_model` says why.
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
    """The proposal that the moves wait in, where moves are reviewed."""


class Counts:
    """What has happened since this incarnation began."""

    def __init__(self) -> None:
        self.rounds = 0
        self.rounds_failed = 0
        self.records_failed = 0
        self.plans = 0
        """Proposed by rounds, where moves are reviewed."""
        self.moves: Counter[str] = Counter()
        """Begun by rounds and plans, by stage."""
        self.held_back: Counter[str] = Counter()
        """Moves that a round could not begin at once, by rule."""
        self.advice: Counter[str] = Counter()
        """What was done with plans that have advice: run, kept, harmed, undone."""
        self.advice_failures = 0
        self.last_round_s: float | None = None
        """When the last one began, on the clock of this broker."""
