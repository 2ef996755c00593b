"""How much of a group's backlog passes a filter, from records of all its queues."""

from __future__ import annotations

import pytest

from loadmanager.consumers.backlog.figures import GroupBacklog, Offsets
from loadmanager.consumers.backlog.filtering import Filter, FilteredBacklog, Record
from loadmanager.consumers.backlog.sampling import Estimate, Limits, Sample
from loadmanager.errors import Invalid, Unavailable
from statechannel.errors import LogUnavailable
from statechannel.runtime.tasks import at_once
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets


@pytest.fixture
def store() -> MemoryOffsets:
    return MemoryOffsets()


def backlog(*queues: tuple[int, int]) -> GroupBacklog:
    """Consumer offset and end of each."""
    group = GroupBacklog("g")
    for number, (consumer, end) in enumerate(queues):
        group.put("t", number, Offsets(end, consumer))
    return group


def even(record: Record) -> bool:
    return int(record.value or b"1") % 2 == 0


async def test_a_small_backlog_is_counted_exactly(store):
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 10), (5, 5), (3, 8)), "t", even)
    assert found == Estimate(7, 7, 7, Sample(15, 7), exact=True)
    assert sorted(store.places_looked_at) == [("t", 0, 0, 10), ("t", 2, 3, 8)]


async def test_a_large_backlog_is_sampled_all_over(store):
    limits = Limits(scanned=200, matched=1_000)
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 6_000), (0, 4_000)), "t", even, limits=limits)
    assert (found.messages, found.sample, found.exact) == (5_000, Sample(200, 100), False)
    assert found.low < 5_000 < found.high
    assert {number for _, number, _, _ in store.places_looked_at} == {0, 1}
    assert len(store.places_looked_at) == 20


async def test_looking_ends_at_the_limit_of_matches(store):
    limits = Limits(scanned=200, matched=10)
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 50)), "t", even, limits=limits)
    assert (found.sample.matched, found.exact) == (10, False)


async def test_the_last_record_may_reach_a_limit_and_all_is_exact(store):
    limits = Limits(scanned=10, matched=5)
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 10)), "t", lambda _: True, limits=limits)
    assert found.exact is False
    limits = Limits(scanned=10, matched=10)
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 10)), "t", lambda _: True, limits=limits)
    assert (found.messages, found.exact) == (10, True)


async def test_offsets_without_a_record_are_no_backlog(store):
    store.gaps = range(4, 10)
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 10)), "t", even)
    assert found == Estimate(2, 2, 2, Sample(4, 2), exact=True)


async def test_what_was_not_read_in_time_is_estimated(store):
    store.gaps, store.in_time = range(4, 10), False
    found = await FilteredBacklog(store, at_once).estimate(backlog((0, 10)), "t", even)
    assert (found.messages, found.exact) == (5, False)


async def test_nothing_waits_and_nothing_is_read(store):
    found = await FilteredBacklog(store, at_once).estimate(backlog((5, 5)), "t", even)
    assert found == Estimate(0, 0, 0, Sample(0, 0), exact=True)
    assert store.places_looked_at == ()


async def test_limits_and_a_silent_store_are_errors(store):
    with pytest.raises(Invalid, match="from 1 on"):
        await FilteredBacklog(store, at_once).estimate(backlog((0, 5)), "t", even, limits=Limits(0, 5))
    store.failure = LogUnavailable("no answer")
    with pytest.raises(Unavailable, match="no answer"):
        await FilteredBacklog(store, at_once).estimate(backlog((0, 5)), "t", even)


def test_a_filter_wants_all_that_it_says() -> None:
    record = Record("kä".encode(), "an ä".encode(), {"kind": b"refund=1"})
    assert Filter.parse("kä", "kind=refund=1", "ä").passes(record)
    for key, header, contains in (("k", None, None), ("kä", "kind=", None), (None, "x=", None), ("kä", None, "o")):
        assert not Filter.parse(key, header, contains).passes(record)
    assert not Filter.parse(None, None, "a").passes(Record(None, None, {}))
