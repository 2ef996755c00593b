"""What an explanation says: sentences for people with the numbers beside them. Values only; JSON as they are."""

from __future__ import annotations

import msgspec


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a bundle does not move: the rule, a sentence with the numbers, and what would lift it."""

    rule: str
    sentence: str
    lifted_by: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True):
    """A broker that a bundle might go to, with its fullest resource before and after as fractions.

    `rule` says why it may not, empty if it may. None instead of a usage: nothing is known of its load.
    """

    broker: str
    usage: float | None
    after: float | None
    rule: str = ""


class Change(msgspec.Struct, frozen=True):
    """A change after which the strategy was run again: what it is, and where the bundle would go then (empty: it would
    stay all the same). `tried` is false where nobody ran it, as the model is too large or gone."""

    change: str
    goes_to: str = ""
    tried: bool = True


class Event(msgspec.Struct, frozen=True):
    """Something that brought a bundle where it is, from the channel."""

    at_ms: int
    text: str
    cause: str = ""
    """The id of the decision behind it, empty if there is none."""
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """Of one resource: natural units, and the weighted part of the broker's capacity (None: without a capacity)."""

    resource: str
    load: float
    unit: str
    usage: float | None = None
    capacity: float | None = None
    foreign: float | None = None
    """Of a broker: what no reported bundle explains."""


class RoundSaid(msgspec.Struct, frozen=True):
    """The round that an explanation rests on."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    moves: int


class BundleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`explain BUNDLE`. `answer` is the whole in one sentence; what is not known is empty, and `notes` say why."""

    bundle: str
    at_ms: int
    answer: str
    state: str = ""
    owner: str = ""
    because: tuple[Event, ...] = ()
    """What brought it where it is, newest first."""
    round: RoundSaid | None = None
    obstacles: tuple[Obstacle, ...] = ()
    """Why it did not move; the first one decided. Empty if it did."""
    moved: str = ""
    """What the round did with it, if it moved it."""
    rest_left_s: float = 0.0
    loads: tuple[Load, ...] = ()
    targets: tuple[Target, ...] = ()
    """Where it might go, the best first."""
    next_best: Target | None = None
    changes: tuple[Change, ...] = ()
    """What would have to change for it to move."""
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """A reported bundle of a broker, hottest first: its part of the broker, and why it stays."""

    bundle: str
    usage: float
    rule: str
    sentence: str


class BrokerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`explain BROKER`."""

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
    """Moves of the round away from it."""
    given: tuple[str, ...] = ()
    not_taken: tuple[Obstacle, ...] = ()
    """Why nothing (more) was taken from it."""
    not_given: tuple[Obstacle, ...] = ()
    in_flight: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def percent(usage: float) -> str:
    """`58.3 %`, as the plan's own sentences have it."""
    return f"{usage * 100:.1f} %" if usage < 1 else f"{usage * 100:.0f} %"


def span(seconds: float) -> str:
    """12 s, 5 min, 3 h, 2 days."""
    for unit, length in ((" days", 86_400), (" h", 3_600), (" min", 60)):
        if seconds >= 2 * length or (unit == " min" and seconds >= 120):
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f} s"


def listed(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
