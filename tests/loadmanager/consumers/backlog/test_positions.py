"""Where a group shall go on: what is written, and which offsets it means."""

from __future__ import annotations

import asyncio

import pytest

from loadmanager.consumers.backlog.positions import Kind, Position, Step, resolve
from loadmanager.errors import Invalid, Unavailable
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets

QUEUES = {"orders": (0, 1)}


@pytest.fixture
def store() -> MemoryOffsets:
    store = MemoryOffsets()
    store.topics["orders"] = [(10, 100), (0, 5)]
    return store


def steps(store: MemoryOffsets, text: str, committed: dict[int, int]) -> dict[int, tuple[int | None, int | None]]:
    found = asyncio.run(resolve(Position.parse(text), store, QUEUES, {"orders": committed}))
    return {number: (step.before, step.after) for (_, number), step in found.items()}


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("earliest", Kind.EARLIEST, 0),
        ("latest", Kind.LATEST, 0),
        ("42", Kind.OFFSET, 42),
        ("+10", Kind.SHIFT, 10),
        ("-10", Kind.SHIFT, -10),
        ("1970-01-01T00:00:01Z", Kind.TIME, 1_000),
        ("1970-01-01T01:00:01.500+01:00", Kind.TIME, 1_500),
    ],
)
def test_what_can_be_written(text: str, kind: Kind, number: int) -> None:
    assert Position.parse(text) == Position(kind, number)


@pytest.mark.parametrize(
    "text", ["", "first", "--1", "1.5", "9" * 20, "2030-01-31T12:00:00", "1969-12-31T00:00Z", "\uff14"]
)
def test_what_is_no_position_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(Invalid, match="write earliest, latest, an offset"):
        Position.parse(text)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("earliest", (10, 0)),
        ("latest", (100, 5)),
        ("50", (50, 5)),
        ("3", (10, 3)),
        ("+2", (22, 5)),
        ("-1000", (10, 0)),
    ],
)
def test_a_position_stays_within_the_queue(store: MemoryOffsets, text: str, after: tuple[int, int]) -> None:
    assert steps(store, text, {0: 20, 1: 4}) == {0: (20, after[0]), 1: (4, after[1])}


def test_a_time_without_a_later_record_is_the_end(store: MemoryOffsets) -> None:
    store.first_since["orders", 0] = 33
    assert steps(store, "2030-01-31T12:00:00Z", {0: 20}) == {0: (20, 33), 1: (None, 5)}


def test_a_shift_leaves_queues_alone_in_which_the_group_has_no_offset(store: MemoryOffsets) -> None:
    assert steps(store, "-5", {0: 20}) == {0: (20, 15), 1: (None, None)}


def test_a_shift_needs_an_offset_somewhere(store: MemoryOffsets) -> None:
    with pytest.raises(Invalid, match="no offset in orders partition 0 and 1 more to count from"):
        steps(store, "+1", {})


def test_a_queue_without_a_leader_changes_nothing(store: MemoryOffsets) -> None:
    store.topics["orders"][1] = (0, None)
    with pytest.raises(Unavailable, match="orders partition 1 has no leader"):
        steps(store, "latest", {0: 20, 1: 4})


def test_steps_are_by_topic_and_queue(store: MemoryOffsets) -> None:
    assert asyncio.run(resolve(Position(Kind.LATEST), store, {"orders": (1,)}, {})) == {("orders", 1): Step(None, 5)}
