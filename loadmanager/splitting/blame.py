"""Who is to blame, of several bundles that went from one dying broker to the next together. Pure.

With `quarantine_deaths` in succession a bundle is condemned, unless others went the same way with it: then the one that
killed while it was being acquired, or sooner, is. If that does not tell them apart either, they are given out one after
another until it does, and after twice as many deaths the likeliest is condemned in any case. A death that one bundle
explains speaks against no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from statechannel.bundle import Bundle
from statechannel.record import Broker

APART_S = 5.0
"""At least so long between two suspects that cannot be told apart, so that the next death tells."""
LONGEST_APART_S = 60.0
"""Until the last of them is given out; if there are many, several go together."""
LIVED_LONGER_S = 2.0
JITTER_MS = 1_000


class Death(msgspec.Struct, frozen=True, gc=False):
    """A broker that died with the bundle: when, how long it had had it, and whether it was still acquiring it."""

    broker: Broker
    at_ms: int
    held_ms: int
    taking: bool


class Suspect(msgspec.Struct, frozen=True):
    """A bundle, and the brokers that died of it in succession, if they did die of it."""

    bundle: Bundle
    deaths: tuple[Death, ...]

    @property
    def last(self) -> Death:
        """The newest one; there is one always."""
        return self.deaths[-1]

    @property
    def suspicion(self) -> tuple[int, int, Bundle]:
        """Smaller is more suspicious: how often it was not being acquired, and how long it was held the last time."""
        return sum(not death.taking for death in self.deaths), self.last.held_ms, self.bundle

    def outweighs(self, other: Suspect) -> bool:
        """Whether this one is to blame for the deaths that they share, rather than the other one."""
        if len(self.deaths) != len(other.deaths):
            return len(self.deaths) > len(other.deaths)
        if self.suspicion[0] != other.suspicion[0]:
            return self.suspicion[0] < other.suspicion[0]
        there = {death.broker: death.held_ms for death in other.deaths}
        pairs = [(death.held_ms, there[death.broker]) for death in self.deaths if death.broker in there]
        never_later = all(own_ms <= its_ms + JITTER_MS for own_ms, its_ms in pairs)
        return never_later and any(its_ms >= 2 * own_ms + LIVED_LONGER_S * 1000 for own_ms, its_ms in pairs)

    def __str__(self) -> str:
        names = ", ".join(str(death.broker) for death in self.deaths)
        taking = sum(death.taking for death in self.deaths)
        how = f"{taking} of them while they acquired it" if taking else "all after they had acquired it"
        return f"{len(self.deaths)} brokers in succession died with it: {names} ({how})"


class Findings(msgspec.Struct, frozen=True):
    """Who is condemned, and how much later those that cannot be told apart are given out."""

    condemned: dict[Bundle, Suspect]
    apart_s: dict[Bundle, float]


NOTHING_FOUND = Findings({}, {})


def findings(suspects: Iterable[Suspect], least: int) -> Findings:
    """`suspects` are those with enough deaths, the most suspicious first."""
    groups: list[list[Suspect]] = []
    explained: dict[Broker, list[Suspect]] = {}
    for suspect in suspects:
        its_own = [death.broker for death in suspect.deaths if death.broker not in explained]
        if len(its_own) >= least:
            groups.append([suspect])
            explained |= dict.fromkeys(its_own, groups[-1])
        else:
            explained[next(d.broker for d in reversed(suspect.deaths) if d.broker in explained)].append(suspect)
    condemned: dict[Bundle, Suspect] = {}
    apart_s: dict[Bundle, float] = {}
    for first, *others in groups:
        alike = [other for other in others if not first.outweighs(other)]
        if not alike or len(first.deaths) >= 2 * least:
            condemned[first.bundle] = first
        else:
            apart_s |= _apart([first, *alike])
    return Findings(condemned, apart_s)


def _apart(alike: Sequence[Suspect]) -> dict[Bundle, float]:
    """How much later each is given out: the least suspicious first, and each has outlived what killed the last time
    before the next comes."""
    gap_s = max(APART_S, 2 * max(suspect.last.held_ms for suspect in alike) / 1000)
    turns = min(len(alike), 1 + max(1, int(LONGEST_APART_S / gap_s)))
    gap_s = min(gap_s, LONGEST_APART_S)
    return {suspect.bundle: gap_s * (place * turns // len(alike)) for place, suspect in enumerate(reversed(alike))}
