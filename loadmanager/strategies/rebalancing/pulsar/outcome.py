"""The result of a round of shedding in Pulsar's own words, with its figures. Values only."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Label(StrEnum):
    """How a round ended."""

    SUCCESS = "Success"
    SKIP = "Skip"
    FAILURE = "Failure"


class Cause(StrEnum):
    """The cause of a round's result; if it moves something, the cause of its first move."""

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
    """One round as Pulsar's counters would count it. Loads are fractions; 0 if nothing could be measured."""

    label: Label = Label.SKIP
    cause: Cause = Cause.NO_BROKERS
    load_avg: float = 0.0
    load_std: float = 0.0
    std_after: float = 0.0
    """The expected deviation after the moves."""

    def __str__(self) -> str:
        return f"{self.label}/{self.cause}"
