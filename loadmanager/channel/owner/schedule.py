"""When a snapshot of a partition is due, and why. Pure: the caller gives the time."""

from __future__ import annotations

import msgspec


class ScheduleSettings(msgspec.Struct, frozen=True):
    """A snapshot after so many log entries, accepted or not, or after so long if there was any entry."""

    records: int
    interval_s: float


class Progress(msgspec.Struct, frozen=True):
    """How far a partition and its snapshots have come.

    `covered`: the offset up to which the newest good snapshot goes, None if there is none; `since_s`: how long ago it
    was written, or without one, since when this broker owns the partition. `base_may_move`: the retention would let go
    of log before another snapshot than the oldest, which is only written down with a new one.
    """

    next_offset: int
    covered: int | None
    since_s: float
    base_may_move: bool = False


def due(progress: Progress, settings: ScheduleSettings) -> str | None:
    """Why a snapshot is due now; None if none is."""
    entries = progress.next_offset - (progress.covered or 0)
    if entries < 0:
        return None  # our replica has not read as far as the snapshot goes
    if entries >= settings.records:
        return f"{entries} entries"
    if progress.since_s < settings.interval_s:
        return None
    if entries > 0:
        return f"{entries} entries in {progress.since_s:.0f} s"
    return "the log may be trimmed further" if progress.base_may_move else None
