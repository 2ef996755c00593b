"""What brokers agree on, as the log says it: the first word, its replacement, and what does not count meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from statechannel.law.agreement import NEVER_AGREED, Agreed, Agreement, differences
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.verdict import Change, Reason, Refusal

ONE = Agreement("root-1", 2.0, 0.05, 0.1, 1)
OTHER = msgspec.structs.replace(ONE, root="root-2", proof_validity_s=5.0)
A = BrokerId("a:1", 1)


def agree(ledger, agreement: Agreement | None = ONE, *, seen=None, action=Action.AGREE, role=Role.BROKER):
    known = ledger.table.agreed(0).revision
    number = f"r{len(ledger.log)}"
    return ledger.replay(
        Record(number, action, A, role, agreement=agreement, seen_agreement=known if seen is None else seen), 0
    )


def amend(ledger, agreement: Agreement | None = OTHER, **more):
    return agree(ledger, agreement, **{"action": Action.AMEND, "role": Role.ADMIN, **more})


def lead(ledger, epoch: int, root: str, *, seen=None):
    known = ledger.table.agreed(0).revision if seen is None else seen
    number = f"r{len(ledger.log)}"
    return ledger.replay(Record(number, Action.LEAD, A, Role.LEADER, epoch, root=root, seen_agreement=known), 0)


def refused(verdict: Change | Refusal, reason: Reason) -> str:
    assert isinstance(verdict, Refusal)
    assert verdict.reason is reason
    return verdict.detail


def test_the_first_word_counts_and_a_second_one_is_told_what_it_was(ledger):
    assert ledger.table.agreed(0) == Agreed(None, None, NEVER_AGREED)
    assert isinstance(agree(ledger), Change)
    assert ledger.table.agreed(0) == Agreed(ONE, None, 0)
    assert "root-1" in refused(agree(ledger, OTHER), Reason.DISAGREES)
    refused(agree(ledger, OTHER, seen=NEVER_AGREED), Reason.STALE)
    assert ledger.table.agreed(0) == Agreed(ONE, None, 0)


def test_a_leader_of_another_root_is_refused_and_told_both(ledger):
    assert isinstance(lead(ledger, 1, ""), Change), "a log without a word obeys everybody, as before"
    agree(ledger)
    detail = refused(lead(ledger, 2, "root-2"), Reason.DISAGREES)
    assert "root-1" in detail
    assert "root-2" in detail
    refused(lead(ledger, 2, ""), Reason.DISAGREES)
    assert ledger.table.lead(0).epoch == 1
    assert isinstance(lead(ledger, 2, "root-1"), Change)


def test_between_amend_and_agree_nobody_gets_a_proof_or_the_lead(ledger):
    (x,) = ledger.begin(1)
    agree(ledger)
    amend(ledger)
    assert "root-2" in refused(ledger.replay(Record("n", Action.NOOP, A), 0), Reason.AMENDING)
    for root in ("root-1", "root-2"):
        refused(lead(ledger, 9, root), Reason.AMENDING)
    assert isinstance(ledger.write(Action.OWN, x, to=A), Change), "what is refused now must never count later: not this"


def test_a_late_copy_of_a_lead_that_was_refused_never_counts(ledger):
    """Not of another root's, once that root is agreed on; nor of one that came while the word was replaced."""
    agree(ledger)
    early = lead(ledger, 5, "root-2")
    refused(early, Reason.DISAGREES)
    amend(ledger)
    meanwhile = lead(ledger, 6, "root-2")
    refused(meanwhile, Reason.AMENDING)
    agree(ledger, OTHER)
    for _, _, record in [entry for entry in ledger.log if entry[2].action is Action.LEAD]:
        refused(ledger.replay(record, 0), Reason.STALE)
    assert isinstance(lead(ledger, 7, "root-2"), Change)


def test_a_replacement_is_for_administrators_and_ends_with_what_it_began(ledger):
    agree(ledger)
    refused(amend(ledger, role=Role.BROKER), Reason.NOT_ALLOWED)
    refused(amend(ledger, role=Role.LEADER), Reason.NOT_ALLOWED)
    amend(ledger)
    assert ledger.table.agreed(0) == Agreed(ONE, OTHER, 3)
    assert "root-2" in refused(agree(ledger, ONE), Reason.DISAGREES)
    assert isinstance(agree(ledger, OTHER), Change)
    assert ledger.table.agreed(0) == Agreed(OTHER, None, 5)


def test_a_replacement_that_was_begun_may_be_begun_anew_or_taken_back(ledger):
    agree(ledger)
    amend(ledger)
    assert isinstance(amend(ledger, ONE), Change)
    assert isinstance(agree(ledger, ONE), Change)
    assert isinstance(lead(ledger, 1, "root-1"), Change)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_late_copy_changes_nothing(ledger, copies: int):
    """Of the word, of its replacement, and of its end: each names the one that its author saw."""
    records = []
    for verdict in (agree(ledger), amend(ledger), agree(ledger, OTHER)):
        assert isinstance(verdict, Change)
        records.append(verdict.record)
    for record in records * copies:
        refused(ledger.replay(record, 0), Reason.STALE)
    assert ledger.table.agreed(0) == Agreed(OTHER, None, 2)


def test_a_record_without_an_agreement_is_malformed(ledger):
    refused(agree(ledger, None), Reason.MALFORMED)
    refused(amend(ledger, None), Reason.MALFORMED)


def test_cut_and_copy_hold_it_and_an_older_log_keeps_its_digest(ledger):
    ledger.begin()
    before = ledger.table.digest(0)
    assert msgspec.structs.replace(ledger.table.cut(0), agreed=Agreed()).digest() == before
    agree(ledger)
    copy = ledger.table.frozen()
    assert ledger.table.digest(0) != before
    amend(ledger)
    assert copy.agreed(0).following is None
    assert ledger.table.cut(0).agreed == ledger.table.agreed(0)


def test_what_differs_is_named_with_both_values():
    assert differences(ONE, ONE) == ""
    text = differences(ONE, OTHER)
    assert text == "root is root-1 in the log and root-2 here, proof_validity_s is 2.0 in the log and 5.0 here"
