"""The pure core of batching: when a batch is ready, who waits, and that no byte of the budget is lost or overrun."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.errors import LogError, LogUnavailable, RecordTooLarge
from statechannel.ports import Payload
from statechannel.runtime.batching import (
    MAX_BATCH_BYTES,
    RECORD_OVERHEAD_BYTES,
    SHARED_MAX_BYTES,
    Batch,
    BatchCore,
    BatchSettings,
    Item,
    record_bytes,
)

SMALL = BatchSettings(batch_max_bytes=100, batch_max_delay_ms=10, total_batch_max_bytes=250)


def item(key: str, record: int, size_bytes: int) -> Item[str, int]:
    return Item(key, record, size_bytes)


def records(batches: list[Batch[str, int]]) -> list[list[int]]:
    return [[each.record for each in batch.items] for batch in batches]


# --- settings
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_max_delay_ms": 0}, "batch_max_delay_ms must be from 1 to 30,000 ms, not 0"),
        ({"batch_max_delay_ms": 30_001}, "batch_max_delay_ms must be from 1 to 30,000 ms, not 30,001"),
        ({"batch_max_bytes": 0}, "batch_max_bytes must be from 1 to 2,097,152 bytes, not 0"),
        ({"batch_max_bytes": (2 << 20) + 1}, "batch_max_bytes must be from 1 to 2,097,152 bytes, not 2,097,153"),
        ({"total_batch_max_bytes": 0}, "total_batch_max_bytes must be at least 1 byte, not 0"),
        ({"total_batch_max_bytes": -5}, "total_batch_max_bytes must be at least 1 byte, not -5"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_by_name(settings: dict[str, Any], says: str):
    with pytest.raises(LogError, match=says):
        BatchSettings(**settings)


def test_defaults_and_bounds_are_those_of_rocketmq():
    assert BatchSettings() == BatchSettings(32 * 1024, 10, 32 * 1024 * 1024)
    assert BatchSettings(1, 1, 1).timer_period_ms == 0.5
    assert BatchSettings(MAX_BATCH_BYTES, 30_000).timer_period_ms == 15_000


def test_a_record_counts_with_its_key_and_what_is_kept_beside_it():
    assert record_bytes(Payload(b"key", b"value")) == 8 + RECORD_OVERHEAD_BYTES
    assert record_bytes(Payload(None, None)) == RECORD_OVERHEAD_BYTES


# --- ready
def test_a_full_batch_is_ready_at_once():
    core = BatchCore[str, int](SMALL)
    assert core.add(item("a", 1, 60), 0) == []
    assert records(core.add(item("a", 2, 40), 0)) == [[1, 2]]
    assert not core.has_open


def test_a_record_that_does_not_fit_sends_the_batch_before_it():
    core = BatchCore[str, int](SMALL)
    core.add(item("a", 1, 60), 0)
    assert records(core.add(item("a", 2, 60), 0)) == [[1]]
    assert records(core.due(10)) == [[2]]


def test_a_record_larger_than_a_batch_goes_alone_and_in_order():
    core = BatchCore[str, int](SMALL)
    core.add(item("a", 1, 10), 0)
    assert records(core.add(item("a", 2, 150), 0)) == [[1], [2]]


def test_a_record_that_a_log_may_refuse_shares_no_batch():
    core = BatchCore[str, int](BatchSettings(batch_max_bytes=MAX_BATCH_BYTES))
    core.add(item("a", 1, 10), 0)
    assert records(core.add(item("a", 2, SHARED_MAX_BYTES + 1), 0)) == [[1], [2]]
    core.add(item("a", 3, SHARED_MAX_BYTES), 0)
    assert core.has_open


def test_a_batch_is_due_at_its_delay_and_its_first_record_counts():
    core = BatchCore[str, int](SMALL)
    core.add(item("a", 1, 10), 5)
    core.add(item("b", 2, 10), 9)
    core.add(item("a", 3, 10), 14)
    assert core.due(14.9) == []
    assert records(core.due(15)) == [[1, 3]]
    assert records(core.due(19)) == [[2]]


def test_keys_share_no_batch():
    core = BatchCore[str, int](SMALL)
    for number, key in enumerate("abab"):
        core.add(item(key, number, 10), 0)
    assert records(core.due(10)) == [[0, 2], [1, 3]]


# --- the budget
def test_a_record_waits_while_there_is_no_room_and_then_goes_in():
    core = BatchCore[str, int](SMALL)
    (first,) = core.add(item("a", 1, 200), 0)
    assert core.add(item("b", 2, 60), 0) == []
    assert core.held_bytes == 200
    assert core.give_back(first, 1) == []
    assert (core.held_bytes, core.has_open) == (60, True)


def test_whoever_waits_for_room_makes_the_oldest_batch_go_at_once():
    core = BatchCore[str, int](SMALL)
    for number, key in enumerate("abc"):
        core.add(item(key, number, 80), number)
    assert records(core.add(item("d", 3, 50), 3)) == [[0]], "the bytes of one are enough"


def test_a_small_record_does_not_pass_a_large_one_that_waits():
    core = BatchCore[str, int](SMALL)
    (first,) = core.add(item("a", 1, 200), 0)
    core.add(item("a", 2, 90), 0)
    core.add(item("a", 3, 10), 0)
    assert core.must_wait(1)
    assert records(core.give_back(first, 0)) == [[2, 3]]


def test_who_still_waits_after_a_batch_came_back_makes_the_next_go():
    core = BatchCore[str, int](SMALL)
    (first,) = core.add(item("a", 1, 200), 0)
    for number, key in enumerate("bcd"):
        core.add(item(key, number, 90), 0)
    assert records(core.give_back(first, 1)) == [[0]]
    core.check_invariants()


def test_a_caller_that_gives_up_leaves_its_room_to_the_next():
    core = BatchCore[str, int](SMALL)
    core.add(item("a", 1, 200), 0)
    large, small = item("b", 2, 100), item("b", 3, 40)
    core.add(large, 0)
    core.add(small, 0)
    assert core.withdraw(large, 0) == []
    assert core.held_bytes == 240
    assert core.withdraw(small, 0) is None, "it is in a batch"


def test_a_record_for_which_there_is_never_room_is_refused_and_takes_none():
    core = BatchCore[str, int](SMALL)
    with pytest.raises(RecordTooLarge, match="251 bytes never fits into total_batch_max_bytes"):
        core.add(item("a", 1, 251), 0)
    assert core.held_bytes == 0
    assert records(core.add(item("a", 2, 250), 0)) == [[2]]


def test_a_batch_comes_back_once():
    core = BatchCore[str, int](SMALL)
    (batch,) = core.add(item("a", 1, 200), 0)
    core.give_back(batch, 0)
    core.give_back(batch, 0)
    assert core.held_bytes == 0


def test_a_closed_core_sends_what_is_open_and_refuses_the_rest():
    core = BatchCore[str, int](SMALL)
    core.add(item("a", 1, 200), 0)
    core.add(item("b", 2, 40), 0)
    core.add(item("c", 3, 40), 0)
    ready, refused = core.close()
    assert (records(ready), [each.record for each in refused]) == ([[2]], [3])
    with pytest.raises(LogUnavailable, match="closed"):
        core.add(item("a", 4, 1), 0)
    for batch in core.under_way:
        core.give_back(batch, 1)
    assert core.held_bytes == 0
    assert core.close() == ([], [])


# --- any history
KEYS = "abc"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(KEYS), st.integers(1, 120)),
        st.tuples(st.just("answer"), st.integers(0, 9)),
        st.tuples(st.just("give up"), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.integers(1, 12)),
    ),
    max_size=80,
)
SETTINGS = st.builds(BatchSettings, st.integers(1, 150), st.integers(1, 20), st.integers(1, 300))


class History:
    """A core beside a virtual clock, with a timer on it, and callers that wait."""

    def __init__(self, settings: BatchSettings) -> None:
        self.core = BatchCore[str, int](settings)
        self.now_ms = self.next_tick_ms = 0.0
        self.sent: list[Batch[str, int]] = []
        self.unanswered: list[Batch[str, int]] = []
        self.items: list[Item[str, int]] = []
        self.given_up: set[int] = set()

    def add(self, key: str, size_bytes: int) -> None:
        one = item(key, len(self.items), size_bytes)
        if size_bytes > self.core.settings.total_batch_max_bytes:
            with pytest.raises(RecordTooLarge):
                self.core.add(one, self.now_ms)
            return
        self.items.append(one)
        self.send(self.core.add(one, self.now_ms))

    def answer(self, which: int) -> None:
        if self.unanswered:
            batch = self.unanswered.pop(which % len(self.unanswered))
            self.send(self.core.give_back(batch, self.now_ms))

    def give_up(self, which: int) -> None:
        if self.items:
            one = self.items[-1 - which % len(self.items)]
            ready = self.core.withdraw(one, self.now_ms)
            if ready is not None:
                self.given_up.add(one.record)
                self.send(ready)

    def advance(self, by_ms: float) -> None:
        until_ms = self.now_ms + by_ms
        while self.next_tick_ms <= until_ms:
            self.now_ms = self.next_tick_ms
            self.send(self.core.due(self.now_ms))
            self.next_tick_ms += self.core.settings.timer_period_ms
        self.now_ms = until_ms

    def send(self, batches: list[Batch[str, int]]) -> None:
        settings = self.core.settings
        for batch in batches:
            assert self.now_ms - batch.opened_ms < settings.batch_max_delay_ms + settings.timer_period_ms
            assert batch.size_bytes <= settings.batch_max_bytes or len(batch.items) == 1
            assert {each.key for each in batch.items} == {batch.key}
        self.sent += batches
        self.unanswered += batches
        self.core.check_invariants()

    def take(self, step: tuple) -> None:
        match step:
            case ("add", key, size_bytes):
                self.add(key, size_bytes)
            case ("answer", which):
                self.answer(which)
            case ("give up", which):
                self.give_up(which)
            case ("pass", by_ms):
                self.advance(by_ms)
        self.core.check_invariants()


@given(SETTINGS, STEPS)
def test_the_budget_holds_and_every_record_goes_once_in_order(settings, steps):
    history = History(settings)
    for step in steps:
        history.take(step)
    for _ in range(10_000):  # the log answers in the end
        if not (history.unanswered or history.core.has_open):
            break
        history.answer(0)
        history.advance(settings.batch_max_delay_ms)
    assert history.core.held_bytes == 0
    for key in KEYS:
        sent = [each.record for batch in history.sent if batch.key == key for each in batch.items]
        assert sent == [
            each.record for each in history.items if each.key == key and each.record not in history.given_up
        ]


@given(SETTINGS, STEPS)
def test_a_close_at_any_moment_leaves_no_byte_taken(settings, steps):
    history = History(settings)
    for step in steps:
        history.take(step)
    ready, refused = history.core.close()
    history.send(ready)
    told = {each.record for each in refused} | {each.record for batch in history.sent for each in batch.items}
    assert told == {each.record for each in history.items} - history.given_up
    while history.unanswered:
        history.answer(0)
    assert history.core.held_bytes == 0


@given(SETTINGS, STEPS, st.floats(0, 60))
def test_no_open_batch_is_older_than_the_delay_and_one_period(settings, steps, later_ms):
    history = History(settings)
    for step in steps:
        history.take(step)
    history.advance(later_ms)
    bound_ms = settings.batch_max_delay_ms + settings.timer_period_ms
    assert history.core.due(history.now_ms - settings.timer_period_ms) == []
    assert all(batch.opened_ms > history.now_ms - bound_ms for batch in history.core.close()[0])
