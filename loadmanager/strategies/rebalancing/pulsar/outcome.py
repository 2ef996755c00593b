"""Pulsar's own words for what a round of shedding came to, with the figures it was judged by. Values only."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Label(StrEnum):
    """How a round ended."""

    SUCCESS = "Success"
    SKIP = "Skip"
    FAILURE = "Failure"


class Cause(StrEnum):
    """Why. Of a round that moves something: why its first move is made."""

    OVERLOADED = "Overloaded"
    UNDERLOADED = "Underloaded"
    HIT_COUNT = "HitCount"
    NO_BUNDLES = "NoBundles"
    NO_BROKERS = "NoBrokers"
    NO_LOAD_DATA = "NoLoadData"
    OUTDATED_DATA = "OutDatedData"
    COOL_DOWN = "CoolDown"
    BALANCED = "Balanced"


class Outcome(msgspec.Struct, frozen=True):
    """One round: what Pulsar's counters would count. Loads are fractions; 0 where nothing could be measured."""

    label: Label = Label.SKIP
    cause: Cause = Cause.NO_BROKERS
    load_avg: float = 0.0
    load_std: float = 0.0
    std_after: float = 0.0
    """What the planner expects of its moves."""

    def __str__(self) -> str:
        return f"{self.label}/{self.cause}"
