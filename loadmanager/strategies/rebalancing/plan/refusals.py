"""Why a bundle stays: the rule with its numbers for every destination, and what would have to change. Pure.

For `explain`, one bundle is judged alone by the plan's filters and objective on the present model. If the plan moves
another bundle of the same broker because that fits better, the plan's decision says so. For a decision, the best
candidates that a finished draft did not move are listed with the rule that refused each. Others are counted by rule.
Candidates are bundles of the brokers that are still out of tolerance, else of the fullest one. Each is compared with
its best destination: the one that would be least full with it, rules ignored if they leave none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, NOWHERE, Flags, Ints
from loadmanager.strategies.rebalancing.decision import CANDIDATES_KEPT, Candidate, Refused, percent
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft
from loadmanager.strategies.rebalancing.plan.eligibility import (
    BUNDLE_LIMIT,
    DRAINING,
    ITS_OWN,
    PAUSED,
    RESTING,
    SPREAD,
    STATES,
    UNKNOWN,
    Refusal,
)
from loadmanager.strategies.rebalancing.plan.scale import EPSILON
from statechannel.law.record import BrokerId

WITHIN_TOLERANCE = "owner within tolerance"
NO_ROOM = "no room"
NO_GAIN = "nothing gained"
_FARTHEST = 4.0
_ALTERNATIVES = 3


class Verdict(msgspec.Struct, frozen=True):
    """One destination for the bundle."""

    destination: BrokerId
    allowed: bool
    """No rule forbids it, and the objective falls: the plan may do this."""
    rule: str
    """The rule that refuses it; empty if allowed."""
    detail: str
    gain: float
    """By how much the objective falls, rules ignored; not above 0: nothing is gained."""
    usage_after: float
    """The usage of the destination's fullest resource, as a fraction."""


class Judgement(msgspec.Struct, frozen=True):
    """The judgement of a bundle against every other broker."""

    rule: str
    """The rule that keeps the bundle in place; empty if there is none."""
    destinations: tuple[Verdict, ...]
    """The allowed destinations by gain, then the others by the usage they would have."""
    best: Verdict | None
    """The best allowed destination; None without one, or if the bundle is kept."""
    changes: tuple[str, ...]
    """What would have to change for the bundle to move; empty if it may move."""


def judge(draft: Draft, row: int) -> Judgement:
    """Judge the bundle in this row of the draft's model."""
    source = int(draft.model.bundles.owner[row])
    kept = draft.eligibility.keeps(row)
    verdicts = () if source == NOWHERE else _verdicts(draft, row, source)
    best = verdicts[0] if verdicts and verdicts[0].allowed and kept is None else None
    changes = () if best is not None else tuple(_changes(draft, row, source, kept, verdicts))
    return Judgement("" if kept is None else kept.rule, verdicts, best, changes)


def refusal(draft: Draft, row: int, source: int, destination: int) -> Refusal | None:
    """The rule that forbids this destination, loads ignored; None if it is allowed."""
    hard = draft.eligibility.rejects(row, destination)
    if hard is not None:
        return hard
    name = draft.model.brokers.ids[destination].name
    limit = int(draft.model.brokers.max_bundles[destination])
    if draft.bundles[destination] >= limit:
        return Refusal(BUNDLE_LIMIT, f"{name} holds {int(draft.bundles[destination])} bundles of {limit}")
    if draft.model.constraints.group[row] != FREE and draft.affinity.refused(row, source)[destination]:
        in_domain, on_broker = draft.affinity.others(row)
        counts = f"{on_broker[destination]} on it, {in_domain[destination]} in its domain"
        group = draft.model.constraints.groups[int(draft.model.constraints.group[row])]
        return Refusal(SPREAD, f"more namespaces of group {group!r} are at {name}: {counts}")
    return None


def no_gain(draft: Draft, row: int, source: int, destination: int, after: float) -> Refusal:
    """Why a move gains nothing that no rule forbids."""
    name, owner = draft.model.brokers.ids[destination].name, draft.model.brokers.ids[source].name
    usage, limit = float(draft.peak[source]), float(draft.scale.limit[source])
    if not draft.over(source):
        return Refusal(WITHIN_TOLERANCE, f"{owner} uses {percent(usage)}, its limit is {percent(limit)}")
    ceiling = float(draft.scale.limit[destination])
    if after > ceiling:
        return Refusal(NO_ROOM, f"{name} would use {percent(after)}, its limit is {percent(ceiling)}")
    costs = draft.cost_of(row, destination)
    return Refusal(
        NO_GAIN, f"moving {percent(float(draft.size[row]))} of a broker costs {costs:.4f}, more than it helps"
    )


def _verdicts(draft: Draft, row: int, source: int) -> tuple[Verdict, ...]:
    after = draft.peaks_with(row).tolist()
    must_go = draft.eligibility.drained[row] or draft.eligibility.misplaced[row]
    verdicts: list[Verdict] = []
    for destination, broker in enumerate(draft.model.brokers.ids):
        if destination == source:
            continue
        refused = refusal(draft, row, source, destination)
        gain = draft.gain(row, source, destination)
        if refused is None and gain <= EPSILON:
            refused = no_gain(draft, row, source, destination, after[destination])
        if refused is None and after[destination] > FULL and not must_go:
            refused = Refusal(NO_ROOM, f"{broker.name} would use {percent(after[destination])}")
        rule, detail = ("", "") if refused is None else (refused.rule, refused.detail)
        verdicts.append(Verdict(broker, refused is None, rule, detail, gain, after[destination]))
    return tuple(sorted(verdicts, key=lambda v: (not v.allowed, -v.gain if v.allowed else 0.0, v.usage_after)))


def _changes(draft: Draft, row: int, source: int, kept: Refusal | None, verdicts: tuple[Verdict, ...]) -> list[str]:
    """The conditions for a move, one line each; all of them must hold."""
    if source == NOWHERE:
        return ["it needs an owner first: look it up, or assign it"]
    lines = [] if kept is None else [f"{kept.rule}: {kept.detail}"]
    lines += _if_the_owner_were_fuller(draft, row, source, verdicts)
    for verdict in verdicts:
        if len(lines) > _ALTERNATIVES:
            break
        hard = verdict.rule not in ("", WITHIN_TOLERANCE, NO_ROOM, NO_GAIN, ITS_OWN)
        if hard and verdict.gain > EPSILON:
            lines.append(
                f"{verdict.detail}; without that it would go to {verdict.destination.name}, "
                f"which would use {percent(verdict.usage_after)}"
            )
    return lines


def _if_the_owner_were_fuller(draft: Draft, row: int, source: int, verdicts: tuple[Verdict, ...]) -> list[str]:
    """The usage of its owner above which the bundle would go to its best allowed destination."""
    best = next((v for v in verdicts if v.rule in ("", WITHIN_TOLERANCE, NO_ROOM, NO_GAIN)), None)
    if best is None:
        return ["no broker is left that its rules allow"]
    if best.allowed or not draft.scale.takes_part[source]:
        return []
    destination = draft.model.brokers.rows[best.destination]
    extra = _extra_usage(draft, row, source, destination)
    if extra is None:
        return [f"{best.destination.name} would have to be emptier: {best.detail}"]
    usage = float(draft.peak[source])
    return [
        f"it would go to {best.destination.name} if {draft.model.brokers.ids[source].name} used more than "
        f"{percent(usage + extra)} (uses {percent(usage)})"
    ]


def _extra_usage(draft: Draft, row: int, source: int, destination: int) -> float | None:
    """How much more usage its owner needs for the move to gain something; None if no usage suffices."""
    before, without = float(draft.peak[source]), draft.peak_without(source, row)
    count, usage = int(draft.bundles[source]), draft.costs.usage
    rest = draft.gain(row, source, destination) - (usage(source, before, count) - usage(source, without, count - 1))

    def gain(extra: float) -> float:
        return rest + usage(source, before + extra, count) - usage(source, without + extra, count - 1)

    if gain(_FARTHEST) <= EPSILON:
        return None
    low, high = 0.0, _FARTHEST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > EPSILON else (middle, high)
    return high


LOOKED_AT = 40
NOT_NEEDED = "not needed"
NO_PLACE = "no place"
"""A rule or a drain sends the bundle away, and no broker may take it."""
ROUND_FULL = "budget of the round"


def refused_brokers(draft: Draft) -> tuple[Refused, ...]:
    """The brokers that take no part."""
    brokers = draft.model.brokers
    columns = ((PAUSED, brokers.paused), (DRAINING, brokers.draining), (UNKNOWN, ~brokers.known))
    rows = np.flatnonzero(~draft.scale.takes_part).tolist()
    rules = [next(rule for rule, column in columns if column[row]) for row in rows]
    return tuple(
        Refused(str(brokers.ids[row]), rule, f"{brokers.bundles[row]} bundles")
        for row, rule in zip(rows, rules, strict=True)
    )


def candidates_of(draft: Draft) -> tuple[tuple[Candidate, ...], Mapping[str, int]]:
    """The best candidates that were not moved, and how many other bundles each rule kept."""
    focus = _focus(draft)
    looked_at = _looked_at(draft, focus)
    candidates = [each for row in looked_at.tolist() if (each := _candidate(draft, row)) is not None]
    candidates.sort(key=lambda each: -each.gain)
    kept = tuple(candidates[:CANDIDATES_KEPT])
    counts: dict[str, int] = {}
    for each in candidates[CANDIDATES_KEPT:]:
        counts[each.rule] = counts.get(each.rule, 0) + 1
    for rule, count in _others(draft, focus, looked_at):
        counts[rule] = counts.get(rule, 0) + count
    return kept, {rule: count for rule, count in counts.items() if count}


def _focus(draft: Draft) -> Flags:
    """The brokers whose bundles are candidates."""
    chosen = np.zeros(len(draft.peak), np.bool_)
    hot = draft.hot()
    if not hot and draft.scale.takes_part.any():
        hot = [int(np.where(draft.scale.takes_part, draft.peak, -1.0).argmax())]
    chosen[hot] = True
    return chosen


def _looked_at(draft: Draft, focus: Flags) -> Ints:
    rows = [draft.all_holdings.of(broker) for broker in np.flatnonzero(focus).tolist()]
    mine = draft.untaken(np.concatenate(rows) if rows else np.zeros(0, np.int64))
    if len(mine) > LOOKED_AT:
        mine = mine[np.argpartition(-draft.size[mine], LOOKED_AT)[:LOOKED_AT]]
    return mine[np.lexsort((mine, -draft.size[mine]))]


def _candidate(draft: Draft, row: int) -> Candidate | None:
    source = int(draft.model.bundles.owner[row])
    destination, after = draft.destination(row, source)
    if destination == NOWHERE:
        nearest = draft.coldest(source, 1) or [other for other in range(len(draft.peak)) if other != source][:1]
        if not nearest:
            return None
        destination, after = nearest[0], float(draft.peaks_with(row)[nearest[0]])
    gain = draft.gain(row, source, destination)
    why = draft.eligibility.keeps(row) or refusal(draft, row, source, destination)
    if why is None and gain > EPSILON:
        why = _not_taken(draft, row, source, destination)
    elif why is None:
        why = no_gain(draft, row, source, destination, after)
    ids, brokers = draft.model.bundles.ids, draft.model.brokers.ids
    return Candidate(ids[row], brokers[source], brokers[destination], gain, why.rule, why.detail)


def _not_taken(draft: Draft, row: int, source: int, destination: int) -> Refusal:
    if draft.moves_left == 0:
        return Refusal(ROUND_FULL, f"{draft.settings.balancing_moves_per_round} moves are made in a round")
    if not draft.affords(float(draft.size[row])):
        return Refusal(ROUND_FULL, f"{draft.settings.balancing_budget:.0%} of the cluster's load move in a round")
    size, relief = float(draft.size[row]), draft.relief(row, source, destination)
    if not draft.worth(source, size, relief):
        name, relieved = draft.model.brokers.ids[source].name, percent(max(0.0, relief))
        return Refusal(RESTING, f"moving {percent(size)} of a broker relieves {relieved}, and others of {name} rest")
    return Refusal(NOT_NEEDED, "other moves serve better")


def _others(draft: Draft, focus: Flags, looked_at: Ints) -> list[tuple[str, int]]:
    """Rules and counts of the bundles that were not examined one by one."""
    state = draft.eligibility.state
    rest = np.ones(len(state), np.bool_)
    rest[looked_at] = False
    rest &= ~draft.taken
    leaving = rest & (draft.eligibility.misplaced | draft.eligibility.drained)
    rest &= ~leaving
    counts = np.bincount(state[rest], minlength=len(STATES)).tolist()
    free = rest & (state == len(STATES) - 1)
    on_focus = int(np.count_nonzero(free & focus[draft.model.bundles.owner])) if draft.hot() else 0
    return [
        *zip(STATES[:-1], counts[:-1], strict=True),
        (NOT_NEEDED, on_focus),
        (WITHIN_TOLERANCE, counts[-1] - on_focus),
        (NO_PLACE if draft.moves_left else ROUND_FULL, int(np.count_nonzero(leaving))),
    ]
