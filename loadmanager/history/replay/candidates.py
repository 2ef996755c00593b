"""Candidates of a replay: a strategy with settings, as text `strategy[:setting=value,…]`.

A value may be several, `a|b`: each is a candidate then, and several such settings make a grid. Names and units are
those of `loadmanager config set`. `recorded` is what the cluster really did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from loadmanager.errors import Invalid, NotFound
from loadmanager.settings import Settings
from loadmanager.settings.names import changeable
from loadmanager.settings.overlay import Scalar, combined
from loadmanager.strategies.registry import STRATEGIES

RECORDED = "recorded"
DEFAULTS = (
    RECORDED,
    "plan:balancing_tolerance=tight|default|loose",
    *("transfer", "threshold", "uniform", "avg", "overload"),
)
MOST = 200
"""The most candidates of one replay: a larger grid is a mistake."""
_STRATEGY = "balancing_strategy"
NOT_PLAYED = frozenset(
    {
        *("balancing", "balancing_review", "load_window_s", "load_report_max_interval_s"),
        *("prefer_later_versions", "lookup_timeout_s", "drain_timeout_s"),
    }
)
NOT_PLAYED_KINDS = ("advice_", "host_", "merge", "namespace_", "split")
"""Settings, and prefixes of more, that change nothing in a replay: candidates that differ in them would be equal."""


class Candidate(msgspec.Struct, frozen=True):
    """A strategy, and the settings that differ from the cluster's, in our names and units."""

    strategy: str
    values: dict[str, Scalar] = {}

    @property
    def name(self) -> str:
        """The text that parses to this candidate, such as `plan:balancing_tolerance=tight`."""
        values = ",".join(f"{name}={_text(value)}" for name, value in self.values.items())
        return f"{self.strategy}:{values}" if values else self.strategy

    @property
    def is_recorded(self) -> bool:
        """Whether it is what the cluster did: nothing is played then."""
        return self.strategy == RECORDED

    def settings(self, base: Settings) -> Settings:
        """The settings to play with. Raises Invalid if values conflict with each other, or with `base`."""
        try:
            return combined(base, {**self.values, _STRATEGY: self.strategy})
        except ValueError as error:
            raise Invalid(f"{self.name}: {error}") from None

    def changes(self, base: Settings) -> dict[str, Scalar]:
        """The changes to the cluster's settings that make it behave like this; none for what was recorded."""
        if self.is_recorded:
            return {}
        wanted = {_STRATEGY: self.strategy, **self.values}
        return {name: value for name, value in wanted.items() if getattr(base, name) != value}


def commands(changes: Mapping[str, Scalar]) -> tuple[str, ...]:
    """The commands that set them."""
    return tuple(f"loadmanager config set {name} {_text(value)}" for name, value in changes.items())


def parsed(given: Iterable[str], base: Settings) -> tuple[Candidate, ...]:
    """The candidates, each once, in their order. Raises Invalid, naming what is wrong."""
    found = spelled(given)
    for each in found:
        if not each.is_recorded:
            each.settings(base)
    return found


def spelled(given: Iterable[str]) -> tuple[Candidate, ...]:
    """As `parsed`, without checking whether values fit each other and the cluster's settings. Raises Invalid."""
    names = dict.fromkeys(each.name for each in _all(given))
    if len(names) > MOST:
        raise Invalid(f"these are {len(names)} candidates; give at most {MOST}")
    if not names:
        raise Invalid("give at least one candidate, such as plan or plan:balancing_tolerance=tight|loose")
    return tuple(_all(names))


def _all(given: Iterable[str]) -> Iterator[Candidate]:
    for text in given:
        strategy, _, rest = text.partition(":")
        if strategy != RECORDED and strategy not in STRATEGIES.names():
            raise Invalid(
                f"no strategy is called {strategy!r}; there are: {', '.join([RECORDED, *STRATEGIES.names()])}"
            )
        if strategy == RECORDED and rest:
            raise Invalid(f"{text}: what was recorded has no settings; leave them out")
        pairs = [_values(text, pair) for pair in rest.split(",") if pair]
        for chosen in itertools.product(*(values for _, values in pairs)):
            yield Candidate(strategy, dict(zip([name for name, _ in pairs], chosen, strict=True)))


def _values(text: str, pair: str) -> tuple[str, list[Scalar]]:
    name, equals, values = pair.partition("=")
    if not equals or not values:
        raise Invalid(f"{text}: write {name}=value, or {name}=one|another")
    try:
        setting = changeable(name)
        _check_played(text, setting.setting.name)
        return setting.setting.name, [_typed(setting.setting.default, setting.ours(each)) for each in values.split("|")]
    except NotFound as error:
        raise Invalid(f"{text}: {error}") from None


def _check_played(text: str, name: str) -> None:
    if name == _STRATEGY:
        raise Invalid(f"{text}: write the strategy before the colon")
    if name == "balancing_interval_s":
        raise Invalid(f"{text}: rounds are the same for all candidates; set their interval for the whole replay")
    if name in NOT_PLAYED or name.startswith(NOT_PLAYED_KINDS):
        raise Invalid(f"{text}: {name} changes nothing in a replay; see docs/replay.md, Limits")


def _typed(default: object, value: Scalar) -> Scalar:
    """The value in the setting's type, so that equal values have equal names: text that is a number becomes one."""
    if not isinstance(value, str):
        return value
    if isinstance(default, bool):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.lower(), value)
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        return float(number) if isinstance(default, float) else number
    return value


def _text(value: Scalar) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
