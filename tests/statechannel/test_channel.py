"""From entries to verdicts: whose verdict it is, once, and what passes a replica without stopping it."""

from __future__ import annotations

import pytest

from statechannel.errors import NewerRecord
from statechannel.law import codec
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import LogEntry
from statechannel.runtime.core import LATE_VERDICTS_KEPT, MARK_BYTES, MARKS_KEPT, ChannelCore

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)


class Log:
    """Writes entries for one core."""

    def __init__(self) -> None:
        self.core = ChannelCore(1)
        self.end = 0

    def apply(self, value: bytes | None):
        entry = LogEntry(0, self.end, None, value, 0)
        applied = self.core.apply(entry)
        self.end += 1
        return applied

    def lead(self, record_id: str, epoch: int, by: BrokerId = A):
        return self.apply(codec.encode(Record(record_id, Action.LEAD, by, Role.LEADER, epoch)))


def test_a_record_that_somebody_waits_for_settles_once():
    log = Log()
    log.core.expect("r1", 0)
    assert log.lead("r1", 1).settles == "r1"
    assert log.lead("r1", 1).settles is None


def test_a_refused_copy_of_an_accepted_record_is_not_its_verdict():
    log = Log()
    log.core.expect("r1", 0)
    first, copy = log.lead("r1", 1), log.lead("r1", 1)
    assert isinstance(first.verdict, Change)
    assert isinstance(copy.verdict, Refusal)
    assert (first.settles, copy.settles) == ("r1", None)


def test_the_same_holds_for_a_record_that_was_given_up():
    log = Log()
    log.core.expect("r1", 0)
    log.core.give_up("r1")
    assert log.core.settled("r1") is None
    assert log.lead("r1", 1).settles is None
    log.lead("r1", 1)
    assert isinstance(log.core.settled("r1"), Change)


def test_records_of_others_settle_nothing():
    log = Log()
    log.core.expect("mine", 0)
    assert log.lead("theirs", 1).settles is None
    assert log.core.settled("theirs") is None


def test_late_verdicts_are_kept_for_a_bounded_number_of_records():
    log = Log()
    for number in range(LATE_VERDICTS_KEPT + 1):
        log.core.expect(f"r{number}", 0)
        log.core.give_up(f"r{number}")
    log.lead("r0", 1)
    log.lead("r1", 2)
    assert log.core.settled("r0") is None
    assert isinstance(log.core.settled("r1"), Change)


def test_giving_up_what_was_settled_remembers_nothing():
    log = Log()
    log.core.expect("r1", 0)
    log.lead("r1", 1)
    log.core.give_up("r1")
    assert log.core.settled("r1") is None


@pytest.mark.parametrize("given_up", [False, True])
def test_after_a_part_that_was_not_read_a_copy_settles_nothing(given_up: bool):
    """The first copy may stand in that part, and have been accepted: what this one gets is not the record's verdict."""
    log = Log()
    log.core.expect("r1", 0)
    if given_up:
        log.core.give_up("r1")
    log.core.forget(0)
    assert log.lead("r1", 1).settles is None
    log.core.give_up("r1")
    assert log.core.settled("r1") is None


def test_what_is_forgotten_is_of_one_partition_and_not_what_was_read_before():
    log = Log()
    for record_id, partition in (("read", 0), ("elsewhere", 1)):
        log.core.expect(record_id, partition)
        log.core.give_up(record_id)
    log.lead("read", 1)
    log.core.expect("waiting elsewhere", 1)
    log.core.forget(0)
    assert isinstance(log.core.settled("read"), Change)
    assert log.lead("waiting elsewhere", 2).settles == "waiting elsewhere"
    log.lead("elsewhere", 3)
    assert isinstance(log.core.settled("elsewhere"), Change)


@pytest.mark.parametrize("value", [None, b"", b"junk", b"LM01 00000000 {}"])
def test_what_is_no_record_is_passed_over_and_said(value: bytes | None):
    log = Log()
    applied = log.apply(value)
    assert applied.verdict is None
    assert applied.corrupt
    assert applied.offset == 0
    assert isinstance(log.lead("r1", 1).verdict, Change), "the replica goes on"


def test_a_newer_record_is_not_folded():
    log = Log()
    log.core.newest_version = 0
    with pytest.raises(NewerRecord):
        log.lead("r1", 1)
    assert log.core.table.next_offset(0) == 0


def test_bytes_of_the_log_from_an_offset_on_are_known_to_a_mark():
    log = Log()
    for _ in range(1_000):
        log.apply(b"x" * 100)
    for start in (0, 1, 300, 640):
        exact = (1_000 - start) * 100
        assert exact - MARK_BYTES - 100 < log.core.log_bytes(0, start) <= exact
    assert log.core.log_bytes(0, 1_000) == 0


def test_what_is_known_of_the_bytes_of_a_log_is_bounded():
    log = Log()
    for _ in range(MARKS_KEPT + 500):
        log.apply(b"x" * MARK_BYTES)
    assert log.core.log_bytes(0, 0) == MARKS_KEPT * MARK_BYTES
