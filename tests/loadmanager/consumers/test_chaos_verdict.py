"""The judge of the chaos bench sees each kind of fault that it is there for."""

from __future__ import annotations

import pytest

from bench.chaos_verdict import Verdict, judge
from bench.groups import Read, Run


def reads(begin_s: float, first: int, count: int) -> list[Run]:
    """A record each tenth of a second."""
    return [Run(begin_s + number / 10, first + number, 1) for number in range(count)]


def judged(*members: list[Run], sent: int, until_s: float = 0.0) -> Verdict:
    return judge([{0: member} for member in members], {0: sent}, 1.0, until_s)


def test_a_partition_that_changes_hands_in_order_has_a_pause_and_nothing_else() -> None:
    found = judged(reads(0, 0, 10), reads(1.4, 10, 10), sent=20)
    assert found[:4] == (0, 0, 0, 0)
    assert (found.silence_s, found.pause_s, found.moves) == (pytest.approx(0.5), pytest.approx(0.5), 1)


def test_what_nobody_read_is_lost_and_silence_lasts_to_the_end() -> None:
    found = judged(reads(0, 0, 10), sent=12, until_s=5.0)
    assert (found.lost, found.silence_s, found.moves) == (2, pytest.approx(4.1), 0)
    assert judge([], {0: 3, 1: 4}, 1.0, 0.0).lost == 7


def test_a_repeated_record_is_late_if_it_could_have_been_committed() -> None:
    """Read for 2 s; the next reader begins 15 records back, of which those of the last second were in flight."""
    found = judged(reads(0, 0, 20), reads(3, 5, 20), sent=25)
    assert (found.lost, found.repeated, found.late) == (0, 15, 4)


def test_who_reads_on_after_the_next_one_began_is_stale() -> None:
    paused: list[Run] = [*reads(0, 0, 10), *reads(5, 10, 3)]
    found = judged(paused, reads(2, 8, 20), sent=28)
    assert (found.stale, found.repeated, found.late) == (3, 5, 0)


def test_who_gets_a_partition_back_is_not_stale() -> None:
    back: list[Run] = [*reads(0, 0, 10), *reads(5, 20, 3)]
    found = judged(back, reads(2, 10, 10), sent=23)
    assert (found.stale, found.moves) == (0, 2)


def test_runs_count_as_their_records() -> None:
    members: list[Read] = [{0: [Run(1.0, 0, 100)], 1: [Run(1.5, 0, 50)]}, {0: [Run(2.0, 90, 20)]}]
    found = judge(members, {0: 110, 1: 50}, 5.0, 0.0)
    assert found == Verdict(0, 10, 0, 0, 1.0, 1.0, 1)
