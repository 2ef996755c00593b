"""Which moves of a running plan may begin: all of a group, or none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadmanager.leader.plans.model import MoveStatus, Plan
from loadmanager.leader.plans.table import Facts
from loadmanager.leader.rebalancing.limits import HeldBack, Rule
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.law.bundle import Bundle


class Blocking(msgspec.Struct, frozen=True):
    """Moves that would be made without the rest of their group: failed for good, or held back for now."""

    refused: Mapping[Bundle, str]
    held: Sequence[HeldBack]


def whole_groups(plan: Plan, facts: Facts, moves: Sequence[Move]) -> tuple[list[Move], Blocking]:
    """Split the moves that could begin now into those whose group is complete, and the others.

    A group that has begun continues even if it is incomplete: nobody wants half of it.
    """
    ready = {move.bundle for move in moves}
    missing: dict[int, tuple[Bundle, str]] = {}
    waits: dict[int, Bundle] = {}
    begun: set[int] = set()
    for move, outcome in plan.pairs(facts.outcomes):
        match outcome.status:
            case MoveStatus.SKIPPED | MoveStatus.FAILED:
                missing.setdefault(move.group, (move.bundle, outcome.detail))
            case MoveStatus.WAITING if move.bundle not in ready:
                waits.setdefault(move.group, move.bundle)
            case MoveStatus.DONE | MoveStatus.UNDER_WAY:
                begun.add(move.group)
            case _:
                pass
    whole: list[Move] = []
    refused: dict[Bundle, str] = {}
    held: list[HeldBack] = []
    for move in moves:
        group = move.group
        if not group or group in begun or group not in missing.keys() | waits.keys():
            whole.append(move)
        elif group in missing:
            refused[move.bundle] = "only together with {}, which does not move: {}".format(*missing[group])
        else:
            held.append(HeldBack(move, Rule.GROUP, f"only together with {waits[group]}, which is held back"))
    return whole, Blocking(refused, held)
