"""Callers in threads and on loops: each gets the result of its own record, and every byte comes back on every path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.errors import InvariantError, LogUnavailable, RecordTooLarge
from statechannel.runtime.accumulator import BatchAccumulator, Outcome
from statechannel.runtime.batching import BatchSettings

WAIT_S = 60
SLOW = BatchSettings(batch_max_bytes=100, batch_max_delay_ms=30_000, total_batch_max_bytes=250)
"""Only a full batch goes: the timer stays out of it."""
QUICK = BatchSettings(batch_max_bytes=100, batch_max_delay_ms=1, total_batch_max_bytes=250)

Settle = Callable[[Outcome[str]], None]


class Sink:
    """What batches are sent to; answers by itself, or when it is told to."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.batches: list[tuple[str, list[int]]] = []
        self.threads: list[str] = []
        self.open: list[tuple[list[int], Settle]] = []
        self.arrived = threading.Condition()

    def __call__(self, key: str, records: Sequence[int], settle: Settle) -> None:
        with self.arrived:
            self.batches.append((key, list(records)))
            self.threads.append(threading.current_thread().name)
            self.open.append((list(records), settle))
            self.arrived.notify_all()
        if self.answers:
            self.answer()

    def answer(self, error: Exception | None = None) -> None:
        records, settle = self.open.pop(0)
        settle(error or [str(record) for record in records])

    def wait_for(self, batches: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.batches) >= batches, WAIT_S)


@contextmanager
def accumulator(
    send: Callable[[str, Sequence[int], Settle], None], how: BatchSettings = SLOW, size_bytes: int | None = None
) -> Iterator[BatchAccumulator[str, int, str]]:
    """Records count what they are, unless `size_bytes` says otherwise; nothing may be held at the end."""
    made = BatchAccumulator[str, int, str](send, lambda record: size_bytes or record, how)
    try:
        yield made
    finally:
        made.close(WAIT_S)
    assert made.held_bytes == 0
    made._core.check_invariants()


# --- results
async def test_each_caller_on_a_loop_gets_the_result_of_its_own_record():
    with accumulator(Sink()) as gathered:
        assert await asyncio.gather(*(gathered.append("a", record) for record in (60, 40))) == ["60", "40"]


def test_each_thread_gets_the_result_of_its_own_record():
    with accumulator(Sink(), size_bytes=25) as gathered, ThreadPoolExecutor(16) as pool:
        asked = range(1, 401)
        assert list(pool.map(lambda r: gathered.append_blocking("a", r, WAIT_S), asked)) == [str(r) for r in asked]


def test_the_caller_that_fills_a_batch_sends_it():
    sink = Sink()
    with accumulator(sink) as gathered, ThreadPoolExecutor(1, thread_name_prefix="first") as pool:
        first = pool.submit(gathered.append_blocking, "a", 60, WAIT_S)
        while not gathered.held_bytes:
            pass
        assert gathered.append_blocking("a", 40, WAIT_S) == "40"
        assert first.result(WAIT_S) == "60"
    assert sink.batches == [("a", [60, 40])]
    assert sink.threads == [threading.current_thread().name]


def test_one_batch_is_handed_over_after_the_other():
    trace: list[str] = []

    def send(key: str, records: Sequence[int], settle: Settle) -> None:
        trace.append(f"begin {records[0]}")
        if records[0] < 103:
            gathered.try_append("a", records[0] + 1, lambda *_: None)  # full, while another is being handed over
        trace.append(f"end {records[0]}")
        settle([""])

    with accumulator(send, BatchSettings(batch_max_bytes=100)) as gathered:
        gathered.append_blocking("a", 101, WAIT_S)
    assert trace == [f"{step} {record}" for record in (101, 102, 103) for step in ("begin", "end")]


def test_the_one_timer_sends_what_does_not_fill_up():
    sink = Sink()
    with accumulator(sink, QUICK) as gathered:
        assert gathered.append_blocking("a", 1, WAIT_S) == "1"
        assert gathered.append_blocking("b", 2, WAIT_S) == "2"
        assert [thread.name for thread in threading.enumerate()].count("batch-timer") == 1
    assert sink.threads == ["batch-timer"] * 2
    assert "batch-timer" not in [thread.name for thread in threading.enumerate()]


def test_a_callback_is_called_with_the_result_of_its_record():
    told: list[tuple[str | None, Exception | None]] = []
    with accumulator(Sink()) as gathered:
        assert gathered.try_append("a", 100, lambda result, error: told.append((result, error)))
    assert told == [("100", None)]


def test_a_wrong_number_of_results_fails_every_record():
    with (
        accumulator(lambda key, records, settle: settle(["only one", "too many"])) as gathered,
        pytest.raises(InvariantError, match="1 records were sent, and 2 results"),
    ):
        gathered.append_blocking("a", 100, WAIT_S)


def test_a_second_answer_to_a_batch_changes_nothing():
    def twice(key: str, records: Sequence[int], settle: Settle) -> None:
        settle(["first"])
        settle(["second"])

    with accumulator(twice) as gathered:
        assert gathered.append_blocking("a", 100, WAIT_S) == "first"
        assert gathered.held_bytes == 0


# --- failures
async def test_a_failed_batch_fails_each_of_its_records_with_an_error_of_its_own():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        waiting = [asyncio.ensure_future(gathered.append("a", record)) for record in (60, 40)]
        await asyncio.sleep(0)
        sink.answer(LogUnavailable("away"))
        one, two = await asyncio.gather(*waiting, return_exceptions=True)
        assert (str(one), str(two)) == ("away", "away")
        assert one is not two
        assert gathered.held_bytes == 0


async def test_a_send_that_raises_fails_its_records_and_gives_their_bytes_back():
    def refuse(key: str, records: Sequence[int], settle: Settle) -> None:
        raise LogUnavailable(f"no {key}")

    with accumulator(refuse) as gathered:
        with pytest.raises(LogUnavailable, match="no a"):
            await gathered.append("a", 100)
        assert gathered.held_bytes == 0


def test_an_exception_in_a_callback_harms_nobody_else(caplog: pytest.LogCaptureFixture):
    told: list[str | None] = []

    def fail(result: str | None, error: Exception | None) -> None:
        raise ValueError("of the caller")

    with accumulator(Sink(), size_bytes=50) as gathered:
        gathered.try_append("a", 1, fail)
        gathered.try_append("a", 2, lambda result, _: told.append(result))
        assert told == ["2"]
        assert gathered.held_bytes == 0
    assert "of the caller" in caplog.text


async def test_a_record_that_is_too_large_takes_nothing():
    with accumulator(Sink()) as gathered:
        with pytest.raises(RecordTooLarge):
            await gathered.append("a", 251)
        with pytest.raises(RecordTooLarge):
            gathered.try_append("a", 251, lambda *_: None)
        assert gathered.held_bytes == 0


# --- back-pressure
async def test_callers_wait_while_there_is_no_room_and_go_on_in_order():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        waiting = [asyncio.ensure_future(gathered.append("a", 100)) for _ in range(5)]
        await asyncio.sleep(0)
        assert (len(sink.batches), gathered.held_bytes) == (2, 200)
        assert not gathered.try_append("b", 1, lambda *_: None)
        for _ in range(5):
            sink.answer()
        assert await asyncio.gather(*waiting) == ["100"] * 5


async def test_a_caller_cancelled_while_it_waits_for_room_is_not_written():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        waiting = [asyncio.ensure_future(gathered.append("a", record)) for record in (200, 99, 100)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:2])
        sink.answer()
        sink.answer()
        assert await waiting[2] == "100"
        assert sink.batches == [("a", [200]), ("a", [100])]


async def test_a_caller_cancelled_later_is_written_and_its_bytes_come_back():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        waiting = [asyncio.ensure_future(gathered.append("a", record)) for record in (60, 40)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        sink.answer()
        assert await waiting[1] == "40"
        assert gathered.held_bytes == 0
        assert sink.batches == [("a", [60, 40])]


def test_a_thread_that_finds_no_room_hears_that_nothing_was_written():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered, ThreadPoolExecutor(1) as pool:
        first = pool.submit(gathered.append_blocking, "a", 200, WAIT_S)
        sink.wait_for(1)
        with pytest.raises(LogUnavailable, match="no room, and nothing was written"):
            gathered.append_blocking("a", 100, 0.01)
        sink.answer()
        assert first.result(WAIT_S) == "200"
    assert sink.batches == [("a", [200])]


def test_a_thread_without_an_answer_in_time_is_told_that_it_may_be_written():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        with pytest.raises(LogUnavailable, match="it may be written yet"):
            gathered.append_blocking("a", 100, 0.01)
        assert gathered.held_bytes == 100
        sink.answer()


async def test_a_blocking_call_on_a_loop_is_refused():
    with accumulator(Sink()) as gathered, pytest.raises(InvariantError, match="use append"):
        gathered.append_blocking("a", 1, WAIT_S)


# --- the end
async def test_a_close_sends_what_is_open_and_refuses_who_waits():
    sink = Sink(answers=False)
    with accumulator(sink) as gathered:
        first = asyncio.ensure_future(gathered.append("a", 200))
        second = asyncio.ensure_future(gathered.append("a", 40))
        third = asyncio.ensure_future(gathered.append("b", 100))
        await asyncio.sleep(0)
        gathered.stop()
        assert sink.batches == [("a", [200]), ("a", [40])]
        with pytest.raises(LogUnavailable, match="closed, and the record was not written"):
            await third
        with pytest.raises(LogUnavailable, match="closed"):
            await gathered.append("a", 1)
        sink.answer()
        gathered.abandon()
        assert await first == "200"
        with pytest.raises(LogUnavailable, match="may be written or not"):
            await second


async def test_a_closed_loop_keeps_nobody_else_from_its_result():
    sink = Sink(answers=False)
    with accumulator(sink, size_bytes=50) as gathered:
        gone = await asyncio.to_thread(left_waiting, gathered)
        stays = asyncio.ensure_future(gathered.append("a", 2))
        await asyncio.sleep(0)
        sink.answer()
        assert await stays == "2"
        assert not gone.done()


def left_waiting(gathered: BatchAccumulator[str, int, str]) -> asyncio.Task[str]:
    """A caller whose loop is closed before its result comes."""
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(gathered.append("a", 1))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    return waiting


# --- stress
def test_threads_under_stress_lose_no_record_no_order_and_no_byte():
    how = BatchSettings(batch_max_bytes=64, batch_max_delay_ms=1, total_batch_max_bytes=256)
    threads, each = 8, 400
    answering = ThreadPoolExecutor(3)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    most_held: list[int] = []

    def send(key: str, records: Sequence[int], settle: Settle) -> None:
        seen[key] += records
        most_held.append(gathered.held_bytes)
        failed = len(most_held) % 17 == 0
        outcome: Outcome[str] = LogUnavailable("away") if failed else [str(record) for record in records]
        answering.submit(settle, outcome)

    def work(thread: int) -> int:
        refused = 0
        for number in range(each):
            record = thread * each + number
            try:
                assert gathered.append_blocking("ab"[thread % 2], record, WAIT_S) == str(record)
            except LogUnavailable:
                refused += 1
        return refused

    with accumulator(send, how, size_bytes=13) as gathered, ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(work, range(threads))) > 0
    answering.shutdown()
    assert max(most_held) <= 256
    for at, key in enumerate("ab"):
        wanted = {thread * each + number for thread in range(at, threads, 2) for number in range(each)}
        assert sorted(seen[key]) == sorted(wanted)
        for thread in range(at, threads, 2):
            own = [record for record in seen[key] if record // each == thread]
            assert own == sorted(own)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 120)), max_size=60),
    st.sets(st.integers(0, 59)),
    st.sets(st.integers(0, 30)),
)
@settings(max_examples=50)
def test_whatever_callers_and_batches_do_each_record_has_one_end(added, cancelled, failing):
    async def run() -> None:
        sink = Sink(answers=False)
        with accumulator(sink) as gathered:
            tasks = [asyncio.ensure_future(gathered.append(key, size)) for key, size in added]
            await asyncio.sleep(0)
            for at in cancelled:
                if at < len(tasks):
                    tasks[at].cancel()
            await asyncio.sleep(0)
            gathered.stop()
            answered = 0
            while sink.open:
                sink.answer(LogUnavailable("away") if answered in failing else None)
                answered += 1
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert gathered.held_bytes == 0
        for (_, size), end in zip(added, ends, strict=True):
            assert isinstance(end, LogUnavailable | asyncio.CancelledError) or end == str(size)

    asyncio.run(run())
