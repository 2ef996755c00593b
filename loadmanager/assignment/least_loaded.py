"""Placement on the least loaded eligible broker, counting what was just given.

Load reports are seconds old, and many lookups come at once: whoever trusts a report alone buries the coldest broker.
So each bundle that a broker got since its report counts as a mean one of that broker. Brokers within a margin of the
least loaded count as equal; among them the fewest bundles decide, and where counts are close a hash of bundle and
broker, on which all askers agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from loadmanager.assignment.model import Candidate, Given, NoPlace, Placed, RefusedCandidate
from loadmanager.load.model import share
from statechannel.bundle import Bundle
from statechannel.record import Broker

MARGIN = 0.10
"""Usages this close count as equal: less than that is noise of the measurement."""

BLUR = 1 / 32
"""Counts this close, relatively, are told apart by the bundle's hash as well: askers whose views are 30 records old
would otherwise all fill the same broker until they notice (3.4 % off even; so 1.9 %, 1,024 bundles on 3 brokers)."""

BUSY = 0.75
"""A broker whose bundles have no traffic is busy with something else (its start, lookups, a neighbour). Below this that
passes, and must not decide where bundles live for weeks; above, the broker is spared."""

_FULL = 1.0
_RANKS = 1 << 64


class LeastLoaded:
    """See the module."""

    name = "least-loaded"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        eligible, refused = _sift(candidates, given)
        willing = [each for each in eligible if each.broker != given.declined_by]
        if not willing and not eligible:
            return NoPlace(_no_place(refused), tuple(refused))
        willing = willing or eligible
        reported = [each for each in willing if each.usage is not None]
        mean = share(sum(map(_work, reported)), sum(each.reported_bundles for each in reported))
        expected = {each.broker: _expected_usage(each, given, mean) for each in willing}
        least = min((usage for usage in expected.values() if usage is not None), default=None)
        equal = [each for each in willing if _within_margin(expected[each.broker], least)]
        fewest = min(_count(each, given) for each in equal)
        chosen = _preferred(equal, given) or min(equal, key=lambda each: _order(bundle, each, given, fewest))
        return Placed(chosen.broker, _why(chosen, expected[chosen.broker], equal, willing, given), tuple(refused))


def _sift(candidates: Sequence[Candidate], given: Given) -> tuple[list[Candidate], list[RefusedCandidate]]:
    eligible: list[Candidate] = []
    refused: list[RefusedCandidate] = []
    for each in candidates:
        if each.draining:
            refused.append(RefusedCandidate(each.broker, "draining", "it gives its bundles away"))
        elif each.max_bundles is not None and _count(each, given) >= each.max_bundles:
            detail = f"{_count(each, given)} bundles of at most {each.max_bundles}"
            refused.append(RefusedCandidate(each.broker, "full", detail))
        else:
            eligible.append(each)
    return eligible, refused


def _count(candidate: Candidate, given: Given) -> int:
    return candidate.bundles + given.bundles.get(candidate.broker, 0)


def _expected_usage(candidate: Candidate, given: Given, mean: float) -> float | None:
    """Usage with what came since the report; at most a full broker: beyond that an estimate says nothing more."""
    if candidate.usage is None:
        return None
    usage = _own_usage(candidate)
    came = max(0, _count(candidate, given) - candidate.reported_bundles)
    per_bundle = share(_work(candidate), candidate.reported_bundles) if candidate.reported_bundles else mean
    return max(usage, min(_FULL, usage + came * per_bundle))


def _own_usage(candidate: Candidate) -> float:
    """The usage that counts: all of it, or none while the broker's bundles are idle and it is not busy otherwise."""
    usage = candidate.usage or 0.0
    return usage if candidate.traffic or usage >= BUSY else 0.0


def _work(candidate: Candidate) -> float:
    """The usage that its bundles cause: what exceeds the margin. A process without work uses some percent as well, and
    blamed on its first bundles they would make every further one look expensive."""
    return max(0.0, _own_usage(candidate) - MARGIN)


def _within_margin(usage: float | None, least: float | None) -> bool:
    return usage is None or least is None or usage <= least + MARGIN


def _preferred(equal: Sequence[Candidate], given: Given) -> Candidate | None:
    return next((each for each in equal if each.broker.name == given.preferred), None)


def _order(bundle: Bundle, candidate: Candidate, given: Given, fewest: int) -> tuple[float, int]:
    rank = rendezvous(bundle, candidate.broker)
    return _count(candidate, given) + fewest * BLUR * rank / _RANKS, rank


def rendezvous(bundle: Bundle, broker: Broker) -> int:
    """The rank of a broker for a bundle; the lowest wins. Depends on the broker's name, not on its incarnation."""
    return int.from_bytes(blake2b(f"{bundle}|{broker.name}".encode(), digest_size=8).digest(), "big")


def _no_place(refused: Sequence[RefusedCandidate]) -> str:
    if not refused:
        return "no broker is registered"
    return "no broker may take it: " + "; ".join(f"{each.broker.name}: {each.rule}, {each.detail}" for each in refused)


def _why(
    chosen: Candidate, usage: float | None, equal: Sequence[Candidate], willing: Sequence[Candidate], given: Given
) -> str:
    name, load = chosen.broker.name, "no fresh load data" if usage is None else f"expected usage {usage:.0%}"
    if chosen.broker == given.declined_by:
        return f"{name} declined it, but nobody else may take it"
    if chosen.broker.name == given.preferred:
        return f"{name} had it before and is among the least loaded ({load})"
    count = f"{_count(chosen, given)} bundles"
    return f"{name} has {count}, about the fewest of the {len(equal)} least loaded of {len(willing)} brokers ({load})"
