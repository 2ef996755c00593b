"""Schemas of a bundle's history: what `GET …/history` answers."""

from __future__ import annotations

from pydantic import BaseModel


class WinnerShown(BaseModel):
    """The record that won: at this offset it changed the bundle, so that the refused record no longer fitted."""

    offset: int
    action: str
    actor: str


class HistoryEntryShown(BaseModel):
    """One record about a bundle. `appended_ms` is the log's clock, `written_ms` its author's.

    `before` and `after` are the bundle's states (null: no such bundle); `owner` and `target` are those after the
    record; `to` is the destination that it names. A refused record has a reason in `refused`, and changed nothing;
    `copy_of` is the offset of the accepted record that it copies.
    """

    offset: int
    appended_ms: int
    written_ms: int
    record_id: str
    action: str
    actor: str
    role: str
    epoch: int
    accepted: bool
    before: str | None
    after: str | None
    owner: str | None
    target: str | None
    to: str | None
    reason: str
    cause: str
    bundles: int
    boundaries: list[str]
    parents: list[str]
    children: list[str]
    refused: str | None
    detail: str
    winner: WinnerShown | None
    copy_of: int | None


class HistoryShown(BaseModel):
    """Records about a bundle, newest first. `next` is the `before` of the next page, or null; `note` says what was
    trimmed.
    """

    bundle: str
    partition: int
    exists: bool
    state: str | None
    entries: list[HistoryEntryShown]
    next: str | None
    log_begin: int
    log_begin_ms: int | None
    note: str | None
