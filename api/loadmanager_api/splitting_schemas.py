"""Shapes of `/v1/splitting`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class KeptShown(BaseModel):
    """A bundle above a limit that is not split, and the rule that keeps it whole."""

    bundle: str
    rule: str
    detail: str


class EventShown(BaseModel):
    """An event: a split, a merge, a child that was moved, a quarantine, or a failure of one of these."""

    at_ms: int
    what: str
    bundle: str
    why: str


class SuspectShown(BaseModel):
    """A bundle with which two or more brokers in a row were lost, oldest first in `evidence`. It is served.

    `odds` are those that the bundle is the cause; above `needed` it is quarantined.
    """

    bundle: str
    why: str
    odds: float
    needed: float
    evidence: list[str]


class SplittingShown(BaseModel):
    """This broker's last decisions on its own bundles, and recent events. `idle` says why it did not look."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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
    """Why one bundle of this broker is not split, and not merged, now."""

    bundle: str
    split: str
    merge: str
