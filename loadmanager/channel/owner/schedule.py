"""When a snapshot of a partition is due, and why. Pure: the caller gives the time."""

from __future__ import annotations

import msgspec


class ScheduleSettings(msgspec.Struct, frozen=True):
    """A snapshot is due after `records` log entries, accepted or not, or after `interval_s` if there was any entry."""

    records: int
    interval_s: float


class Progress(msgspec.Struct, frozen=True):
    """How far a partition and its snapshots have come.

    `covered`: the `next_offset` of the newest good snapshot, None if there is none. `since_s`: how long ago it was
    written; without one, how long this broker has owned the partition. `base_may_move`: the retention allows a later
    base than the oldest snapshot, which takes a new snapshot to write down.
    """

    next_offset: int
    covered: int | None
    since_s: float
    base_may_move: bool = False


def due(progress: Progress, settings: ScheduleSettings) -> str | None:
    """Why a snapshot is due now; None if none is."""
    entries = progress.next_offset - (progress.covered or 0)
    if entries < 0:
        return None  # our replica is behind the snapshot
    if entries >= settings.records:
        return f"{entries} entries"
    if progress.since_s < settings.interval_s:
        return None
    if entries > 0:
        return f"{entries} entries in {progress.since_s:.0f} s"
    return "the log may be trimmed further" if progress.base_may_move else None
