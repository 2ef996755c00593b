"""When a snapshot of a partition is due, which ones to keep, and how far its log may be trimmed. Pure.

The *base* is the snapshot at whose offset the trimmed log begins: from it, all of the log can be replayed. A few
snapshots between base and newest are kept too, so that the base can move on as time passes: else it would have to wait
until the newest is old enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

import msgspec

RECORD_BYTES = 160
"""Bytes of a record of one bundle. A larger record counts as several, since its replay takes as long as theirs."""

BUNDLES_WORTH_A_RECORD = 20
"""A snapshot waits for one record for so many bundles: to write it for fewer would cost more than their replay."""


class ScheduleSettings(msgspec.Struct, frozen=True):
    """A snapshot is due by the replay that it saves, or after `interval_s` if there was any entry.

    `records` bounds what a starting broker replays over all `partitions`, so each has an equal share of it; where a
    partition's bundles are worth more records (BUNDLES_WORTH_A_RECORD), these do.
    """

    records: int
    interval_s: float
    partitions: int = 1


class Progress(msgspec.Struct, frozen=True):
    """How far a partition and its snapshots have come.

    `covered`: the `next_offset` of the newest good snapshot, None if there is none. `since_s`: how long ago it was
    written; without one, how long this broker has owned the partition. `base_may_move`: the retention allows a later
    base than the oldest snapshot, which takes a new snapshot to write down. `log_bytes`: bytes of the entries after
    that snapshot, as far as this broker has read them. `bundles`: how many the snapshot holds.
    """

    next_offset: int
    covered: int | None
    since_s: float
    base_may_move: bool = False
    log_bytes: int = 0
    bundles: int = 0


def due(progress: Progress, settings: ScheduleSettings) -> str | None:
    """Why a snapshot is due now; None if none is."""
    entries = progress.next_offset - (progress.covered or 0)
    if entries < 0:
        return None  # our replica is behind the snapshot
    enough = max(1.0, settings.records / settings.partitions, progress.bundles / BUNDLES_WORTH_A_RECORD)
    if max(entries, progress.log_bytes / RECORD_BYTES) >= enough:
        return _counted(entries)
    if progress.since_s < settings.interval_s:
        return None
    if entries > 0:
        return f"{_counted(entries)} in {progress.since_s:.0f} s"
    return "the log may be trimmed further" if progress.base_may_move else None


def _counted(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


KEPT_AT_MOST = 10
"""Snapshots per partition, including the one about to be written."""

STEPS = 4
"""Into how many parts the snapshots in between cut the retention; the log may be longer than asked for by one part."""


class Covering(Protocol):
    """The facts of a snapshot that count here: it covers all below `next_offset`, and was written at `at_ms`."""

    @property
    def next_offset(self) -> int: ...
    @property
    def at_ms(self) -> int: ...


S = TypeVar("S", bound=Covering)


class Plan(msgspec.Struct, Generic[S], frozen=True):
    """`keep`: the present snapshots to keep, oldest first, besides one that is written now.

    `base`: the log may be trimmed to its offset once no older snapshot is listed; None: it may not be trimmed.
    """

    keep: tuple[S, ...]
    base: S | None


def plan(snapshots: Sequence[S], now_ms: int, retention_s: float, readers: Iterable[int]) -> Plan[S]:
    """What to keep of `snapshots` (good ones, oldest first), and the base among them.

    `readers` are the offsets from which registered readers still want to read. If nothing may be trimmed, the oldest
    snapshot stays.
    """
    if not snapshots:
        return Plan((), None)
    # a snapshot that covers more is not older, whatever its writer's clock said
    ages_ms = list(accumulate(_believed_ms(snapshots, now_ms), max))
    horizon_ms, reader = now_ms - round(retention_s * 1000), min(readers, default=None)
    bases = [
        index
        for index, snapshot in enumerate(snapshots)
        if ages_ms[index] <= horizon_ms and (reader is None or snapshot.next_offset <= reader)
    ]
    first = bases[-1] if bases else 0
    kept = _spaced(list(zip(ages_ms[first:], snapshots[first:], strict=True)), round(retention_s * 1000) // STEPS)
    return Plan(tuple(snapshot for _, snapshot in kept), snapshots[first] if bases else None)


def _believed_ms(snapshots: Sequence[Covering], now_ms: int) -> list[int]:
    """When each was written, with times in the future replaced by that of the next snapshot, or now.

    Such a time comes from a clock that ran ahead, and would keep the log from being trimmed until it has come.
    """
    believed_ms, later_ms = list[int](), now_ms
    for snapshot in reversed(snapshots):
        later_ms = snapshot.at_ms if snapshot.at_ms <= now_ms else later_ms
        believed_ms.append(later_ms)
    return believed_ms[::-1]


def _spaced(snapshots: list[tuple[int, S]], apart_ms: int) -> list[tuple[int, S]]:
    """The first, the last, and those in between at least `apart_ms` apart; drops the closest if they are too many."""
    kept = snapshots[:1]
    for candidate in snapshots[1:-1]:
        if candidate[0] - kept[-1][0] >= apart_ms:
            kept.append(candidate)
    if len(snapshots) > 1:
        kept.append(snapshots[-1])
    while len(kept) > KEPT_AT_MOST - 1:
        gaps_ms = [kept[i + 1][0] - kept[i - 1][0] for i in range(1, len(kept) - 1)]
        del kept[1 + gaps_ms.index(min(gaps_ms))]
    return kept
