"""Decides what one session of a service may serve, and when it has surely stopped. Pure: all times come in.

The service serves a bundle from the moment it has loaded it until it obeys a `release` or an `abandon`, and only before
a deadline that `grant` gave it. It counts that deadline from before it asked, so never beyond ours. Two rules make sure
that it has stopped before this broker gives a bundle up:

* an order that was obeyed (`obeyed`) ends it at once;
* an order that may be lost is repeated in every grant (`abandon`). A service that reads such a grant obeys; one that
  does not read it has only the deadlines of earlier grants. So it has stopped when those are over (`vacant_at_s`).

Hooks may arrive late, twice and in any order: each has a sequence, and the service ignores lower ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from statechannel.law.bundle import Bundle

NOW_S = float("-inf")
"""Earlier than any time: there is nothing to wait for."""


class Grant(msgspec.Struct, frozen=True):
    """By partition the milliseconds to serve, from before the question; and orders to abandon, by their sequences."""

    valid_ms: Mapping[int, int]
    abandon: Mapping[Bundle, int]


class _Held(msgspec.Struct):
    """A bundle that the service may be serving, and the sequence of the newest hook that was sent for it."""

    partition: int
    sequence: int


class Leases:
    """One session. Times in seconds of the boot clock, which a pause of the machine never advances by itself."""

    def __init__(self) -> None:
        self._sequence = 0
        self._held: dict[Bundle, _Held] = {}
        self._ordered: dict[Bundle, float] = {}
        """Bundles that each grant says to abandon, with the time after which no known deadline lets them be served."""
        self._granted_s: dict[int, float] = {}
        """By partition the latest deadline that was granted."""

    def next(self) -> int:
        """A sequence for a hook that changes nothing here."""
        self._sequence += 1
        return self._sequence

    def acquiring(self, bundle: Bundle, partition: int) -> int:
        """The sequence of an `acquire`. From now on the service may be serving the bundle."""
        sequence = self.next()
        self._held[bundle] = _Held(partition, sequence)
        self._ordered.pop(bundle, None)
        return sequence

    def releasing(self, bundle: Bundle) -> int:
        """The sequence of a `release`, which takes its time: grants do not say to abandon the bundle."""
        sequence = self.next()
        if (held := self._held.get(bundle)) is not None:
            held.sequence = sequence
        return sequence

    def abandoning(self, bundle: Bundle) -> int:
        """The sequence of an `abandon`, which each grant repeats until it is obeyed.

        It is higher than that of every hook before it: an order under an old sequence would not be obeyed.
        """
        sequence = self.releasing(bundle)
        if (held := self._held.get(bundle)) is not None:
            self._ordered.setdefault(bundle, self._granted_s.get(held.partition, NOW_S))
        return sequence

    def obeyed(self, bundle: Bundle, sequence: int) -> None:
        """The service answered this `release` or `abandon`: it has stopped, unless it was told to acquire since."""
        held = self._held.get(bundle)
        if held is not None and held.sequence == sequence:
            del self._held[bundle]
            self._ordered.pop(bundle, None)

    def vacant_at_s(self, bundle: Bundle) -> float | None:
        """When the service has surely stopped serving the bundle; None: not before it obeys an order."""
        return self._ordered.get(bundle) if bundle in self._held else NOW_S

    def grant(self, until_s: Sequence[float], asked_s: float) -> Grant:
        """Answer a question that arrived at `asked_s`; by partition, proofs let the broker serve until `until_s`."""
        left_ms = {partition: int(1000 * max(until - asked_s, 0.0)) for partition, until in enumerate(until_s)}
        valid_ms = {partition: milliseconds for partition, milliseconds in left_ms.items() if milliseconds}
        for partition, milliseconds in valid_ms.items():
            deadline_s = asked_s + milliseconds / 1000
            self._granted_s[partition] = max(deadline_s, self._granted_s.get(partition, NOW_S))
        return Grant(valid_ms, {bundle: self._held[bundle].sequence for bundle in self._ordered})

    def held(self) -> frozenset[Bundle]:
        """The bundles that the service may be serving."""
        return frozenset(self._held)
