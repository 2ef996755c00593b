"""Which snapshots are kept and how far the log may be trimmed, whatever happens in between."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.channel.owner.retention import KEPT_AT_MOST, STEPS, plan

DAY_S = 86_400
DAY_MS = 1_000 * DAY_S


class Taken(msgspec.Struct, frozen=True):
    next_offset: int
    at_ms: int


def taken(*days: float) -> list[Taken]:
    """Snapshots of so many days; a day has 1,000 entries."""
    return [Taken(round(1_000 * day), round(DAY_MS * day)) for day in days]


def at(day: float) -> int:
    return round(DAY_MS * day)


def test_without_a_snapshot_nothing_is_trimmed():
    assert plan([], at(100), 0, []) == plan([], 0, DAY_S, [5])
    assert plan([], at(100), 0, []).base is None


def test_nothing_is_trimmed_before_a_snapshot_is_older_than_the_retention():
    found = plan(taken(0, 1, 2), at(6.9), 7 * DAY_S, [])
    assert found.base is None
    assert found.keep[0] == taken(0)[0]


def test_the_base_is_the_newest_one_that_is_older_than_the_retention():
    found = plan(taken(0, 2, 4, 6, 8, 10), at(12), 7 * DAY_S, [])
    assert found.base == taken(4)[0]
    assert found.keep == tuple(taken(4, 6, 8, 10))


def test_nothing_is_trimmed_that_a_reader_still_wants():
    assert plan(taken(0, 2, 4, 6), at(100), 7 * DAY_S, [5_000, 2_500]).base == taken(2)[0]
    assert plan(taken(0, 2, 4, 6), at(100), 7 * DAY_S, [2_000]).base == taken(2)[0]
    assert plan(taken(1, 2, 4, 6), at(100), 7 * DAY_S, [999]).base is None


def test_those_in_between_lie_a_quarter_of_the_retention_apart():
    found = plan(taken(*(day / 24 for day in range(24 * 9))), at(9), 8 * DAY_S, [])
    ages = [snapshot.at_ms for snapshot in found.keep]
    assert all(later - earlier >= at(2) for earlier, later in pairwise(ages[:-1]))
    assert len(ages) <= STEPS + 2


def test_without_retention_one_snapshot_is_kept_besides_the_new_one():
    assert plan(taken(1, 2, 3), at(3), 0, []).keep == tuple(taken(3))


def test_a_shorter_or_longer_retention_than_before_loses_no_base():
    trimmed_to = taken(5, 6)
    assert plan(trimmed_to, at(6), 30 * DAY_S, []).keep == tuple(trimmed_to)


def test_a_clock_that_was_behind_makes_no_snapshot_older_than_what_it_covers():
    wrong = [Taken(1_000, at(10)), Taken(2_000, at(1)), Taken(3_000, at(11))]
    assert plan(wrong, at(11.5), 2 * DAY_S, []).base is None


def test_a_clock_that_ran_ahead_by_years_does_not_keep_the_log_for_years():
    wrong = [Taken(1_000, at(1)), Taken(2_000, at(4_000)), Taken(3_000, at(3)), Taken(4_000, at(10))]
    assert plan(wrong, at(4), 2 * DAY_S, []).base == wrong[0], "its own date is not known, but it is younger than this"
    assert plan(wrong, at(10), 2 * DAY_S, []).base == wrong[2]


def test_a_date_that_has_not_come_is_no_reason_to_let_go_of_anything():
    assert plan([Taken(1_000, at(4_000))], at(10), 2 * DAY_S, []).base is None


snapshots = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(0, 30 * DAY_MS)), max_size=40, unique_by=lambda pair: pair[0]
).map(lambda pairs: [Taken(*pair) for pair in sorted(pairs)])
readers = st.lists(st.integers(0, 6_000), max_size=4)
retentions = st.sampled_from([0, 60, DAY_S, 7 * DAY_S, 365 * DAY_S])


@given(snapshots, st.integers(0, 60 * DAY_MS), retentions, readers)
def test_the_base_is_kept_and_beyond_no_reader_and_the_oldest_kept(
    given_: list[Taken], now_ms: int, retention_s: int, wanted: list[int]
):
    found = plan(given_, now_ms, retention_s, wanted)
    if found.base is not None:
        assert found.keep[0] == found.base
        assert all(found.base.next_offset <= position for position in wanted)
        dates_ms = [s.at_ms for s in given_ if s.next_offset >= found.base.next_offset and s.at_ms <= now_ms]
        assert min(dates_ms, default=now_ms) <= now_ms - 1_000 * retention_s
    assert len(found.keep) < KEPT_AT_MOST
    assert list(found.keep) == sorted(found.keep, key=lambda s: s.next_offset)
    assert set(found.keep) <= set(given_)
    if given_:
        assert found.keep[-1] == given_[-1], "the newest stays until a newer one has been read back"
        assert found.keep[0] == given_[0] or found.base is not None, "the log begins at the oldest one"


class Life:
    """A partition as an owner keeps it for a long time: `begin` and the snapshots listed."""

    def __init__(self) -> None:
        self.begin = self.offset = self.now_ms = 0
        self.listed: list[Taken] = []

    def pass_time(self, ms: int, entries: int) -> None:
        self.now_ms += ms
        self.offset += entries

    def snapshot(self, retention_s: int, wanted: list[int]) -> None:
        found = plan(self.listed, self.now_ms, retention_s, wanted)
        self.listed = [*found.keep, Taken(self.offset, self.now_ms)]
        if found.base is not None:
            self.begin = max(self.begin, found.base.next_offset)


rounds = st.lists(
    st.tuples(st.integers(1, DAY_MS), st.integers(0, 1_000), retentions, st.lists(st.integers(0, 2_000), max_size=2)),
    max_size=60,
)


@given(rounds)
def test_log_always_begins_at_a_listed_snapshot_and_never_goes_back(steps):
    life = Life()
    for ms, entries, retention_s, back in steps:
        life.pass_time(ms, entries)
        before = life.begin
        wanted = [max(life.begin, life.offset - distance) for distance in back]
        life.snapshot(retention_s, wanted)
        assert before <= life.begin <= min([*wanted, life.offset])
        assert life.listed[0].next_offset >= life.begin, "the oldest can be followed by the log"
        assert life.begin in {0, life.listed[0].next_offset}
        assert len(life.listed) <= KEPT_AT_MOST


@given(st.integers(1, 24), st.integers(1, 10))
def test_the_log_is_no_longer_than_the_retention_and_two_steps(hours: int, days: int):
    life = Life()
    for _ in range(24 * 40 // hours):
        life.pass_time(hours * DAY_MS // 24, hours)
        life.snapshot(days * DAY_S, [])
    longest = 24 * days + 24 * days / STEPS + 3 * hours
    assert life.offset - life.begin <= longest
