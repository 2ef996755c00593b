"""Lists what a finished draft did not do: the best candidates with the rule that refused each; others counted by rule.

Candidates are bundles of the brokers that are still out of tolerance, else of the fullest one. Each is compared with
its best destination: the one that would be least full with it, rules ignored if they leave none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmanager.model.cluster import NOWHERE, Flags, Ints
from loadmanager.strategies.rebalancing.decision import CANDIDATES_KEPT, Candidate, Refused
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.eligibility import DRAINING, PAUSED, STATES, UNKNOWN, Refusal
from loadmanager.strategies.rebalancing.plan.judging import WITHIN_TOLERANCE, no_gain, refusal
from loadmanager.strategies.rebalancing.plan.objective import EPSILON

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
        why = _not_taken(draft, row)
    elif why is None:
        why = no_gain(draft, row, source, destination, after)
    ids, brokers = draft.model.bundles.ids, draft.model.brokers.ids
    return Candidate(ids[row], brokers[source], brokers[destination], gain, why.rule, why.detail)


def _not_taken(draft: Draft, row: int) -> Refusal:
    if draft.moves_left == 0:
        return Refusal(ROUND_FULL, f"{draft.settings.balancing_moves_per_round} moves are made in a round")
    if not draft.affords(float(draft.size[row])):
        return Refusal(ROUND_FULL, f"{draft.settings.balancing_budget:.0%} of the cluster's load move in a round")
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
