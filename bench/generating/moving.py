"""How the moves of a day look in the channel, in decisions and in their moves: silver rows. Pure numpy and Arrow.

A transfer is four records: `transfer` by the leader, `ready` by the target, `release` by the holder, `return` by the
new holder; a failover three: `revoke` and `release` by the leader, `return`. Offsets grow with time in every partition,
with holes. Revisions and tokens are left null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from bench.generating.arrow import Batch, Ints, batch, dates, partition_of, picked, times
from bench.generating.loads import broker_cpu_percent, by_broker, loads, stage
from bench.generating.world import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    MINUTES_A_DAY,
    MOST_BUNDLES,
    Flags,
    World,
    incarnations,
    spells,
)

REVOKED_MS, RELEASED_MS, TAKEN_MS = 1000, 3100, 3110
"""Delays after a death: the leader's records, and the new owner's."""
FAILOVER_MS = TAKEN_MS
PREPARES_MS, RELEASES_MS, GAP_MS = 40, 6, 15
"""Delays of a transfer: until it is ready, then until the other two records. A bundle's number adds up to 7 ms."""
SETTINGS = '{"balancing_tolerance":"default"}'

NOBODY, OLD, NEW = -1, 0, 1


class Pattern(msgspec.Struct, frozen=True):
    """The records of a kind of move. There is one more state than records, each with holder and target."""

    actions: tuple[str, ...]
    states: tuple[str | None, ...]
    holders: tuple[int, ...]
    targets: tuple[int, ...]
    actors: tuple[int, ...]
    """NOBODY stands for the leader."""
    roles: tuple[str, ...]


TRANSFER = Pattern(
    ("transfer", "ready", "release", "return"),
    ("assigned", "transferring", "releasing", "assigning", "assigned"),
    (OLD, OLD, OLD, NEW, NEW),
    (NOBODY, NEW, NEW, NOBODY, NOBODY),
    (NOBODY, NEW, OLD, NEW),
    ("leader", "broker", "broker", "broker"),
)
FAILOVER = Pattern(
    ("revoke", "release", "return"),
    ("assigned", "revoking", "assigning", "assigned"),
    (OLD, OLD, NEW, NEW),
    (NOBODY,) * 4,
    (NOBODY, NOBODY, NEW),
    ("leader", "leader", "broker"),
)
BIRTH = Pattern(
    ("create-namespace", "own", "return"),
    (None, "unassigned", "assigning", "assigned"),
    (NOBODY, NOBODY, NEW, NEW),
    (NOBODY,) * 4,
    (NOBODY, NEW, NEW),
    ("admin", "broker", "broker"),
)
SHIFTS = 8
"""Room for so many records of a move in the offsets."""
LINES_AT_ONCE = 32
IN_BOTH = ("partition", "offset", "appended_at", "at", "id", "action", "actor", "role", "namespace", "cause", "day")
"""Columns that `channel` and `transition` have alike."""


class Moves(msgspec.Struct, frozen=True, eq=False):
    """(k,) each: what began in a day."""

    bundle: Ints
    at_ms: Ints
    owner: Ints
    before: Ints
    by_death: Flags

    def only(self, flags: Flags) -> Moves:
        return Moves(*(field[flags] for field in msgspec.structs.astuple(self)))


def moves(world: World, day: int) -> Moves:
    """The moves of a day; on the first day, the first assignments too."""
    begin_ms = world.begin_ms + day * DAY_MS
    held = spells(world, stage(world).scenario.home.astype(np.int64), begin_ms, begin_ms + DAY_MS)
    bundle = np.repeat(np.arange(len(held.begin)), held.begin.shape[1])
    flat = Moves(bundle, held.begin.ravel(), held.owner.ravel(), held.before.ravel(), held.by_death.ravel())
    return flat.only((flat.at_ms >= begin_ms) & (flat.at_ms < begin_ms + DAY_MS))


def transitions(world: World, day: int) -> Iterator[Batch]:
    """The rows of `transition`."""
    found = moves(world, day)
    born = found.before < 0
    kinds = ((BIRTH, born), (TRANSFER, ~born & ~found.by_death), (FAILOVER, ~born & found.by_death))
    for pattern, these in kinds:
        if these.any():
            yield _records(world, day, found.only(these), pattern)


def channel(world: World, day: int) -> Iterator[Batch]:
    """The rows of `channel`: the records of `transition`, and before them those of the day's leader, by partition."""
    offset = (day * DAY_MS + HOUR_MS) * (MOST_BUNDLES * SHIFTS) - 1
    at_ms = np.full(world.partitions, world.begin_ms + day * DAY_MS)
    leads: dict[str, Any] = {
        "partition": np.arange(world.partitions),
        "offset": offset,
        "appended_at": times(at_ms),
        "at": times(at_ms),
        "id": f"{offset:x}",
        "action": "lead",
        "actor": stage(world).brokers[world.leader(day)],
        "actor_incarnation": 1,
        "role": "leader",
        "epoch": day + 1,
        "day": dates(at_ms),
    }
    accepted = {"verdict": "accepted", "format": 1}
    yield batch("channel", world.partitions, leads | accepted)
    for rows in transitions(world, day):
        columns = {name: rows.column(name) for name in IN_BOTH}
        bundles = pa.ListArray.from_arrays(np.arange(rows.num_rows + 1), rows.column("bundle"))
        columns |= {"bundles": bundles, "to": rows.column("target"), "epoch": 0}
        yield batch("channel", rows.num_rows, columns | accepted)


def _records(world: World, day: int, found: Moves, pattern: Pattern) -> Batch:
    steps, count = len(pattern.actions), len(found.bundle)
    step, each = np.tile(np.arange(steps), count), np.repeat(np.arange(count), steps)
    bundle = found.bundle[each]
    at_ms = found.at_ms[each] + _delays(pattern, found.bundle)[each, step]
    names = stage(world).bundles
    namespaces = [name.rpartition("/")[0] for name in names]
    offset = ((at_ms - world.begin_ms + HOUR_MS) * MOST_BUNDLES + bundle) * SHIFTS + step
    minute = (found.at_ms[each] - world.begin_ms) // MINUTE_MS
    decided = pattern is TRANSFER
    columns: dict[str, Any] = {
        "partition": partition_of(namespaces, world.partitions)[bundle],
        "offset": offset,
        "appended_at": times(at_ms),
        "ordinal": 0,
        "at": times(at_ms - 1),
        "id": [f"{number:x}" for number in offset.tolist()],
        "action": picked(pattern.actions, step),
        "bundle": picked(names, bundle),
        "namespace": picked(namespaces, bundle),
        "state_before": picked(pattern.states[:-1], step),
        "state": picked(pattern.states[1:], step),
        "role": picked(pattern.roles, step),
        "cause": [world.decision(number) for number in minute.tolist()] if decided else "",
        "day": dates(at_ms),
    }
    parties = _Parties(world, found, world.leader(day))
    for name, codes in (
        ("holder_before", pattern.holders[:-1]),
        ("holder", pattern.holders[1:]),
        ("target", pattern.targets[1:]),
    ):
        columns |= parties.columns(name, np.array(codes)[step], each)
    columns["actor"] = parties.actors(np.array(pattern.actors)[step], each)
    return batch("transition", len(at_ms), columns)


class _Parties:
    """Old and new holder of each move, with their incarnations at that time."""

    def __init__(self, world: World, found: Moves, leader: int) -> None:
        self._names = stage(world).brokers
        self._leader = leader
        self._rows = np.column_stack([found.before, found.owner])
        lines = np.arange(len(found.bundle))
        self._numbers = np.column_stack(
            [
                incarnations(world, found.at_ms - 1)[lines, np.maximum(0, found.before)],
                incarnations(world, found.at_ms)[lines, found.owner],
            ]
        )

    def columns(self, name: str, code: Ints, each: Ints) -> dict[str, Any]:
        """`name` and `name_incarnation`; null for NOBODY."""
        some = np.maximum(0, code)
        number = pa.array(self._numbers[each, some], mask=code == NOBODY)
        return {
            name: picked(self._names, np.where(code == NOBODY, -1, self._rows[each, some])),
            f"{name}_incarnation": number,
        }

    def actors(self, code: Ints, each: Ints) -> Any:
        """Who wrote it; the leader for NOBODY."""
        return picked(self._names, np.where(code == NOBODY, self._leader, self._rows[each, np.maximum(0, code)]))


def _delays(pattern: Pattern, bundle: Ints) -> Ints:
    """(k, steps): delay of each record in ms after the move's moment (when the old holder stops serving)."""
    extra = bundle % 8
    if pattern is TRANSFER:
        nothing = np.zeros_like(bundle)
        return np.column_stack([nothing - PREPARES_MS, nothing, RELEASES_MS + extra // 2, GAP_MS + extra])
    if pattern is FAILOVER:
        return np.column_stack([REVOKED_MS + extra, RELEASED_MS + extra, TAKEN_MS + extra])
    return np.column_stack([0 * bundle, 1 + 0 * bundle, 2 + extra])


def promised(world: World, day: int) -> Iterator[Batch]:
    """The rows of `move`: what the leader decided on a day; the gain is the load that goes, in cores."""
    found = moves(world, day)
    found = found.only((found.before >= 0) & ~found.by_death)
    if not len(found.bundle):
        return
    order = np.lexsort((found.bundle, found.at_ms))
    found = Moves(*(field[order] for field in msgspec.structs.astuple(found)))
    at = stage(world)
    minute = (found.at_ms - world.begin_ms) // MINUTE_MS
    _, first = np.unique(minute, return_index=True)
    begins = np.zeros(len(minute), np.int64)
    begins[first] = first
    ordinal = np.arange(len(minute)) - np.maximum.accumulate(begins)
    moment = world.begin_ms + minute * MINUTE_MS
    columns = {
        "partition": 0,
        "offset": minute,
        "appended_at": times(moment),
        "decision": [world.decision(number) for number in minute.tolist()],
        "ordinal": ordinal,
        "at": times(moment),
        "bundle": picked(at.bundles, found.bundle),
        "source": picked(at.brokers, found.before),
        "destination": picked(at.brokers, found.owner),
        "stage": "balance",
        "reason": "its stay is over",
        "gain": at.scenario.activity[minute % MINUTES_A_DAY, found.bundle],
        "outcome": "begun",
        "detail": "",
        "day": dates(moment),
    }
    yield batch("move", len(minute), columns)


def decisions(world: World, day: int) -> Iterator[Batch]:
    """The rows of `decision`: one for each minute of a day with moves, with the spreads before and after them."""
    found = moves(world, day)
    found = found.only((found.before >= 0) & ~found.by_death)
    minutes, counts = np.unique((found.at_ms - world.begin_ms) // MINUTE_MS, return_counts=True)
    if not len(minutes):
        return
    moment = world.begin_ms + minutes * MINUTE_MS
    begin_ms = world.begin_ms + day * DAY_MS
    held = spells(world, stage(world).scenario.home.astype(np.int64), begin_ms, begin_ms + DAY_MS)
    columns = {
        "partition": 0,
        "offset": minutes,
        "appended_at": times(moment),
        "id": [world.decision(minute) for minute in minutes.tolist()],
        "epoch": minutes // MINUTES_A_DAY + 1,
        "round": minutes % MINUTES_A_DAY + 1,
        "at": times(moment),
        "leader": stage(world).brokers[world.leader(day)],
        "strategy": "generated",
        "reason": "stays are over",
        "moves": counts,
        "begun": counts,
        "spread_before": _spread(world, minutes, held.owners(moment)),
        "spread_after": _spread(world, minutes, held.owners(moment + MINUTE_MS)),
        "settings": SETTINGS,
        "digest": "",
        "has_model": False,
        "policies_revision": -1,
        "day": dates(moment),
    }
    yield batch("decision", len(minutes), columns)


def _spread(world: World, minutes: Ints, owners: Ints) -> Any:
    """max/mean - 1 of the brokers' CPU in these minutes, with these owners."""
    found = np.empty(len(minutes))
    for line in range(0, len(minutes), LINES_AT_ONCE):
        here = slice(line, line + LINES_AT_ONCE)
        cpu = by_broker(world, loads(world, minutes[here], owners[here]).cpu_percent, owners[here])
        usage = broker_cpu_percent(world, minutes[here], cpu)
        found[here] = usage.max(axis=1) / usage.mean(axis=1) - 1
    return found
