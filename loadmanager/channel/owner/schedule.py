"""When a snapshot of a partition is due, and why. Pure: the caller gives the time."""

from __future__ import annotations

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
