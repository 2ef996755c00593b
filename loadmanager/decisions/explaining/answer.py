"""The contents of explanations: sentences for people, with the numbers beside them. Values only, encoded as JSON."""

from __future__ import annotations

import msgspec


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a bundle does not move: the rule, a sentence with the numbers, and what would remove it."""

    rule: str
    sentence: str
    lifted_by: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True):
    """A possible destination, with its fullest resource before and after as fractions.

    `rule` says why it may not take the bundle, empty if it may. A usage of None: its load is not known.
    """

    broker: str
    usage: float | None
    after: float | None
    rule: str = ""


class Change(msgspec.Struct, frozen=True):
    """A change, and where the strategy would then move the bundle (empty: the bundle would still stay).

    `tried` is False if the strategy was not run, since the model is too large or missing.
    """

    change: str
    goes_to: str = ""
    tried: bool = True


class Event(msgspec.Struct, frozen=True):
    """An event that brought a bundle to its place, from the channel."""

    at_ms: int
    text: str
    cause: str = ""
    """The id of the decision behind it, empty if there is none."""
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """The load of one resource: in natural units, and as the weighted fraction of capacity (None: no capacity)."""

    resource: str
    load: float
    unit: str
    usage: float | None = None
    capacity: float | None = None
    foreign: float | None = None
    """For a broker: the load that no reported bundle explains."""


class RoundSaid(msgspec.Struct, frozen=True):
    """The round that an explanation is about."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    moves: int


class BundleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `explain BUNDLE`; `answer` is the summary in one sentence.

    Unknown fields are empty, and `notes` say why.
    """

    bundle: str
    at_ms: int
    answer: str
    state: str = ""
    owner: str = ""
    because: tuple[Event, ...] = ()
    """The events that brought it to its place, newest first."""
    round: RoundSaid | None = None
    obstacles: tuple[Obstacle, ...] = ()
    """Why it did not move, the decisive reason first. Empty if it did."""
    moved: str = ""
    """What the round did with the bundle, if it moved it."""
    rest_left_s: float = 0.0
    loads: tuple[Load, ...] = ()
    targets: tuple[Target, ...] = ()
    """The possible destinations, the best first."""
    next_best: Target | None = None
    changes: tuple[Change, ...] = ()
    """Changes that would make it move."""
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """A reported bundle of a broker: its part of the broker, and why it stays."""

    bundle: str
    usage: float
    rule: str
    sentence: str


class BrokerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `explain BROKER`."""

    broker: str
    at_ms: int
    answer: str
    usage: float | None = None
    mean: float = 0.0
    round: RoundSaid | None = None
    loads: tuple[Load, ...] = ()
    bundles: int = 0
    max_bundles: int | None = None
    held: tuple[Held, ...] = ()
    taken: tuple[str, ...] = ()
    """The round's moves away from it."""
    given: tuple[str, ...] = ()
    not_taken: tuple[Obstacle, ...] = ()
    """Why nothing (more) was moved away from it."""
    not_given: tuple[Obstacle, ...] = ()
    in_flight: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def percent(usage: float) -> str:
    """`58.3 %`, formatted as in the plan's sentences."""
    return f"{usage * 100:.1f} %" if usage < 1 else f"{usage * 100:.0f} %"


def span(seconds: float) -> str:
    """A duration such as 12 s, 5 min, 3 h, 2 days."""
    for unit, length in ((" days", 86_400), (" h", 3_600), (" min", 60)):
        if seconds >= 2 * length or (unit == " min" and seconds >= 120):
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f} s"


def listed(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
