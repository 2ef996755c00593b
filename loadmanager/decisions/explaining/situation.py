"""The input of an explanation: a model, settings and strategy, and the round that decided from them. Values only.

A situation comes from a decision record, of any past moment, or from what a leader would see now; then it has no round.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

import msgspec

from loadmanager.decisions.codec import BadDecision, given_memory
from loadmanager.decisions.record import NOTHING_KEPT, DecisionRecord, Memory, Outcome
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.plan import Plan
from loadmanager.strategies.rebalancing.plan.draft import Draft
from statechannel.law.bundle import Bundle


class Round(msgspec.Struct, frozen=True):
    """A decision as its record has it."""

    id: str
    at_ms: int
    leader: str
    decision: Decision
    outcomes: tuple[Outcome, ...] = ()


class Situation(msgspec.Struct, frozen=True, dict=True):
    """A situation. `model` None: the round had none, or its record omits it; `without_model` says why."""

    at_ms: int
    settings: Settings
    strategy: str
    model: ClusterModel | None = None
    without_model: str = ""
    round: Round | None = None
    memory: Memory = NOTHING_KEPT
    """The memory that the strategy was, or would be, given."""
    policies_revision: int = -1
    model_of: str = ""
    """The id of the earlier round whose model this is, if it is not the round's own."""

    @cached_property
    def draft(self) -> Draft | None:
        """The plan's view of the model, with its memory; hard rules are judged by it, whatever the strategy."""
        if self.model is None:
            return None
        memory: object = None
        with suppress(BadDecision):  # without it the plan keeps no margins
            memory = given_memory(self.memory, Plan())
        return Draft(self.model, self.settings, memory)

    @cached_property
    def rows(self) -> dict[Bundle, int]:
        """The row of each bundle of the model."""
        return {} if self.model is None else {bundle: row for row, bundle in enumerate(self.model.bundles.ids)}

    @cached_property
    def names(self) -> dict[str, int]:
        """The row of each broker of the model, by its name."""
        return {} if self.model is None else {each.name: row for row, each in enumerate(self.model.brokers.ids)}


def situation_of(record: DecisionRecord) -> Situation:
    """The situation of a recorded round."""
    return Situation(
        at_ms=record.at_ms,
        settings=record.restored_settings(),
        strategy=record.strategy,
        model=record.model,
        without_model=record.without_model,
        round=Round(record.id, record.at_ms, record.leader.name, record.decision, record.outcomes),
        memory=record.memory,
        policies_revision=record.policies_revision,
    )
