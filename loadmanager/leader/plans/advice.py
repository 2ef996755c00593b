"""Advice: a change that a job of the load history proposes, and the effect that it promises. Values, and their digest.

A plan carries its advice (`model.Plan.advice`) and has the same id, the digest of the content. So the same data make
the same plan, and an approved plan can no longer be changed.

Bounds: what advice may change, by how much at once, from whose data, until when. They are checked when advice is
published, and again before the leader acts, since advice may also come over the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from math import isfinite

import msgspec

from loadmanager.errors import Invalid, LoadManagerError
from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.settings import TOLERANCES, Settings
from loadmanager.settings.names import changeable
from loadmanager.settings.overlay import combined
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

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
    """The ruler for both periods: the tolerance of before, and the weights; see `measured_rounds`."""

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


NUMBERS = frozenset(
    {
        *("balancing_tolerance", "balancing_budget", "balancing_interval_s", "balancing_moves_per_round"),
        *("bundle_rest_s", "overloaded_percent", "weight_cpu", "weight_bandwidth", "weight_message_rate"),
        *("shedder_hit_count", "shedder_delay_s"),
        *("split_max_keys", "split_max_sessions", "split_max_rate_msg_s", "split_max_bandwidth_bytes_s"),
    }
)
"""Numeric settings that advice may change, by at most the factor `STEP_FACTOR` at a time.

Excluded are switches, limits of moves under way, times that safety depends on, and settings that control advice.
"""

NAMES = frozenset({"balancing_strategy", "placement"})
"""Settings that advice may change to the name of another installed strategy."""

FROM_ZERO: Mapping[str, float] = dict.fromkeys(
    ("weight_cpu", "weight_bandwidth", "weight_message_rate", "shedder_hit_count"), 1.0
)
"""What a 0 may become in one step. For the other numbers 0 means no limit, and advice must not change it."""

STEP_FACTOR = 2.0
"""A number changes by this factor at most with one piece of advice: it limits the harm of a wrong step."""
MOST_SETTINGS = 8
MOST_CUTS = 64
MOST_MOVES = 100
MOST_REASON = 2_000
MOST_TABLES = 64
MOST_LIFE_MS = 14 * 86_400_000
"""The longest time from the end of the data to `expires_ms`: older data say little about the cluster."""
MOST_WINDOW_MS = 86_400_000
"""The longest window of pre-moves: a day's peak."""
CLOCKS_APART_MS = 300_000


def check(advice: Advice, cluster: str, now_ms: int) -> None:
    """Check that the advice may be for this cluster at this time. Raises Invalid, which says what is wrong."""
    _check_text(advice.reason)
    _check_provenance(advice.provenance, cluster, now_ms)
    _check_expected(advice.expected)
    life_ms = advice.expires_ms - advice.provenance.data_to_ms
    if not 0 < life_ms <= MOST_LIFE_MS:
        raise Invalid(f"advice lives at most {MOST_LIFE_MS // 86_400_000} days from the end of its data")
    if advice.expires_ms <= now_ms:
        raise Invalid("this advice is stale: its time was over before it came; run the job on newer data")
    match advice.change:
        case ChangeSettings():
            _check_names(advice.change)
        case CutBundles():
            _check_cuts(advice.change)
        case MoveBundles():
            _check_moves(advice.change, now_ms)


def check_steps(change: ChangeSettings, present: Settings) -> None:
    """Check that one step may change the settings as advised. Raises Invalid."""
    for each in change.changes:
        if each.name in NUMBERS:
            _check_step(each, getattr(present, each.name), STEP_FACTOR)
    try:
        combined(present, {each.name: each.to for each in change.changes})
    except ValueError as error:
        raise Invalid(f"out of bounds: {error}") from None


def step_towards(name: str, present: float, wanted: float, factor: float) -> float:
    """The value nearest to `wanted` that one step allows."""
    if present <= 0:
        return min(wanted, FROM_ZERO.get(name, 0.0))
    return min(max(wanted, present / factor), present * factor)


def as_number(name: str, value: object) -> float:
    """The value as a number; a named tolerance becomes its fraction. Raises Invalid if it is not a number."""
    if name == "balancing_tolerance" and isinstance(value, str) and value in TOLERANCES:
        return TOLERANCES[value]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Invalid(f"{name}={value!r} is not a number")
    return float(value)


def _check_step(change: SettingChange, present: object, factor: float) -> None:
    now, to = as_number(change.name, present), as_number(change.name, change.to)
    nearest = step_towards(change.name, now, to, factor)
    if abs(nearest - to) > 1e-9 * max(1.0, abs(to)):
        raise Invalid(
            f"out of bounds: {change.name} is {now:g}, and one piece of advice may change it to {nearest:g}, "
            f"not to {to:g} (one step is a factor of {factor:g} at most)"
        )


def _check_text(reason: str) -> None:
    if not reason.strip() or len(reason) > MOST_REASON:
        raise Invalid(f"advice needs a reason, of at most {MOST_REASON:,} characters")


def _check_provenance(provenance: Provenance, cluster: str, now_ms: int) -> None:
    if provenance.cluster != cluster:
        raise Invalid(f"this advice is made of data of cluster {provenance.cluster!r}, and this is cluster {cluster!r}")
    if not (provenance.job and provenance.job_version and provenance.method):
        raise Invalid("the provenance of advice must name the job, its release and the method")
    if len(provenance.tables) > MOST_TABLES:
        raise Invalid(f"the provenance names {len(provenance.tables)} tables, at most {MOST_TABLES} are allowed")
    if not 0 <= provenance.data_from_ms < provenance.data_to_ms:
        raise Invalid("data_to_ms of advice must be later than data_from_ms")
    if provenance.data_to_ms > now_ms + CLOCKS_APART_MS:
        raise Invalid("the data of this advice ends in the future: correct the clocks")


def _check_expected(expected: Expected) -> None:
    numbers = (expected.before, expected.after, expected.low, expected.high)
    if not all(isfinite(each) for each in numbers) or expected.before < 0 or expected.after < 0:
        raise Invalid("the expected effect must have finite numbers, and no measure below 0")
    if not expected.low <= expected.before - expected.after <= expected.high:
        raise Invalid("the expected improvement, before - after, must lie between low and high")
    if expected.low <= 0:
        raise Invalid(f"this improvement is not certain: low is {expected.low:g}, and must be above 0")


def _check_names(change: ChangeSettings) -> None:
    names = [each.name for each in change.changes]
    if not 1 <= len(names) <= MOST_SETTINGS or len(set(names)) < len(names):
        raise Invalid(f"advice must change 1 to {MOST_SETTINGS} settings, each once")
    for each in change.changes:
        try:
            ours = changeable(each.name).setting.name
        except LoadManagerError as error:
            raise Invalid(str(error)) from None
        if ours != each.name:
            raise Invalid(f"advice must use our names: {each.name} is {ours}")
        if each.name not in NUMBERS | NAMES:
            raise Invalid(f"advice may not change {each.name}; see docs/advice.md")
        if each.name in NUMBERS:
            as_number(each.name, each.to)
        if each.to == each.was:
            raise Invalid(f"{each.name} is {each.was} already: there is nothing to change")


def _check_cuts(change: CutBundles) -> None:
    names = [each.bundle for each in change.cuts]
    if not 1 <= len(names) <= MOST_CUTS or len(set(names)) < len(names):
        raise Invalid(f"advice must cut 1 to {MOST_CUTS} bundles, each once")
    for each in change.cuts:
        if _bundle(each.bundle).namespace != change.namespace:
            raise Invalid(f"{each.bundle} is not a bundle of {change.namespace}")
        if not FEWEST_PARTS <= each.parts <= MOST_PARTS:
            raise Invalid(f"a split makes {FEWEST_PARTS} to {MOST_PARTS} parts, not {each.parts}")
    if change.was < len(names):
        raise Invalid(f"{change.namespace} had {change.was} bundles, and {len(names)} of them are to be cut")


def _check_moves(change: MoveBundles, now_ms: int) -> None:
    names = [each.bundle for each in change.moves]
    if not 1 <= len(names) <= MOST_MOVES or len(set(names)) < len(names):
        raise Invalid(f"advice must move 1 to {MOST_MOVES} bundles, each once")
    for each in change.moves:
        _bundle(each.bundle)
        if each.source == each.destination:
            raise Invalid(f"{each.bundle} is at {each.source} already")
    if not 0 < change.not_after_ms - change.not_before_ms <= MOST_WINDOW_MS:
        raise Invalid("not_after_ms of pre-moves must be later than not_before_ms, by at most a day")
    if change.not_after_ms <= now_ms:
        raise Invalid("these pre-moves are stale: the peak that they are for is over")


def _bundle(name: str) -> Bundle:
    try:
        return Bundle.parse(name)
    except InvalidName as error:
        raise Invalid(str(error)) from None
