"""What the auditor sees in single entries, beyond what the law refuses; and where two states differ."""

from __future__ import annotations

import msgspec
import pytest

from loadmanager.channel.audit.auditor import Auditor, Invariant
from loadmanager.channel.audit.digests import (
    difference,
    differing_bundle,
    differing_part,
    namespace_digests,
    partition_digests,
)
from loadmanager.channel.audit.verification import SHOWN_AT_MOST, FirstFew
from loadmanager.channel.revision import Revision
from statechannel.law.agreement import Agreed
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.partition import ClusterIdentity, Lead, NamespaceState, PartitionState
from statechannel.law.record import Action, BrokerId, Record, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Cutting, Ownership, Reason, Refusal, Transition
from statechannel.runtime.core import Applied

A, B = BrokerId("a:1", 1), BrokerId("b:1", 2)
BUNDLES = tile("t/n", even_boundaries(4))


def entry(bundle: Bundle = BUNDLES[0], **more: object) -> Ownership:
    fine = Ownership(bundle, State.ASSIGNED, A, None, 7, 3, Action.RETURN, A)
    return msgspec.structs.replace(fine, **more)


def applied(offset: int, verdict: Change | Refusal | None, record: Record | None = None) -> Applied:
    return Applied(0, offset, verdict, record)


def accepted(offset: int, before: Ownership | None, after: Ownership | None) -> Applied:
    record = Record("r", Action.RETURN, A, subjects=(Subject(BUNDLES[0], before.revision),) if before else ())
    return applied(offset, Change(0, offset, record, (Transition(before, after),)), record)


def auditor(*entries: Ownership) -> Auditor:
    judge = Auditor(0, 1)
    judge.begin(7, state(*entries))
    return judge


def test_entries_that_are_as_they_should_be_are_counted() -> None:
    before = entry(revision=5)
    judge = auditor(before)
    assert judge.take(accepted(7, before, entry(revision=7))) == []
    assert judge.take(applied(8, Refusal(Reason.ILLEGAL, "no arrow"), Record("r", Action.OWN, A))) == []
    assert judge.take(applied(9, None)) == []
    assert judge.counts == {"accepted": 1, "refused": 1, "corrupt": 1}
    assert judge.refusals == {"illegal": 1}
    assert judge.check(state(entry(revision=7))) == []
    assert not judge.missing(10)


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (entry(revision=8), "has revision 8"),
        (entry(token=1), "goes back from 3 to 1"),
        (entry(holder=None), "assigned with holder None"),
        (entry(token=9), "beyond revision"),
    ],
)
def test_a_step_that_no_law_allows_is_a_problem(after: Ownership, problem: str) -> None:
    before = entry(revision=5)
    broken = auditor(before).take(accepted(7, before, after))
    assert any(each.invariant is Invariant.ENTRY and problem in each.detail for each in broken)


@pytest.mark.parametrize(("seen", "lost"), [(6, False), (7, False), (8, True), (19, True), (20, False), (99, False)])
def test_an_author_who_saw_what_no_record_made_betrays_a_hole(seen: int, lost: bool) -> None:
    record = Record("r", Action.OWN, B, subjects=(Subject(BUNDLES[0], seen),), to=B)
    refused = Refusal(Reason.STALE, "stale", BUNDLES[0], entry())
    assert bool(auditor().take(applied(20, refused, record))) == lost


def test_missing_offsets_are_counted_from_the_beginning() -> None:
    judge = auditor()
    assert judge.missing(9) == range(7, 9)
    judge.take(applied(9, None))
    assert judge.missing(12) == range(10, 12)


def test_a_state_that_no_change_led_to_is_found() -> None:
    [broken] = auditor(entry()).check(state(entry(holder=B)))
    assert broken.invariant is Invariant.OWNER
    assert "was changed by no accepted record" in broken.detail


def state(*entries: Ownership, name: str = "t/n", **more: object) -> PartitionState:
    namespaces = (NamespaceState("a/a", 1, ()), NamespaceState(name, 7, entries))
    bare = PartitionState(0, 9, ClusterIdentity("c", "i", 0), Lead(2, A), None, (("a:1", 1),), namespaces, (), ())
    return msgspec.structs.replace(bare, **more)


WHOLE = tuple(entry(bundle) for bundle in BUNDLES)
OTHERS = {
    "another owner": (state(*WHOLE[:2], entry(BUNDLES[2], holder=B), WHOLE[3]), "at b:1#2"),
    "a bundle less": (state(*WHOLE[:3]), "it says there is none"),
    "another range": (state(*WHOLE[:3], entry(Bundle("t/n", BUNDLES[3].lo, BUNDLES[3].hi - 1))), "there is none"),
    "a hand-off": (state(*WHOLE[:3], entry(BUNDLES[3], hand_off=b"x")), "the same but for what it hands over"),
    "how to cut": (state(*WHOLE[:3], entry(BUNDLES[3], cutting=Cutting(parts=3))), "or how it is to be cut"),
    "another namespace": (state(*WHOLE, name="t/o"), "t/n"),
    "another epoch": (state(*WHOLE, lead=Lead(3, B)), "lead"),
    "another broker": (state(*WHOLE, incarnations=(("a:1", 2),)), "incarnations"),
    "another agreement": (state(*WHOLE, agreed=Agreed(revision=5)), "agree"),
}


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("name", OTHERS)
def test_a_difference_is_found_from_pages_of_digests_and_from_whole_states(name: str, most: int) -> None:
    ours, (theirs, told) = state(*WHOLE), OTHERS[name]
    assert told in (_found_by_pages(ours, theirs, most) or "")
    assert told in (difference(ours, theirs) or "")


@pytest.mark.parametrize("most", [1, 3, 100])
def test_there_is_no_difference_between_equals(most: int) -> None:
    assert _found_by_pages(state(*WHOLE), state(*WHOLE), most) is None
    assert difference(state(*WHOLE), state(*WHOLE)) is None


def _found_by_pages(ours: PartitionState, theirs: PartitionState, most: int) -> str | None:
    after: str | None = ""
    while after is not None:
        page = partition_digests(theirs, after, most)
        namespace, rest = differing_part(ours, page, after)
        if namespace is not None:
            return _bundle_by_pages(ours, theirs, namespace, most)
        if rest is not None:
            return rest
        after = page.next
    return None


def _bundle_by_pages(ours: PartitionState, theirs: PartitionState, namespace: str, most: int) -> str | None:
    after: str | None = ""
    while after is not None:
        page = namespace_digests(theirs, namespace, after, most)
        found = differing_bundle(ours, page, after)
        if found is not None:
            return found
        after = page.next
    return None


@pytest.mark.parametrize("text", ["0:0", "3:1.2.3", "12:5.0.999999999999999999"])
def test_a_revision_reads_as_it_is_written(text: str) -> None:
    assert str(Revision.parse(text)) == text


@pytest.mark.parametrize("text", ["", "0", "0:", ":1", "0:1,2", "0:1.", "0:.1", "-1:1", "0:1 ", "0:٣", "0:" + "1" * 19])
def test_what_is_no_revision_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a revision"):
        Revision.parse(text)


def test_of_any_number_of_violations_only_the_first_are_kept():
    found: FirstFew[int] = FirstFew()
    for number in range(1_000):
        found.add(number)
    assert (found.shown, found.count, found.more) == (list(range(SHOWN_AT_MOST)), 1_000, 1_000 - SHOWN_AT_MOST)
