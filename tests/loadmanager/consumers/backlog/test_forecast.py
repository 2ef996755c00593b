"""When a backlog will be gone, and why there is no answer if there is none."""

from __future__ import annotations

import pytest

from loadmanager.consumers.backlog.figures import Offsets, backlog_of, total
from loadmanager.consumers.backlog.forecast import MOST_POINTS, Forecast, Outlook, Window
from tests.loadmanager.consumers.backlog.queues import NOW_MS


def window(*moments: tuple[float, int | None, int | None], length_s: float = 60.0) -> Window:
    """Of one queue; a moment is a time in seconds, the consumer offset, the end."""
    seen = Window(length_s)
    for at_s, consumer, end in moments:
        seen.add(at_s, backlog_of(Offsets(end, consumer), NOW_MS))
    return seen


def test_a_backlog_drains_at_the_difference_of_the_rates():
    found = window((0, 0, 1_000), (10, 500, 1_200)).forecast()
    assert found.outlook is Outlook.DRAINS
    assert (found.consumed_per_s, found.produced_per_s) == (50.0, 20.0)
    assert found.drain_s == pytest.approx(700 / 30)


@pytest.mark.parametrize(
    ("moments", "why"),
    [
        (
            [(0, 0, 100), (10, 50, 200)],
            "no more is consumed than is produced: 5 records/s are consumed and 10 produced",
        ),
        ([(0, 0, 100), (10, 50, 150)], "no more is consumed than is produced"),
        ([(0, 5, 100), (10, 5, 100)], "nothing was consumed"),
    ],
)
def test_a_backlog_never_drains_if_no_more_is_consumed_than_produced(moments: list[tuple[float, int, int]], why: str):
    found = window(*moments).forecast()
    assert (found.outlook, found.drain_s) == (Outlook.NEVER, None)
    assert found.why.startswith(why)


def test_an_empty_backlog_needs_no_rates():
    assert window((0, 9, 9)).forecast() == Forecast(Outlook.EMPTY, "all records are consumed", 0.0)
    assert window((0, 3, 9), (2, 10, 10)).forecast().drain_s == 0.0


@pytest.mark.parametrize(
    ("moments", "why"),
    [
        ([], "no figures yet"),
        ([(0, 3, 9)], "a rate needs two moments: no figures yet"),
        ([(0, 3, None)], "no queue has a known end"),
        ([(0, 3, 9), (1, 2, 9)], "a rate needs two moments: offsets went back"),
        ([(0, 3, 9), (1, 3, 5)], "a rate needs two moments: offsets went back"),
        ([(0, None, 9), (1, 3, 9)], "a rate needs two moments: the queues with offsets changed"),
    ],
)
def test_what_is_not_known_yet_says_why(moments: list[tuple[float, int | None, int | None]], why: str):
    found = window(*moments).forecast()
    assert (found.outlook, found.drain_s) == (Outlook.UNKNOWN, None)
    assert found.why.startswith(why)


def test_only_the_last_while_counts():
    found = window((0, 0, 10_000), (50, 0, 10_000), (60, 100, 10_000), (70, 200, 10_000), length_s=20).forecast()
    assert found.consumed_per_s == pytest.approx(10.0)


def test_the_window_has_a_bound_of_its_own():
    seen = window(*((float(second), second, 10_000) for second in range(3_000)), length_s=1e9)
    assert len(seen._points) == MOST_POINTS


def test_a_sum_of_queues_drains_like_one_queue():
    seen = Window(60)
    for at_s, consumed in ((0, (0, 10)), (10, (30, 20))):
        seen.add(at_s, total(backlog_of(Offsets(100, offset), NOW_MS) for offset in consumed))
    found = seen.forecast()
    assert found.drain_s == pytest.approx(150 / 4)
