"""Which brokers take part in which round, what they use and have; from reports and revocations. Pure.

A broker is present from its report on, and before that if it has bundles already, until the report is deleted or too
old, or until its bundles were revoked and it reported no more in that incarnation. It is draining from its first own
hand-over on, if it then gave away all bundles.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.history.replay.slices import Reports, Slice
from loadmanager.history.replay.walking import ITS_OWN, REVOKE, TRANSFER, UNLOAD
from loadmanager.model.cluster import DIMENSIONS, NOWHERE, Flags, Floats, Ints


class Presence(msgspec.Struct, frozen=True, eq=False):
    """T rounds, n brokers."""

    present: Flags
    """(T, n)"""
    used: Floats
    """(T, n, DIMENSIONS), natural units; 0 where a broker is not there."""
    capacity: Floats
    """(n, DIMENSIONS), of the first report; without any report, the mean of the others."""


def presence(data: Slice, ttl_us: int, owner: Ints) -> Presence:
    """The presence of all brokers. A report older than `ttl_us` no longer counts.

    `owner` (T, m) is who has each tile. Who has some before its first report is there, and only has not reported yet;
    so is, in the first round, who reports before the second.
    """
    shape = (data.frame.rounds, len(data.brokers))
    present, used = np.zeros(shape, np.bool_), np.zeros((*shape, DIMENSIONS))
    capacity = np.full((shape[1], DIMENSIONS), np.nan)
    for broker in range(shape[1]):
        rows = np.flatnonzero((data.reports.broker == broker) & ~data.reports.gone)
        if not len(rows):
            continue
        capacity[broker] = data.reports.capacity[rows[0]]
        last = np.searchsorted(data.reports.us[rows], data.frame.times, "right") - 1
        here = (last >= 0) & ~_is_gone(data, broker)
        here &= data.frame.times - data.reports.us[rows[last]] <= ttl_us
        silent = (owner == broker).any(axis=1)
        silent[0] |= data.reports.us[rows[0]] < data.frame.begin_us + data.frame.interval_us
        silent &= (last < 0) & ~_is_gone(data, broker)
        present[:, broker] = here | silent
        used[here, broker] = data.reports.used[rows[last[here]]]
    return Presence(present, used, _known(capacity))


def _known(capacity: Floats) -> Floats:
    silent = np.isnan(capacity[:, 0])
    if silent.any():
        capacity[silent] = capacity[~silent].mean(axis=0) if not silent.all() else [1.0, *[np.inf] * (DIMENSIONS - 1)]
    return capacity


def _is_gone(data: Slice, broker: int) -> Flags:
    """(T,): its report was deleted, or it was revoked, and it has not come back.

    At least one round long, except where it ended before the window.
    """
    times, reports = data.frame.times, data.reports
    gone = np.zeros(len(times), np.bool_)
    for begin, end in [*_withdrawn(reports, broker), *_revoked(data, broker)]:
        if end <= data.frame.begin_us:
            continue
        first = int(np.searchsorted(times, begin, "left"))
        gone[first : max(first + 1, int(np.searchsorted(times, end, "left")))] = True
    return gone


def _withdrawn(reports: Reports, broker: int) -> list[tuple[int, int]]:
    """Times (begin, end) without its report, after a deletion.

    A broker that stops deletes its report, and may still send one that it had measured before: a single report of the
    same incarnation does not bring it back.
    """
    mine = (reports.broker == broker) & ~reports.gone
    found: list[tuple[int, int]] = []
    for us in reports.us[(reports.broker == broker) & reports.gone].tolist():
        before, later = reports.incarnation[mine & (reports.us <= us)], mine & (reports.us > us)
        same = later & (reports.incarnation <= before.max(initial=-1))
        back = later & ~same if np.count_nonzero(same) == 1 else later
        found.append((us, _next(reports.us[back], us)))
    return found


def _revoked(data: Slice, broker: int) -> list[tuple[int, int]]:
    """Times (begin, end) of its deaths. A broker that goes on reporting in its incarnation only lost a bundle."""
    reports, moves = data.reports, data.ownerships
    taken = np.flatnonzero((moves.source == broker) & (moves.action == REVOKE))
    mine = (reports.broker == broker) & ~reports.gone
    found: dict[int, tuple[int, int]] = {}
    for row in taken.tolist():
        us, incarnation = int(moves.us[row]), int(moves.source_incarnation[row])
        later = mine & (reports.us > us)
        if incarnation not in found and not (later & (reports.incarnation <= incarnation)).any():
            found[incarnation] = us, _next(reports.us[later], us)
    return list(found.values())


def _next(times: Ints, us: int) -> int:
    later = times[times > us]
    return int(later.min()) if len(later) else np.iinfo(np.int64).max


def draining(data: Slice, owner: Ints, present: Flags) -> Flags:
    """(T, n): draining. `owner` (T, m) is who has each tile in each round."""
    found = np.zeros_like(present)
    moves, times = data.ownerships, data.frame.times
    given = (moves.role == ITS_OWN) & ((moves.action == TRANSFER) | (moves.action == UNLOAD))
    given &= (moves.source != NOWHERE) & (moves.us >= data.frame.begin_us)
    for broker in np.unique(moves.source[given]).tolist():
        first = int(np.searchsorted(times, moves.us[given & (moves.source == broker)].min(), "left"))
        held = (owner == broker).sum(axis=1)
        empty = (held == 0) | ~present[:, broker]
        ends = first + int(np.argmax(empty[first:])) if empty[first:].any() else None
        if ends is None:
            continue
        back = (held[ends:] > 0) | ~present[ends:, broker]
        last = ends + int(np.argmax(back)) if back.any() else len(times)
        found[first:last, broker] = True
    return found & present
