"""What the bench of groups under faults counts: each kind of harm, put into small readings by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from bench.chaos_faults import FAULTS, KILL, LOSS, MODES, SUSPEND, plan
from bench.chaos_resets import Reset, backward, stored, undone
from bench.group_reads import Commit, Covered, Run, count, lost, moved, not_in_flight, overlaps_s, read_s, silence_s

LENGTH_S = 21.0
FIRST, SECOND = 0, 1
"""Two members."""


def run(member: int, since_s: float, offset: int, records: int, first_s: float, last_s: float | None = None) -> Run:
    return Run(member, since_s, offset, records, first_s, first_s if last_s is None else last_s)


def test_nothing_is_wrong_with_a_partition_handed_over_in_order() -> None:
    runs = [run(FIRST, 1.0, 0, 10, 1.1, 2.0), run(SECOND, 2.1, 10, 5, 2.2, 3.0)]
    found = count({0: runs}, {0: 15}, {0: [Commit(2.05, 10)]})
    assert (found.lost, found.duplicates, found.not_in_flight, found.overlaps) == (0, 0, 0, 0)
    assert (found.moved, found.read_s) == (1, 3.0)
    assert found.silence_s == pytest.approx(0.2)


def test_a_record_that_nobody_read_is_lost() -> None:
    runs = [run(FIRST, 1.0, 0, 4, 1.1), run(SECOND, 2.0, 5, 5, 2.1)]
    assert lost({0: runs}, {0: 10}) == 1
    assert lost({0: runs}, {0: 10, 1: 3}) == 1 + 3
    assert lost({0: runs}, {0: 12}) == 1 + 2


def test_what_was_not_committed_is_read_again_for_a_reason() -> None:
    runs = [run(FIRST, 1.0, 0, 10, 1.1), run(SECOND, 5.0, 6, 10, 5.1)]
    found = count({0: runs}, {0: 16}, {0: [Commit(1.0, 3), Commit(2.0, 6)]})
    assert (found.duplicates, found.not_in_flight) == (4, 0)


@pytest.mark.parametrize(("committed", "needless"), [(6, 0), (7, 1), (10, 4), (12, 6)])
def test_what_was_committed_is_read_again_for_no_reason(committed: int, needless: int) -> None:
    runs = [run(FIRST, 1.0, 0, 12, 1.1), run(SECOND, 5.0, 6, 10, 5.1)]
    assert not_in_flight(runs, [Commit(4.9, committed)]) == needless


def test_a_commit_after_the_tenure_began_is_no_reason_to_blame() -> None:
    runs = [run(FIRST, 1.0, 0, 10, 1.1), run(SECOND, 5.0, 6, 10, 5.1)]
    assert not_in_flight(runs, [Commit(5.0, 10)]) == 0


def test_a_late_commit_that_goes_back_is_blamed() -> None:
    """The highest commit counts, not the last one."""
    runs = [run(FIRST, 1.0, 0, 10, 1.1), run(SECOND, 5.0, 3, 10, 5.1)]
    assert not_in_flight(runs, [Commit(3.0, 10), Commit(4.0, 3)]) == 7


def test_a_record_read_twice_in_one_tenure_is_blamed() -> None:
    runs = [run(FIRST, 1.0, 0, 10, 1.1), run(FIRST, 1.0, 8, 4, 1.5)]
    assert not_in_flight(runs, []) == 2
    assert not_in_flight([runs[0], runs[1]._replace(since_s=1.4)], []) == 0


def test_duplicates_before_the_faults_do_not_count() -> None:
    runs = [run(FIRST, 1.0, 0, 10, 1.1), run(SECOND, 2.0, 8, 4, 2.1), run(FIRST, 9.0, 11, 2, 9.1)]
    assert count({0: runs}, {0: 13}, {}).duplicates == 3
    assert count({0: runs}, {0: 13}, {}, since_s=5.0).duplicates == 1


def test_a_former_reader_that_reads_on_overlaps() -> None:
    runs = [run(FIRST, 1.0, 0, 5, 1.1, 2.0), run(SECOND, 2.4, 4, 5, 2.5, 4.0), run(FIRST, 1.0, 5, 1, 3.0)]
    assert overlaps_s(runs) == [pytest.approx(0.5)]
    assert count({0: runs}, {0: 9}, {}).overlaps == 1


def test_members_that_take_turns_do_not_overlap() -> None:
    runs = [run(FIRST, 1.0, 0, 5, 1.1, 2.0), run(SECOND, 2.4, 5, 5, 2.5, 3.0), run(FIRST, 3.5, 10, 1, 3.6)]
    assert overlaps_s(runs) == []
    assert moved(runs) == 2
    assert moved(runs, since_s=3.0) == 1


def test_one_member_that_reads_two_tenures_does_not_overlap() -> None:
    runs = [run(FIRST, 1.0, 0, 5, 1.1, 2.0), run(FIRST, 1.5, 0, 5, 1.6, 2.5)]
    assert overlaps_s(runs) == []
    assert moved(runs) == 0


def test_a_silence_lies_between_two_records() -> None:
    runs = [run(FIRST, 1.0, 0, 5, 1.0, 2.0), run(SECOND, 2.0, 5, 5, 1.5, 2.5), run(FIRST, 1.0, 10, 1, 6.0)]
    assert silence_s(runs) == pytest.approx(3.5)
    assert silence_s(runs, since_s=7.0) == 0.0


def test_reading_again_does_not_delay_when_all_was_read() -> None:
    runs = [run(FIRST, 1.0, 0, 5, 1.0, 2.0), run(SECOND, 3.0, 0, 5, 3.0, 4.0)]
    assert read_s(runs) == 2.0
    assert read_s([*runs, run(SECOND, 3.0, 5, 1, 5.0)]) == 5.0


def test_covered_offsets_are_counted_once() -> None:
    rng, covered, known = random.Random(3), Covered(), set[int]()
    for _ in range(300):
        begin = rng.randrange(200)
        end = begin + rng.randrange(1, 9)
        assert covered.add(begin, end) == len(set(range(begin, end)) - known)
        known |= set(range(begin, end))
        assert covered.size() == len(known)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", MODES)
def test_faults_are_those_of_their_seed_and_mode(fault: str, mode: str) -> None:
    found = plan(fault, mode, 4, 3.0, LENGTH_S, random.Random(5))
    assert found == plan(fault, mode, 4, 3.0, LENGTH_S, random.Random(5))
    assert found != plan(fault, mode, 4, 3.0, LENGTH_S, random.Random(6))
    assert len(found) >= 3
    assert {len(set(each.victims)) for each in found} == {3 if mode == "major" else 1}
    assert all(one.at_s + one.for_s + 3.0 < other.at_s < LENGTH_S for one, other in pairwise(found))
    if mode == "fixed":
        assert len({each.victims for each in found}) == 1


def test_a_suspension_outlives_the_session_and_a_loss_may_not() -> None:
    drawn = [each for seed in range(20) for each in plan(LOSS, "minor", 4, 3.0, LENGTH_S, random.Random(seed))]
    assert min(each.for_s for each in drawn) < 3.0 < max(each.for_s for each in drawn)
    assert all(each.for_s > 3.0 for each in plan(SUSPEND, "minor", 4, 3.0, LENGTH_S, random.Random(1)))
    assert all(each.for_s < 3.0 for each in plan(KILL, "minor", 4, 3.0, LENGTH_S, random.Random(1)))


def test_an_offset_goes_back_by_a_reset_only() -> None:
    commits = {0: [Commit(1.0, 10), Commit(2.0, 4), Commit(3.0, 12), Commit(4.0, 12)]}
    assert backward(commits, []) == 1
    assert backward(commits, [Reset(0, 4, 1.5, 2.0)]) == 0
    assert backward(commits, [Reset(1, 4, 1.5, 2.0), Reset(0, 5, 1.5, 2.0), Reset(0, 4, 2.5, 3.0)]) == 1
    twice = {0: [*commits[0], Commit(5.0, 4)]}
    assert backward(twice, [Reset(0, 4, 1.5, 6.0)]) == 1, "one reset explains one step back"


def test_a_reset_holds_if_the_next_record_is_its_own() -> None:
    commits, reset = {0: [Commit(1.0, 10), Commit(2.0, 4), Commit(3.0, 12)]}, Reset(0, 4, 1.5, 2.0)
    assert stored(commits, [reset]) == {0: [Commit(2.0, 4)]}
    before, after, beyond = run(FIRST, 0.1, 9, 1, 0.9), run(FIRST, 2.1, 4, 1, 2.2), run(FIRST, 2.1, 10, 1, 2.2)
    assert undone({0: [before, after]}, commits, [reset]) == 0
    assert undone({0: [before, beyond]}, commits, [reset]) == 1
    assert undone({0: [before]}, commits, [reset]) == 0, "nobody has read there yet"
    assert undone({0: [before, after]}, {0: [Commit(1.0, 10)]}, [reset]) == 1, "it was never stored"


def test_what_a_reset_gave_back_is_read_again_for_a_reason() -> None:
    runs = [run(FIRST, 0.1, 0, 10, 0.2, 0.9), run(SECOND, 2.1, 4, 8, 2.2)]
    commits = [Commit(1.0, 10), Commit(2.0, 4)]
    assert not_in_flight(runs, commits) == 6
    assert not_in_flight(runs, commits, [Commit(2.0, 4)]) == 0
