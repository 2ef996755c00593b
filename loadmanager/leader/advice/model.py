"""Advice, what administrators say of it, and what the leader does with it. Values only.

They are the values of one compacted topic, whose keys have one kind of writer each: `advice/<id>` a job of the load
history, `review/<id>` administrators, `progress/<id>` the leader. The id is a digest of what the advice says
(`codec.py`), so nobody can change what somebody else has approved.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

ADVICE_TOPIC = "advice"
FORMAT = 1

Scalar = bool | int | float | str | None


class State(StrEnum):
    """Where advice is in its life."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    """Somebody has changed what it is about since its data, or there is newer advice."""
    REFUSED = "refused"
    """It is out of bounds."""
    APPLYING = "applying"
    MEASURING = "measuring"
    KEPT = "kept"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"


class SettingChange(msgspec.Struct, frozen=True):
    """One of the cluster's settings, by our name: what it was in the data, and what it should be; in our unit."""

    name: str
    was: Scalar
    to: Scalar


class ChangeSettings(msgspec.Struct, frozen=True, tag="settings"):
    """Settings to change together: thresholds, tolerance, strategy, weights of the resources."""

    changes: tuple[SettingChange, ...]


class Cut(msgspec.Struct, frozen=True):
    """A bundle to be cut into so many equal ranges."""

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
    """Moves that make sense from one time to another: the peak that they are for begins at `not_after_ms`. UTC ms."""

    moves: tuple[PreMove, ...]
    not_before_ms: int
    not_after_ms: int


Change = ChangeSettings | CutBundles | MoveBundles


class Measure(StrEnum):
    """What advice promises to lower, and is judged by."""

    SPREAD = "spread"
    """max/mean - 1 of the brokers' fullest resource, time-weighted mean over rounds."""
    ABOVE_TOLERANCE = "above_tolerance"
    """The part of the time in which the spread is above the tolerance, 0 to 1."""


class Expected(msgspec.Struct, frozen=True):
    """The promised effect. The improvement is `before - after`; [low, high] is its interval of 95 % confidence.

    Of pre-moves `before` is the prediction of what would be without them: there is no earlier time to compare with.
    """

    measure: Measure
    before: float
    after: float
    low: float
    high: float


class Provenance(msgspec.Struct, frozen=True):
    """Where advice comes from: whose data of what time, which job of which release, which versions of which tables."""

    cluster: str
    data_from_ms: int
    data_to_ms: int
    job: str
    job_version: str
    method: str
    tables: Mapping[str, int] = msgspec.field(default_factory=dict)


class Advice(msgspec.Struct, frozen=True, tag="advice"):
    """What a job advises. `reason` is a sentence or two with the numbers; after `expires_ms` it is of no use."""

    change: Change
    reason: str
    expected: Expected
    provenance: Provenance
    expires_ms: int
    id: str = ""
    """The digest of all the rest; see `codec.sealed`."""
    format: int = FORMAT

    @property
    def kind(self) -> str:
        """settings, splits, or moves."""
        return {ChangeSettings: "settings", CutBundles: "splits", MoveBundles: "moves"}[type(self.change)]

    @property
    def targets(self) -> frozenset[str]:
        """What it would change: two pieces of advice with a target in common are about the same thing."""
        match self.change:
            case ChangeSettings():
                return frozenset(f"setting {each.name}" for each in self.change.changes)
            case CutBundles():
                return frozenset({f"bundles of {self.change.namespace}"})
            case MoveBundles():
                return frozenset(f"bundle {each.bundle}" for each in self.change.moves)


class Verdict(StrEnum):
    """What an administrator says of advice."""

    APPROVE = "approve"
    REJECT = "reject"
    WITHDRAW = "withdraw"


class Review(msgspec.Struct, frozen=True, tag="review"):
    """The last thing that an administrator said."""

    id: str
    verdict: Verdict
    author: str
    at_ms: int
    reason: str = ""


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """How something was when the leader began: a setting with its document's version and value (`is_set` False: the
    cluster had none), or a bundle with its revision."""

    name: str
    version: int
    value: Scalar = None
    is_set: bool = False


class Ruler(msgspec.Struct, frozen=True):
    """By what both periods are measured: the tolerance of before, and the weights; see `measured_rounds.ruler_of`."""

    weight_cpu: float
    weight_memory: float
    weight_bandwidth: float
    weight_message_rate: float
    tolerance: float


class Period(msgspec.Struct, frozen=True):
    """What the leaders' rounds of a time say; means over time, with the standard error of each."""

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
    """What came of it. `change` is after - before (negative: better); worse by more than `bound` is harm."""

    measure: Measure
    before: float
    after: float
    change: float
    bound: float
    harm: bool
    period: Period


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of the leader, and who or what was behind it."""

    state: State
    at_ms: int
    author: str
    reason: str = ""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True, tag="progress"):
    """What the leader has done with advice so far; written before and after each act, so that the next one can go on.

    Of two, the one with the higher (epoch, number) counts: a deposed leader's late word does not.
    """

    id: str
    epoch: int
    number: int
    state: State
    at_ms: int
    ruler: Ruler | None = None
    before: tuple[Held, ...] = ()
    baseline: Period | None = None
    applied_ms: int = 0
    effect: Effect | None = None
    steps: tuple[Step, ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        """By which the newer one is told."""
        return self.epoch, self.number


Value = Advice | Review | Progress
