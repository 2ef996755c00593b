"""Balancing by the difference: move bundles from the fullest broker to the emptiest until they are close enough.

Each move takes the bundle that narrows the difference of the two most and doesn't turn it around, or if it does, then
to within the tolerance. Both brokers end up below what the fuller one was. So with constant loads the usages, sorted
from the fullest, fall lexicographically with each move: no arrangement comes twice, and moving ends. A broker that has
nothing to give holds nobody up: the next one is looked at. (Pulsar's TransferShedder takes small bundles first: many
disconnects for little load; and one broker without fresh data stops it for the whole cluster.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadmanager.balancing.model import BrokerState, BundleState, ClusterModel, Decision, Move, Refused
from loadmanager.load.usage import Usage
from loadmanager.settings import Settings
from statechannel.record import Broker

LEAST_GAIN = 0.01
"""A move must narrow the difference by a point of usage at least: it costs clients a hand-over."""

_DESTINATIONS = 3
"""A broker that must give tries this many of the emptiest; with all of them a large stuck cluster cost n squared."""


class _Step(msgspec.Struct, frozen=True):
    """One possible move with what it would lead to."""

    bundle: BundleState
    source: BrokerState
    destination: BrokerState
    source_after: Usage
    destination_after: Usage
    gain: float


class Difference:
    """See the module."""

    name = "difference"

    def decide(self, model: ClusterModel, settings: Settings) -> Decision:
        """Up to `balancing_moves_per_round` moves, each judged after those before it."""
        eligible, refused = _eligible(model.brokers)
        if len(eligible) < 2:
            return Decision((), f"nothing moved: {_too_few(eligible, refused)}", tuple(refused))
        bundles, resting = _movable(model.bundles, settings.bundle_rest_s)
        usages = {each.broker: each.usage for each in eligible if each.usage is not None}
        before = _spread(usages)
        moves: list[Move] = []
        stuck: dict[Broker, str] = {}
        while len(moves) < settings.balancing_moves_per_round:
            step = _next_step(eligible, usages, bundles, settings.balancing_tolerance, stuck)
            if step is None:
                break
            moves.append(_move(step, usages, settings.balancing_tolerance))
            usages[step.source.broker] = step.source_after
            usages[step.destination.broker] = step.destination_after
            bundles[step.source.broker].remove(step.bundle)
        refused += resting
        refused += [Refused(broker.name, "nothing to give", detail) for broker, detail in stuck.items()]
        after = _spread(usages)
        return Decision(
            tuple(moves), _why(moves, before, after, usages, stuck, settings), tuple(refused), before, after
        )


def _eligible(brokers: Iterable[BrokerState]) -> tuple[list[BrokerState], list[Refused]]:
    eligible: list[BrokerState] = []
    refused: list[Refused] = []
    for each in brokers:
        if each.draining:
            refused.append(Refused(each.broker.name, "draining", "it gives its bundles away by itself"))
        elif each.usage is None:
            refused.append(
                Refused(each.broker.name, "no fresh load data", "its report is missing, too old or another start's")
            )
        else:
            eligible.append(each)
    return eligible, refused


def _movable(bundles: Iterable[BundleState], rest_s: float) -> tuple[dict[Broker, list[BundleState]], list[Refused]]:
    movable: dict[Broker, list[BundleState]] = {}
    refused: list[Refused] = []
    for each in bundles:
        if each.in_flight:
            refused.append(Refused(str(each.bundle), "in flight", "it is being moved, split or revoked"))
        elif each.moved_s is not None and each.moved_s < rest_s:
            refused.append(
                Refused(str(each.bundle), "resting", f"moved {each.moved_s:.0f} s ago, rests for {rest_s:.0f} s")
            )
        else:
            movable.setdefault(each.owner, []).append(each)
    return movable, refused


def _next_step(
    brokers: Sequence[BrokerState],
    usages: dict[Broker, Usage],
    bundles: dict[Broker, list[BundleState]],
    tolerance: float,
    stuck: dict[Broker, str],
) -> _Step | None:
    """The best step of the fullest broker that has one; notes those that are too full but have none."""
    stuck.clear()
    by_usage = sorted(brokers, key=lambda each: (usages[each.broker].peak, each.broker))
    for source in reversed(by_usage):
        offered = bundles.get(source.broker, ())
        for destination in by_usage[:_DESTINATIONS]:
            if usages[source.broker].peak - usages[destination.broker].peak <= tolerance:
                break
            steps = [_step(each, source, destination, usages) for each in offered]
            good = [step for step in steps if _admissible(step, usages, tolerance)]
            if good:
                return max(good, key=lambda step: (step.gain, step.bundle.bundle))
            stuck.setdefault(source.broker, _why_stuck(source, offered, usages))
        if source.broker not in stuck:
            return None
    return None


def _step(bundle: BundleState, source: BrokerState, destination: BrokerState, usages: dict[Broker, Usage]) -> _Step:
    full, empty = usages[source.broker], usages[destination.broker]
    source_after = full.minus(bundle.usage)
    destination_after = empty.plus(bundle.usage.on(source.capacity, destination.capacity))
    gain = full.peak - empty.peak - abs(source_after.peak - destination_after.peak)
    return _Step(bundle, source, destination, source_after, destination_after, gain)


def _admissible(step: _Step, usages: dict[Broker, Usage], tolerance: float) -> bool:
    """It is worth it, both end below what the source was, it turns nothing around and leads to no former owner."""
    turned_by = step.destination_after.peak - step.source_after.peak
    return (
        step.gain >= LEAST_GAIN
        and max(step.source_after.peak, step.destination_after.peak) < usages[step.source.broker].peak
        and turned_by <= tolerance
        and step.destination.broker.name not in step.bundle.left
    )


def _why_stuck(source: BrokerState, offered: Sequence[BundleState], usages: dict[Broker, Usage]) -> str:
    usage = f"{usages[source.broker].peak:.0%} used"
    if not offered:
        return f"{usage}, but none of its reported bundles may move now"
    largest = max(each.usage.peak for each in offered)
    return (
        f"{usage}, but each of {len(offered)} bundles (up to {largest:.1%}) is too large, too small or came from there"
    )


def _move(step: _Step, usages: dict[Broker, Usage], tolerance: float) -> Move:
    source, destination = step.source.broker, step.destination.broker
    full, empty = usages[source].peak, usages[destination].peak
    after = abs(step.source_after.peak - step.destination_after.peak)
    narrowing = f"the difference falls from {_points(full - empty)} to {_points(after)} points"
    reason = (
        f"{source.name} {full:.0%} to {step.source_after.peak:.0%}, {destination.name} {empty:.0%} to "
        f"{step.destination_after.peak:.0%}: {narrowing} (tolerance {_points(tolerance)}) "
        f"by a bundle of {step.bundle.usage.peak:.1%} {step.bundle.usage.dominant}"
    )
    return Move(step.bundle.bundle, source, destination, reason, step.gain)


def _spread(usages: dict[Broker, Usage]) -> float:
    peaks = [usage.peak for usage in usages.values()]
    return max(peaks) - min(peaks)


def _points(fraction: float) -> str:
    return f"{100 * fraction:.0f}"


def _too_few(eligible: Sequence[BrokerState], refused: Sequence[Refused]) -> str:
    others = "; ".join(f"{each.subject}: {each.rule}" for each in refused)
    return f"{len(eligible)} broker(s) can take part, two are needed" + (f" ({others})" if others else "")


def _why(
    moves: Sequence[Move],
    before: float,
    after: float,
    usages: dict[Broker, Usage],
    stuck: dict[Broker, str],
    settings: Settings,
) -> str:
    tolerance = _points(settings.balancing_tolerance)
    if moves:
        spread = f"the spread falls from {_points(before)} to {_points(after)} points"
        return f"{len(moves)} move(s): {spread} (tolerance {tolerance})"
    full, empty = max(usages, key=lambda each: usages[each].peak), min(usages, key=lambda each: usages[each].peak)
    ends = f"{full.name} {usages[full].peak:.0%}, {empty.name} {usages[empty].peak:.0%}, {_points(before)} points apart"
    if not stuck:
        return f"nothing moved: balanced, {ends} (tolerance {tolerance})"
    reasons = "; ".join(f"{broker.name}: {detail}" for broker, detail in stuck.items())
    return f"nothing moved although {ends} (tolerance {tolerance}): {reasons}"
