"""What one consumer may commit, and when a partition that leaves is drained."""

from __future__ import annotations

from loadmanager.consumer.assignment import Membership, Place, Progress
from loadmanager.consumers.coordinator.messages import Answer, Refusal, Why
from loadmanager.consumers.coordinator.records import Partition, Subscription

A: Partition = ("orders", 0)
B: Partition = ("orders", 1)


def begun(*partitions: Partition) -> Progress:
    progress = Progress()
    progress.begin(partitions)
    return progress


def test_the_first_record_that_is_not_done_is_committed() -> None:
    progress = begun(A)
    for offset in (5, 6, 7):
        assert progress.take(A, offset)
    progress.done(A, 6)
    assert progress.to_commit() == {A: Place(5, 8)}, "a commit of 7 would say that 5 is done"
    progress.done(A, 5)
    assert progress.to_commit() == {A: Place(7, 8)}
    progress.committed({A: Place(7, 8)})
    assert progress.to_commit() == {}


def test_a_partition_that_leaves_takes_nothing_and_is_drained_in_the_end() -> None:
    progress = begun(A, B)
    progress.take(A, 0)
    progress.end([A, B])
    assert not progress.take(A, 1)
    assert progress.drained() == {B}
    progress.done(A, 0)
    assert progress.drained() == {A, B}
    assert progress.to_commit() == {A: Place(1, 1)}


def test_what_is_not_ours_is_neither_taken_nor_committed() -> None:
    progress = begun(A)
    progress.take(A, 0)
    progress.forget([A])
    progress.done(A, 0)
    progress.committed({A: Place(1, 1)})
    assert not progress.take(A, 1)
    assert progress.to_commit() == {}
    progress.begin([A])
    progress.take(A, 0)
    assert progress.to_commit() == {A: Place(0, 1)}, "nothing is remembered of the first time"


def test_offsets_may_have_gaps_and_go_back_after_a_seek() -> None:
    progress = begun(A)
    progress.take(A, 3)
    progress.take(A, 9)
    progress.done(A, 3)
    assert progress.to_commit() == {A: Place(9, 10)}
    progress.take(A, 4)
    progress.done(A, 4)
    assert progress.to_commit() == {A: Place(5, 5)}


def answered(member: Membership, revision: int, *numbers: int, lease_ms: int = 1_000, epoch: int = 7) -> Membership:
    beat = member.beat(0)
    member.answered(beat.sequence, Answer(epoch, revision, 1, lease_ms, {"orders": numbers}))
    return member


def test_a_revision_is_acknowledged_when_all_that_it_took_away_is_given_up() -> None:
    member = answered(Membership("m", Subscription(("orders",))), 1, 0, 1)
    answered(member, 2, 0)
    assert member.beat(0).acked == 1
    answered(member, 3)
    member.given_up([B])
    assert member.beat(0).acked == 1
    member.given_up([A])
    assert member.beat(0).acked == 3


def test_an_answer_to_a_heartbeat_that_overtook_an_earlier_one_brings_nothing_back() -> None:
    """The earlier one is answered later, with more: what it took away is another member's when its end is known."""
    member = answered(Membership("m", Subscription(("orders",))), 1, 0, 1)
    slow, fast = member.beat(0), member.beat(0)
    late = Answer(7, 1, 1, 1_000, {"orders": (0, 1)})
    member.answered(slow.sequence, Answer(7, 2, 1, 1_000, {"orders": (0,)}))
    member.given_up([B])
    assert member.beat(0).acked == 2
    member.answered(fast.sequence, late)
    assert member.holds(1) == {A}


def test_the_lease_counts_from_before_the_question() -> None:
    member = Membership("m", Subscription(("orders",)))
    beat = member.beat(100)
    member.answered(beat.sequence, Answer(7, 1, 1, 1_000, {"orders": (0,)}))
    assert member.reads(1_099) == {A}
    assert member.reads(1_100) == member.holds(1_100) == frozenset()


def test_who_is_refused_has_lost_everything() -> None:
    member = answered(Membership("m", Subscription(("orders",))), 1, 0, 1)
    answered(member, 2, 0)
    change = member.answered(member.beat(0).sequence, Refusal(Why.UNKNOWN_MEMBER, "over"))
    assert change.lost == {A, B}
    assert member.over


def test_another_epoch_is_somebody_elses() -> None:
    member = answered(Membership("m", Subscription(("orders",))), 1, 0)
    answered(member, 1, 0, epoch=8)
    assert member.over
    assert member.reads(0) == frozenset()


def test_behind_the_last_record_the_group_goes_on_at_the_end_that_kafka_reports() -> None:
    """Marks of transactions, and records that were aborted, take offsets that nobody is given."""
    progress = Progress()
    progress.begin([A, B])
    assert progress.take(A, 5)
    progress.reached(A, 9)
    assert progress.to_commit() == {A: Place(5, 9)}, "the record is not done"
    progress.done(A, 5)
    progress.reached(B, 7)
    assert progress.to_commit() == {A: Place(9, 9), B: Place(7, 7)}, "of B nothing was given out"
    progress.committed(progress.to_commit())
    progress.reached(A, 9)
    assert progress.to_commit() == {}
    progress.end([A])
    progress.reached(A, 12)
    assert progress.to_commit() == {}, "it leaves"
