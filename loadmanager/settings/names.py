"""Names and units of settings: ours, Pulsar's with their units converted, and advice for the rest. Pure.

The settings object itself checks values (`overlay.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

import msgspec

from loadmanager.errors import Invalid, NotFound
from loadmanager.settings import Description, descriptions
from loadmanager.settings.overlay import Scalar
from loadmanager.settings.removed import why_removed

DIGITS, THEIR_DIGITS = 9, 12
"""Digits of converted values: 0.001 times 5,000 must be 5, and must survive conversion there and back."""

_DECIDED = "every decision is recorded with its reasons: see `loadmanager explain`"
ELSEWHERE: Mapping[str, str] = {
    "loadManagerClassName": "this is the load manager; its strategy is balancing_strategy",
    "loadBalancerDebugModeEnabled": _DECIDED,
    "loadBalancerMultiPhaseBundleUnload": "every move tells clients its destination before the source lets go",
    "loadManagerServiceUnitStateTableViewClassName": "the channel is where --log says",
    "loadBalancerServiceUnitTableViewSyncer": "a channel moves to another log with `loadmanager migrate`",
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": "the leader writes its records in batches",
    "loadBalancerDistributeBundlesEvenlyEnabled": "placement counts bundles where loads are close",
    "loadBalancerBrokerMaxTopics": "limit a broker's bundles with a policy, and their topics with split_max_keys",
    "loadBalancerOverrideBrokerNicSpeedGbps": (
        "declare it where the broker is started: --set 'capacity={\"in_rate_bytes_s\": 1.25e9}'"
    ),
    "supportedNamespaceBundleSplitAlgorithms": "all are supported; split_algorithm is the automatic one",
    "zookeeperSessionExpiredPolicy": "a broker whose session ended starts a new incarnation by itself",
    "metadataStoreOperationTimeoutSeconds": "waits follow from session_timeout_s and proof_validity_s",
    "exposeBundlesMetricsInPrometheus": "bundles with their loads are at /v1/bundles",
    "loadBalancerResourceQuotaUpdateIntervalMinutes": "there are no quotas; bundles are measured",
    "loadBalancerPlacementStrategy": "it belongs to Pulsar's first manager; here: placement",
    "loadBalancerBrokerUnderloadedThresholdPercentage": "it belongs to Pulsar's first manager: balancing_tolerance",
    "loadBalancerBrokerComfortLoadLevelPercentage": "it belongs to Pulsar's first manager: balancing_tolerance",
}
"""Pulsar's names without a counterpart here, and what to do instead."""


class Named(msgspec.Struct, frozen=True):
    """A setting under one of its names; `factor` converts that name's unit to ours."""

    setting: Description
    called: str
    factor: float = 1.0

    def ours(self, given: object) -> Scalar:
        """The given value or text, in our unit and words. Raises Invalid if it is not a single value."""
        if not isinstance(given, str | int | float | None):
            raise Invalid(f"{self.called} takes a single value ({self.setting.type}), not {given!r}")
        if isinstance(given, str):
            given = None if given.lower() in ("null", "none") else self.setting.words.get(given, given)
        if given is None or self.factor == 1.0 or isinstance(given, bool):
            return given
        try:
            return round(float(given) * self.factor, DIGITS)
        except (ValueError, OverflowError):
            raise Invalid(f"{self.called}={given}: give a number") from None

    def theirs(self, value: Scalar) -> Scalar:
        """Our value in the unit and words of this name."""
        if isinstance(value, str):
            return next((word for word, ours in self.setting.words.items() if ours == value), value)
        if value is None or isinstance(value, bool) or self.factor == 1.0:
            return value
        return round(value / self.factor, THEIR_DIGITS)


@cache
def _pulsars() -> Mapping[str, tuple[Description, float]]:
    return {name: (each, factor) for each in descriptions().values() for name, factor in each.pulsar.items()}


def names_of(setting: Description) -> list[Named]:
    """A setting under our name, and under each of Pulsar's."""
    return [Named(setting, setting.name), *(Named(setting, name, factor) for name, factor in setting.pulsar.items())]


def named(name: str) -> Named:
    """The setting with this name, ours or Pulsar's. Raises NotFound with similar names."""
    ours = descriptions().get(name)
    if ours is not None:
        return Named(ours, name)
    if name in _pulsars():
        setting, factor = _pulsars()[name]
        return Named(setting, name, factor)
    if (why := why_removed(name)) is not None:
        raise NotFound(why)
    if name in ELSEWHERE:
        raise NotFound(f"{name} has no counterpart here: {ELSEWHERE[name]}")
    near = get_close_matches(name, [*descriptions(), *_pulsars()], n=3)
    raise NotFound(f"there is no setting {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))


def changeable(name: str) -> Named:
    """As `named`, but raises Invalid for settings that cannot change while brokers run."""
    found = named(name)
    if not found.setting.live:
        ours = found.setting.name
        raise Invalid(
            f"{ours} cannot change while a broker runs: set it where the broker is started "
            f"(LOADMANAGER_{ours.upper()}, or --set {ours}=…), on one after the other"
        )
    return found
