"""Judges records about the log itself in one partition: who leads, what brokers agree on, where the log goes on.

Each function changes the partition, or returns why the record does not count.
"""

from __future__ import annotations

from statechannel.law.agreement import Agreed
from statechannel.law.partition import Lead, Partition
from statechannel.law.record import Action, Record, Role
from statechannel.law.verdict import Reason, Refusal

PROVING = frozenset({Action.NOOP, Action.LEAD})
"""Actions that give a proof, or the right to revoke; none counts while an agreement is being replaced."""


def take_lead(part: Partition, record: Record) -> Refusal | None:
    """`lead`: a new epoch, above the present one, of a leader elected in the agreed coordination root."""
    if record.role is not Role.LEADER or record.epoch <= part.lead.epoch:
        return Refusal(Reason.DEPOSED, f"epoch {record.epoch} is not above {part.lead.epoch}")
    agreement = part.agreed.agreement
    if agreement is not None and record.seen_agreement != part.agreed.revision:
        return _saw_another(part.agreed, record)
    if agreement is not None and record.root != agreement.root:
        detail = f"{record.actor} was elected in coordination root {record.root or 'unknown'}"
        return Refusal(Reason.DISAGREES, f"{detail}, and the log belongs to root {agreement.root}")
    part.lead = Lead(record.epoch, record.actor)
    return None


def retire(part: Partition, record: Record) -> Refusal | None:
    """`retire`: the partition is closed for good."""
    if record.role is not Role.ADMIN:
        return Refusal(Reason.NOT_ALLOWED, f"retire is only for admin; {record.actor} acts as {record.role}")
    part.retired = record.moved_to
    return None


def amend(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`amend`: begins to replace the agreement."""
    if record.role is not Role.ADMIN:
        return Refusal(Reason.NOT_ALLOWED, f"amend is only for admin; {record.actor} acts as {record.role}")
    refusal = _check(part.agreed, record)
    if refusal is None:
        part.agreed = Agreed(part.agreed.agreement, record.agreement, offset)
    return refusal


def agree(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`agree`: puts an agreement in force, the first one or that of the last `amend`."""
    refusal = _check(part.agreed, record)
    if refusal is not None:
        return refusal
    following = part.agreed.following
    if following is None and part.agreed.agreement is not None:
        return Refusal(Reason.DISAGREES, f"this is agreed already: {part.agreed.agreement}")
    if following is not None and following != record.agreement:
        return Refusal(Reason.DISAGREES, f"another agreement is about to hold: {following}")
    part.agreed = Agreed(record.agreement, None, offset)
    return None


def _check(agreed: Agreed, record: Record) -> Refusal | None:
    """The checks of both `amend` and `agree`: they name an agreement, and their author saw the last change of it."""
    if record.agreement is None:
        return Refusal(Reason.MALFORMED, f"{record.action} names no agreement")
    return _saw_another(agreed, record) if record.seen_agreement != agreed.revision else None


def _saw_another(agreed: Agreed, record: Record) -> Refusal:
    detail = f"its author had seen the agreement of revision {record.seen_agreement}, now it is of {agreed.revision}"
    return Refusal(Reason.STALE, detail)
