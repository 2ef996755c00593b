"""One step of one bundle by the law of `transitions.py`: the row that fits, and the entry after it. Pure."""

from __future__ import annotations

from statechannel.law.record import Action, Record, Subject
from statechannel.law.transitions import Parties, Row, State, Then, relations, rows
from statechannel.law.verdict import Cutting, Ownership, Reason, Refusal

_HOLD_TO, _HOLD_TARGET, _AIM_TO = Then.HOLD_TO, Then.HOLD_TARGET, Then.AIM_TO
_KEEP_BOTH, _NOBODY, _SPLITTING = Then.KEEP_BOTH, Then.NOBODY, State.SPLITTING
"""Looked up once: an enumeration member costs as much as a call, and each step needs several."""


def find_row(entry: Ownership, record: Record) -> Row | Refusal:
    """The first row of the table that fits, or why none does."""
    candidates = rows(entry.state, record.action)
    if not candidates:
        return Refusal(Reason.ILLEGAL, f"{record.action} is not possible from {entry.state}", entry.bundle, entry)
    who = relations(record, entry.holder, entry.target)
    allowed = [row for row in candidates if not row.by.isdisjoint(who)]
    if not allowed:
        may = ", ".join(sorted({w.value for row in candidates for w in row.by}))
        detail = f"{record.action} from {entry.state} is only for {may}; {record.actor} acts as {record.role}"
        return Refusal(Reason.NOT_ALLOWED, detail, entry.bundle, entry)
    parties = Parties(entry.bundle, entry.holder, entry.target)
    for row in allowed:
        if row.guard is None or row.guard(parties, record):
            return row
    unmet = "; ".join((row.guard.__doc__ or "").strip() for row in allowed if row.guard is not None)
    reason = Reason.BAD_BOUNDARIES if record.action is Action.SPLIT else Reason.BAD_DESTINATION
    return Refusal(reason, f"{record.action} from {entry.state} needs: {unmet}", entry.bundle, entry)


def step(entry: Ownership, row: Row, offset: int, record: Record, subject: Subject) -> Ownership:
    """The bundle after a legal step."""
    holder, target, then = entry.holder, None, row.then
    if then is _HOLD_TO:
        holder = record.to
    elif then is _HOLD_TARGET:
        holder = entry.target
    elif then is _AIM_TO:
        target = record.to
    elif then is _KEEP_BOTH:
        target = entry.target
    elif then is _NOBODY:
        holder = None
    return Ownership(
        bundle=entry.bundle,
        state=row.next,
        holder=holder,
        target=target,
        revision=offset,
        token=offset if row.fences else entry.token,
        action=record.action,
        by=record.actor,
        hand_off=subject.hand_off if then is _HOLD_TARGET else None,
        cutting=Cutting(record.boundaries, record.algorithm, record.parts) if row.next is _SPLITTING else None,
    )
