from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadmanager.cluster.agreed_time import FRESH_S, AgreedTime
from loadmanager.cluster.journal import TRIM_EVERY_S, Journal
from statechannel.law.record import BrokerId

YEAR_MS = 365 * 86_400_000
START_MS = 50 * YEAR_MS


class Clocks:
    """A broker's clocks: the time that passed, and how far its wall clock is off."""

    def __init__(self, off_ms: int = 0, *, begun: bool = True) -> None:
        self.s, self.off_ms = 0.0, off_ms
        self.time = AgreedTime("a:1", lambda: self.s, lambda: self.right_ms() + self.off_ms)
        if begun:
            self.time.begin([])

    def right_ms(self) -> int:
        return START_MS + round(self.s * 1000)

    def hear(self, name: str, off_ms: int = 0) -> None:
        record = SimpleNamespace(actor=BrokerId(name, 1), at_ms=self.right_ms() + off_ms)
        self.time.take(cast("Any", SimpleNamespace(record=record)))


def test_there_is_no_time_before_the_channel_is_read() -> None:
    assert Clocks(begun=False).time.now_ms() is None


@pytest.mark.parametrize("name", ["a:1", "b:1"])
def test_a_broker_that_starts_with_a_wrong_clock_goes_on_from_the_last_record(name: str) -> None:
    clocks = Clocks(YEAR_MS, begun=False)
    clocks.hear(name, -5_000)
    clocks.time.begin([START_MS - 9_000])
    clocks.s = 3_600.0
    clocks.hear("a:1", YEAR_MS)
    assert clocks.time.now_ms() == clocks.right_ms() - 5_000


def test_a_broker_that_finds_a_snapshot_alone_goes_on_from_it() -> None:
    clocks = Clocks(YEAR_MS, begun=False)
    clocks.time.begin([START_MS - 9_000, START_MS - 5_000])
    assert clocks.time.now_ms() == START_MS - 5_000
    clocks.s = 3_600.0
    assert clocks.time.now_ms() == clocks.right_ms() - 5_000


def test_a_snapshot_from_the_future_does_not_count() -> None:
    clocks = Clocks(begun=False)
    clocks.time.begin([START_MS + YEAR_MS])
    assert clocks.time.now_ms() == START_MS


@pytest.mark.parametrize(("off_ms", "counts_ms"), [(YEAR_MS, 0), (-YEAR_MS, -YEAR_MS)])
def test_a_clock_that_jumps_takes_no_time_along_that_has_not_passed(off_ms: int, counts_ms: int) -> None:
    clocks = Clocks()
    clocks.s, clocks.off_ms = 3_600.0, off_ms
    assert clocks.time.now_ms() == clocks.right_ms() + counts_ms


def test_old_records_that_are_read_at_the_start_are_not_a_live_clock(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks(begun=False)
    clocks.hear("b:1", -8 * 3_600_000)
    clocks.time.begin([])
    assert clocks.time.now_ms() == START_MS - 8 * 3_600_000
    assert not clocks.time.apart_ms()
    assert not caplog.text


def test_clocks_that_are_apart_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks(YEAR_MS)
    clocks.hear("b:1")
    for _ in range(2):
        assert clocks.time.now_ms() is None
    assert caplog.text.count("31536000 s ahead of that of b:1: correct the wrong one") == 1


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS, 61_000, -61_000])
def test_there_is_no_time_while_two_disagree_whoever_is_right(off_ms: int) -> None:
    own_is_off, other_is_off = Clocks(off_ms), Clocks()
    own_is_off.hear("b:1")
    other_is_off.hear("b:1", off_ms)
    assert own_is_off.time.now_ms() is None
    assert other_is_off.time.now_ms() is None
    assert own_is_off.time.apart_ms() == {"b:1": -off_ms}
    assert other_is_off.time.apart_ms() == {"b:1": off_ms}


def test_of_clocks_that_agree_the_lowest_counts() -> None:
    clocks = Clocks()
    clocks.hear("b:1", 500)
    clocks.hear("c:1", -2_000)
    assert clocks.time.now_ms() == START_MS - 2_000


def test_a_broker_left_alone_goes_on_from_the_last_one_it_heard() -> None:
    clocks = Clocks(YEAR_MS)
    clocks.hear("b:1")
    clocks.s = 3_600.0
    assert clocks.time.now_ms() == clocks.right_ms()


def test_what_a_broker_ahead_wrote_does_not_count_once_it_is_gone() -> None:
    clocks = Clocks()
    clocks.hear("b:1", YEAR_MS)
    clocks.s = FRESH_S + 1
    assert clocks.time.now_ms() == clocks.right_ms()


async def test_a_journal_is_not_trimmed_while_the_time_is_not_known() -> None:
    asked: list[int] = []

    class Log:
        async def append(self, *_: object) -> None: ...

        async def offset_at(self, _topic: str, _partition: int, at_ms: int) -> int:
            asked.append(at_ms)
            return 0

        async def begins(self, _topic: str) -> tuple[int, ...]:
            return (0,)

    clocks = Clocks(YEAR_MS)
    clocks.hear("b:1")
    journal: Journal[bytes] = Journal(
        cast("Any", Log()), "audit", lambda value: value, retention_s=lambda: TRIM_EVERY_S, now_ms=clocks.time.now_ms
    )
    await journal.append(b"k", b"v")
    assert asked == []
    clocks.off_ms = 0  # the clock is right again
    await journal.append(b"k", b"v")
    assert asked == [START_MS - round(TRIM_EVERY_S * 1000)]


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "offset_ms"),
    [
        (0, [], 0),
        (YEAR_MS, [0, 10], YEAR_MS - 10),
        (0, [YEAR_MS, 0], 0),
        (0, [-YEAR_MS, 4], 0),
        (2_000, [-YEAR_MS, YEAR_MS, 0, 0], 2_000),
        (100_000, [0], 50_000),
    ],
)
def test_the_clock_that_is_wrong_is_far_from_the_median(own_ms: int, others_ms: list[int], offset_ms: int) -> None:
    clocks = Clocks(own_ms)
    for number, off_ms in enumerate(others_ms):
        clocks.hear(f"b:{number}", off_ms)
    assert clocks.time.offset_ms({}) == offset_ms
    clocks.s += FRESH_S + 1
    assert clocks.time.offset_ms({}) == 0, "a broker that neither writes nor reports is not compared"


@pytest.mark.parametrize(
    ("reports_ms", "offset_ms"),
    [
        ({"a:1": 40_000, "b:1": -10, "c:1": 10}, 39_990),
        ({"a:1": -7_000, "b:1": -7_000, "c:1": 33_000}, 0),
        ({"b:1": 40_000, "c:1": 40_000}, 0),  # this broker has not reported yet
    ],
)
def test_without_records_in_the_channel_load_reports_compare_the_clocks(
    reports_ms: dict[str, int], offset_ms: int
) -> None:
    assert Clocks().time.offset_ms(reports_ms) == offset_ms


def test_a_fresh_record_counts_before_a_load_report() -> None:
    clocks = Clocks()
    clocks.hear("b:1", 4_000)
    assert clocks.time.offset_ms({"a:1": 0, "b:1": 90_000}) == -2_000
