"""Turns a bundle's history into what is shown. Reads only; decides nothing but the words."""

from __future__ import annotations

from datetime import UTC, datetime

from loadmanager.channel.bundle_history import Entry, History
from loadmanager_api.schemas_history import HistoryEntryShown, HistoryShown, WinnerShown
from statechannel.law.bundle import Bundle
from statechannel.law.verdict import Ownership

MAX_BOUNDARIES = 1_000
"""The most boundaries that are shown: a namespace's creation may have 65,537."""


def history_shown(
    found: History, present: Ownership | None, next_page: str | None = None, since_ms: int | None = None
) -> HistoryShown:
    """The history since a time, and the present state of the bundle (None: it is gone)."""
    return HistoryShown(
        bundle=str(found.bundle),
        partition=found.partition,
        exists=present is not None,
        state=present.state.value if present is not None else None,
        entries=[entry_shown(entry) for entry in found.entries],
        next=next_page,
        log_begin=found.log_begin,
        log_begin_ms=found.log_begin_ms,
        note=_note(found, since_ms),
    )


def _note(found: History, since_ms: int | None) -> str | None:
    if found.older or not found.log_begin:
        return None
    if since_ms is not None and found.log_begin_ms is not None and found.log_begin_ms <= since_ms:
        return None  # nothing of the requested time
    when = f" of {_time(found.log_begin_ms)}" if found.log_begin_ms is not None else ""
    unjudged = f"; what lies below offset {found.begin} cannot be judged any more" * (found.begin > found.log_begin)
    return (
        f"older records were trimmed; the log of partition {found.partition} begins at offset "
        f"{found.log_begin}{when}{unjudged}"
    )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def entry_shown(entry: Entry) -> HistoryEntryShown:
    """One record."""
    winner = entry.winner
    return HistoryEntryShown(
        offset=entry.offset,
        appended_ms=entry.appended_ms,
        written_ms=entry.written_ms,
        record_id=entry.record_id,
        action=entry.action.value,
        actor=entry.actor,
        role=entry.role.value,
        epoch=entry.epoch,
        accepted=entry.accepted,
        before=entry.before.value if entry.before is not None else None,
        after=entry.after.value if entry.after is not None else None,
        owner=entry.owner,
        target=entry.target,
        to=entry.to,
        reason=entry.reason,
        cause=entry.cause,
        bundles=entry.bundles,
        boundaries=[f"0x{boundary:08x}" for boundary in entry.boundaries[:MAX_BOUNDARIES]],
        parents=_names(entry.parents),
        children=_names(entry.children),
        refused=entry.refused or None,
        detail=entry.detail,
        winner=WinnerShown(offset=winner.offset, action=winner.action.value, actor=winner.actor) if winner else None,
        copy_of=entry.copy_of,
    )


def _names(bundles: tuple[Bundle, ...]) -> list[str]:
    return [str(bundle) for bundle in bundles]
