"""Which brokers take part in which round, what they use and have; from reports and how long each is in force. Pure.

A broker is present while a report of it is in force (`in_force.sql`), and before its first one if it has bundles
already. It is draining from its first own hand-over on, if it then gave away all bundles.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.history.replay.slices import Slice
from loadmanager.history.replay.walking import ITS_OWN, TRANSFER, UNLOAD
from loadmanager.model.cluster import DIMENSIONS, NOWHERE, Flags, Floats, Ints


class Presence(msgspec.Struct, frozen=True, eq=False):
    """T rounds, n brokers."""

    present: Flags
    """(T, n)"""
    used: Floats
    """(T, n, DIMENSIONS), natural units; 0 where a broker is not there."""
    capacity: Floats
    """(n, DIMENSIONS), of the first report; without any report, the mean of the others."""


def presence(data: Slice, owner: Ints) -> Presence:
    """The presence of all brokers.

    `owner` (T, m) is who has each tile. Who has some before its first report is there, and only has not reported yet;
    so is, in the first round, who reports before the second.
    """
    shape = (data.frame.rounds, len(data.brokers))
    present, used = np.zeros(shape, np.bool_), np.zeros((*shape, DIMENSIONS))
    capacity = np.full((shape[1], DIMENSIONS), np.nan)
    for broker in range(shape[1]):
        rows = np.flatnonzero(data.reports.broker == broker)
        if not len(rows):
            continue
        capacity[broker] = data.reports.capacity[rows[0]]
        last = np.searchsorted(data.reports.us[rows], data.frame.times, "right") - 1
        here = (last >= 0) & ~_is_gone(data, rows)
        silent = (owner == broker).any(axis=1)
        silent[0] |= data.reports.us[rows[0]] < data.frame.begin_us + data.frame.interval_us
        silent &= last < 0
        present[:, broker] = here | silent
        used[here, broker] = data.reports.used[rows[last[here]]]
    return Presence(present, used, _known(capacity))


def _known(capacity: Floats) -> Floats:
    silent = np.isnan(capacity[:, 0])
    if silent.any():
        capacity[silent] = capacity[~silent].mean(axis=0) if not silent.all() else [1.0, *[np.inf] * (DIMENSIONS - 1)]
    return capacity


def _is_gone(data: Slice, rows: Ints) -> Flags:
    """(T,): no report of the broker, of these rows, was in force any more.

    At least one round long, except where it ended before the window.
    """
    times, gone = data.frame.times, np.zeros(data.frame.rounds, np.bool_)
    ends = data.reports.until_us[rows]
    nexts = np.append(data.reports.us[rows[1:]], np.iinfo(np.int64).max)
    apart = (ends < nexts) & (nexts > data.frame.begin_us)
    for end, following in zip(ends[apart].tolist(), nexts[apart].tolist(), strict=True):
        first = int(np.searchsorted(times, end, "left"))
        gone[first : max(first + 1, int(np.searchsorted(times, following, "left")))] = True
    return gone


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
