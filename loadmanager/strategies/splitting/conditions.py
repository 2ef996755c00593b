"""When a bundle is too hot, and when it is cold, by the limits in the settings. Pure.

The conditions and their order are Pulsar's (`DefaultNamespaceBundleSplitStrategyImpl`): topics, sessions, message rate,
bandwidth; the first that holds is the cause. A limit of 0 means none.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.model.host import BundleLoad
from loadmanager.settings import Settings

FILL_AIMED_AT = 0.75
"""A split makes enough parts that each stays below this fraction of its limit, if the load divides evenly.

That leaves room to grow: a bundle a little above its limit gets two children, one at eight times the limit more than
eight full ones.
"""


class Cause(StrEnum):
    """Why a bundle is split; Pulsar's labels."""

    TOPICS = "Topics"
    SESSIONS = "Sessions"
    MSG_RATE = "MsgRate"
    BANDWIDTH = "Bandwidth"
    ADMIN = "Admin"


_IN_WORDS = {
    Cause.TOPICS: "keys",
    Cause.SESSIONS: "sessions",
    Cause.MSG_RATE: "messages/s",
    Cause.BANDWIDTH: "bytes/s",
}


class Limits(msgspec.Struct, frozen=True):
    """The limits of one bundle; infinite if the setting is 0."""

    keys: float
    sessions: float
    rate_msg_s: float
    bandwidth_bytes_s: float

    @staticmethod
    def of(settings: Settings) -> Limits:
        return Limits(
            settings.split_max_keys or math.inf,
            settings.split_max_sessions or math.inf,
            settings.split_max_rate_msg_s or math.inf,
            settings.split_max_bandwidth_bytes_s or math.inf,
        )

    @property
    def any(self) -> bool:
        """Whether there is any limit at all."""
        return any(limit < math.inf for limit in msgspec.structs.astuple(self))


class Measure(msgspec.Struct, frozen=True):
    """One quantity of a bundle against its limit."""

    cause: Cause
    value: float
    limit: float

    @property
    def fill(self) -> float:
        return self.value / self.limit

    def __str__(self) -> str:
        return f"{self.value:,.0f} {_IN_WORDS[self.cause]} of {self.limit:,.0f}"


def measures(load: BundleLoad, limits: Limits) -> tuple[Measure, ...]:
    """The quantities that have a limit, in the order of the conditions."""
    found = (
        Measure(Cause.TOPICS, load.keys, limits.keys),
        Measure(Cause.SESSIONS, load.sessions, limits.sessions),
        Measure(Cause.MSG_RATE, load.rate_msg_s, limits.rate_msg_s),
        Measure(Cause.BANDWIDTH, load.throughput_bytes_s, limits.bandwidth_bytes_s),
    )
    return tuple(measure for measure in found if measure.limit < math.inf)


def exceeded(load: BundleLoad, limits: Limits) -> Measure | None:
    """The first quantity above its limit, None if the bundle is within all of them."""
    return next((measure for measure in measures(load, limits) if measure.value > measure.limit), None)


def fullest(load: BundleLoad, limits: Limits) -> Measure | None:
    """The quantity nearest to (or farthest above) its limit; None without limits."""
    return max(measures(load, limits), key=lambda measure: measure.fill, default=None)


def is_cold(load: BundleLoad, limits: Limits, below: float) -> bool:
    """Whether every quantity is below this fraction of its limit. Without any limit nothing is cold."""
    return limits.any and all(measure.fill < below for measure in measures(load, limits))


def parts_for(load: BundleLoad, limits: Limits) -> int:
    """Into how many parts to split a hot bundle, if its load divides evenly."""
    hottest = fullest(load, limits)
    wanted = 0 if hottest is None else math.ceil(min(hottest.fill / FILL_AIMED_AT, MOST_PARTS))
    return min(max(FEWEST_PARTS, wanted), MOST_PARTS)
