"""Shapes of `/v1/splitting`."""

from __future__ import annotations

from pydantic import BaseModel


class KeptShown(BaseModel):
    """A bundle above a limit that is not split, and the rule that says so."""

    bundle: str
    rule: str
    detail: str


class EventShown(BaseModel):
    """Something that happened: a split, a merge, a child that was moved, a quarantine, or one that failed."""

    at_ms: int
    what: str
    bundle: str
    why: str


class SuspectShown(BaseModel):
    """A bundle with which brokers were lost: what speaks against it and for it, step by step, and what keeps it from
    being given out now. `score` is the logarithm of the odds that it kills; a lock takes `needed`."""

    bundle: str
    why: str
    held_back: str
    score: float
    needed: float
    evidence: list[str]


class SplittingShown(BaseModel):
    """What this broker decided about its own bundles last, and what happened. `idle`: why it did not look."""

    broker: str
    looks: int
    looked_ms: int
    idle: str
    not_split: dict[str, int]
    """How many bundles are not split, by rule."""
    not_merged: dict[str, int]
    above_limits: list[KeptShown]
    suspects: list[SuspectShown]
    events: list[EventShown]


class BundleSplittingShown(BaseModel):
    """Why one bundle of this broker would not be split, and not be merged, now."""

    bundle: str
    split: str
    merge: str
