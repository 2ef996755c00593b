"""Queues of groups for tests of backlogs: any offsets, and what a group is said to have."""

from __future__ import annotations

from hypothesis import strategies as st

from loadmanager.consumers.backlog.figures import ABSENT, Offsets

NOW_MS = 1_000_000

some_offset = st.integers(-1, 60)
some_time = st.none() | st.just(ABSENT) | st.integers(NOW_MS - 5_000, NOW_MS + 10)
any_offsets = st.builds(
    Offsets,
    end=st.none() | some_offset,
    consumer=st.none() | some_offset,
    pull=st.none() | some_offset,
    begin=st.integers(0, 60),
    consumer_stored_ms=some_time,
    pull_stored_ms=some_time,
)


def queue(begin: int, consumer: int | None, end: int | None, *, pull: int | None = None) -> Offsets:
    """Offsets in the order in which they lie, without times."""
    return Offsets(end, consumer, pull, begin)
