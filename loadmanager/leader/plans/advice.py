"""Advice: a change that a job of the load history proposes, and the effect that it promises. Values, and their digest.

A plan carries its advice (`model.Plan.advice`) and has its id, the digest of the content: the same data make the same
plan, and nobody can change what somebody else has approved.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b

import msgspec

from loadmanager.errors import Invalid

FORMAT = 1
MAX_BYTES = 65_536
"""The size limit of one piece of advice; 100 moves with long names take a third of it."""
ID_BYTES = 8

Scalar = bool | int | float | str | None


class SettingChange(msgspec.Struct, frozen=True):
    """One of the cluster's settings, by our name and in our unit: its value in the data, and the proposed value."""

    name: str
    was: Scalar
    to: Scalar


class ChangeSettings(msgspec.Struct, frozen=True, tag="settings"):
    """Settings to change together: thresholds, tolerance, strategy, weights of the resources."""

    changes: tuple[SettingChange, ...]


class Cut(msgspec.Struct, frozen=True):
    """A bundle to split into `parts` equal ranges."""

    bundle: str
    parts: int


class CutBundles(msgspec.Struct, frozen=True, tag="splits"):
    """More bundles for a namespace; `was` is how many it had in the data."""

    namespace: str
    was: int
    cuts: tuple[Cut, ...]


class PreMove(msgspec.Struct, frozen=True):
    """A bundle to be moved ahead of a peak; brokers by name (`host:port`)."""

    bundle: str
    source: str
    destination: str


class MoveBundles(msgspec.Struct, frozen=True, tag="moves"):
    """Moves ahead of a peak that begins at `not_after_ms`; none before `not_before_ms`. UTC ms."""

    moves: tuple[PreMove, ...]
    not_before_ms: int
    not_after_ms: int


Change = ChangeSettings | CutBundles | MoveBundles


class Measure(StrEnum):
    """The measure that advice promises to lower, and is judged by."""

    SPREAD = "spread"
    """max/mean - 1 of the brokers' fullest resource, time-weighted mean over rounds."""
    ABOVE_TOLERANCE = "above_tolerance"
    """The fraction of the time in which the spread is above the tolerance, 0 to 1."""


class Expected(msgspec.Struct, frozen=True):
    """The promised effect. The improvement is `before - after`; [low, high] is its interval of 95 % confidence.

    For pre-moves `before` is the prediction without them: no earlier time can be compared with.
    """

    measure: Measure
    before: float
    after: float
    low: float
    high: float


class Provenance(msgspec.Struct, frozen=True):
    """The origin of advice: cluster and time of the data, job and release, versions of the tables."""

    cluster: str
    data_from_ms: int
    data_to_ms: int
    job: str
    job_version: str
    method: str
    tables: Mapping[str, int] = msgspec.field(default_factory=dict)


class Advice(msgspec.Struct, frozen=True, tag="advice"):
    """What a job advises. `reason` is a sentence or two with the numbers; after `expires_ms` the advice is useless."""

    change: Change
    reason: str
    expected: Expected
    provenance: Provenance
    expires_ms: int
    id: str = ""
    """The digest of all the rest; see `sealed`."""
    format: int = FORMAT

    @property
    def kind(self) -> str:
        """settings, splits, or moves."""
        return {ChangeSettings: "settings", CutBundles: "splits", MoveBundles: "moves"}[type(self.change)]

    @property
    def size(self) -> int:
        """How many settings, splits or moves."""
        match self.change:
            case ChangeSettings():
                return len(self.change.changes)
            case CutBundles():
                return len(self.change.cuts)
            case MoveBundles():
                return len(self.change.moves)

    @property
    def until_ms(self) -> int:
        """When the advice becomes useless; moves ahead of a peak do so when the peak begins."""
        change = self.change
        return min(self.expires_ms, change.not_after_ms) if isinstance(change, MoveBundles) else self.expires_ms

    @property
    def targets(self) -> frozenset[str]:
        """What the advice would change: two pieces of advice with a common target compete."""
        match self.change:
            case ChangeSettings():
                return frozenset(f"setting {each.name}" for each in self.change.changes)
            case CutBundles():
                return frozenset({f"bundles of {self.change.namespace}"})
            case MoveBundles():
                return frozenset(f"bundle {each.bundle}" for each in self.change.moves)


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state before the change: a setting with its document's version and value (`is_set` False: it had none)."""

    name: str
    version: int
    value: Scalar = None
    is_set: bool = False


class Ruler(msgspec.Struct, frozen=True):
    """The ruler for both periods: the tolerance of before, and the weights; see `measured_rounds.py`."""

    weight_cpu: float
    weight_memory: float
    weight_bandwidth: float
    weight_message_rate: float
    tolerance: float


class Period(msgspec.Struct, frozen=True):
    """The leaders' rounds of a period: means over time, each with its standard error."""

    begin_ms: int
    end_ms: int
    rounds: int
    spread: float
    spread_error: float
    above_tolerance: float
    above_tolerance_error: float

    def mean(self, measure: Measure) -> tuple[float, float]:
        """The mean of a measure, and its standard error."""
        if measure is Measure.SPREAD:
            return self.spread, self.spread_error
        return self.above_tolerance, self.above_tolerance_error


class Effect(msgspec.Struct, frozen=True):
    """The result. `change` is after - before (negative: better); more than `bound` is harm."""

    measure: Measure
    before: float
    after: float
    change: float
    bound: float
    harm: bool
    period: Period


_ordered = msgspec.json.Encoder(order="sorted").encode


def sealed(advice: Advice) -> Advice:
    """The advice with its id: the same content has the same id in every process."""
    return msgspec.structs.replace(advice, id=_digest(advice))


def check_seal(advice: Advice) -> None:
    """Raises Invalid if the format is newer, the id is not the digest of the content, or the content is too large."""
    if advice.format > FORMAT:
        raise Invalid(f"advice of format {advice.format}: this release reads {FORMAT}")
    if advice.id != (expected := _digest(advice)):
        raise Invalid(f"the id of advice is the digest of what it says, here {expected}, not {advice.id!r}")
    if (size := len(_ordered(advice))) > MAX_BYTES:
        raise Invalid(f"this advice has {size:,} bytes, at most {MAX_BYTES:,} are allowed: advise less at once")


def _digest(advice: Advice) -> str:
    unnamed = msgspec.structs.replace(advice, id="")
    return blake2b(_ordered(unnamed), digest_size=ID_BYTES).hexdigest()
