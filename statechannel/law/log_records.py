"""Records about the log itself, judged on one partition: who leads in it, what brokers agree on, where it goes on.

Each function changes the partition, or says why the record does not count.
"""

from __future__ import annotations

from statechannel.law.agreement import Agreed
from statechannel.law.partition import Lead, Partition
from statechannel.law.record import Action, Record, Role
from statechannel.law.verdict import Reason, Refusal

PROVING = frozenset({Action.NOOP, Action.LEAD})
"""What gives a proof, or the right to act on those of others: none counts while an agreement is being replaced."""


def take_lead(part: Partition, record: Record) -> Refusal | None:
    """`lead`: the barrier of a greater epoch, by a leader of the coordination root that is agreed on."""
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
        return Refusal(Reason.NOT_ALLOWED, f"retire is for: admin; not for {record.actor} as {record.role}")
    part.retired = record.moved_to
    return None


def amend(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`amend`: what brokers agree on begins to be replaced."""
    if record.role is not Role.ADMIN:
        return Refusal(Reason.NOT_ALLOWED, f"amend is for: admin; not for {record.actor} as {record.role}")
    refusal = _check(part.agreed, record)
    if refusal is None:
        part.agreed = Agreed(part.agreed.agreement, record.agreement, offset)
    return refusal


def agree(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`agree`: what brokers agree on from here on, if nothing is yet; or what the last `amend` said."""
    refusal = _check(part.agreed, record)
    if refusal is not None:
        return refusal
    following = part.agreed.following
    if following is None and part.agreed.agreement is not None:
        return Refusal(Reason.DISAGREES, f"this is agreed already: {part.agreed.agreement}")
    if following is not None and following != record.agreement:
        return Refusal(Reason.DISAGREES, f"what is about to hold is: {following}")
    part.agreed = Agreed(record.agreement, None, offset)
    return None


def _check(agreed: Agreed, record: Record) -> Refusal | None:
    """What `amend` and `agree` have in common: they name an agreement, and their author saw the last word on it."""
    if record.agreement is None:
        return Refusal(Reason.MALFORMED, f"{record.action} names no agreement")
    return _saw_another(agreed, record) if record.seen_agreement != agreed.revision else None


def _saw_another(agreed: Agreed, record: Record) -> Refusal:
    detail = f"its author had seen what was agreed on at {record.seen_agreement}, it is as of {agreed.revision}"
    return Refusal(Reason.STALE, detail)
