"""Which entry counts: the table of `operation_log.py`, row by row; and that every reader agrees."""

from __future__ import annotations

import msgspec
import pytest

from loadmanager.cluster import operation_log
from loadmanager.cluster.operation_log import (
    KEPT_ENTRIES,
    Begun,
    Cancelled,
    Dropped,
    Ended,
    Entry,
    OperationFold,
    OperationState,
    id_of,
)
from statechannel.ports import LogEntry

BEGUN = Begun(entry="a.1", id="x", at_ms=1, principal="ann", action="split_bundle", request="r", broker="b:1#1")
AGAIN = Begun(entry="b.1", id="x", at_ms=2, principal="ann", action="split_bundle", request="r", broker="b:2#1")
CANCELLED = Cancelled(entry="b.2", id="x", at_ms=3, principal="ben")
ENDED = Ended(entry="a.2", id="x", at_ms=4, begun="a.1", status=200, body="{}")
FOREIGN = Ended(entry="b.3", id="x", at_ms=4, begun="b.1", status=200, body="{}")
DROPPED = Dropped(entry="a.3", id="x", begun="a.1")
NOT_MINE = Dropped(entry="b.4", id="x", begun="b.1")

STATES: dict[str, tuple[Entry, ...]] = {
    "unknown": (),
    "running": (BEGUN,),
    "cancelling": (BEGUN, CANCELLED),
    "ended": (BEGUN, ENDED),
}
ENTRIES: dict[str, Entry] = {
    "begun": BEGUN,
    "begun again": AGAIN,
    "cancelled": CANCELLED,
    "ended": ENDED,
    "ended by another": FOREIGN,
    "dropped": DROPPED,
    "dropped by another": NOT_MINE,
}
TABLE: dict[str, dict[str, str]] = {
    "unknown": {"begun": "running"},
    "running": {"cancelled": "cancelling", "ended": "ended", "dropped": "unknown"},
    "cancelling": {"ended": "ended", "dropped": "unknown"},
    "ended": {},
}
"""By state: the entries that count, and the state after them."""

CASES = [
    (state, name, row.get(name))
    for state, row in TABLE.items()
    for name in ENTRIES
    if (name == "begun again") == (state != "unknown") or name not in ("begun", "begun again")
]


def taken(offset: int, value: Entry | bytes, appended_ms: int = 0) -> LogEntry:
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return LogEntry(partition=0, offset=offset, appended_ms=appended_ms, key=b"x", value=raw)


def state_of(fold: OperationFold) -> str:
    found = fold.get("x")
    return "unknown" if found is None else found.state.value


@pytest.mark.parametrize(("state", "entry", "then"), CASES)
def test_the_table_says_what_counts(state: str, entry: str, then: str | None) -> None:
    fold = OperationFold()
    for offset, each in enumerate(STATES[state]):
        fold.apply(taken(offset, each))
    step = fold.apply(taken(9, ENTRIES[entry]))
    assert step is not None
    assert (step.accepted, state_of(fold)) == (then is not None, then or state)


def test_a_second_copy_of_an_entry_changes_nothing() -> None:
    fold = OperationFold()
    for offset, each in enumerate((BEGUN, BEGUN, ENDED, ENDED)):
        fold.apply(taken(offset, each))
    found = fold.get("x")
    assert found is not None
    assert (found.state, found.offset, found.ended, len(fold)) == (OperationState.ENDED, 0, ENDED, 1)


def test_an_operation_is_forgotten_by_the_entries_that_follow_it() -> None:
    fold = OperationFold()
    fold.apply(taken(0, BEGUN))
    fold.apply(taken(1, ENDED))
    fold.apply(taken(KEPT_ENTRIES, b"no entry"))
    assert state_of(fold) == "ended"
    fold.apply(taken(KEPT_ENTRIES + 1, b"no entry"))
    assert (state_of(fold), fold.body_bytes) == ("unknown", 0)
    fold.apply(taken(KEPT_ENTRIES + 2, AGAIN))
    assert state_of(fold) == "running"


def test_no_time_of_the_log_makes_an_operation_forgotten() -> None:
    fold, year_ms = OperationFold(), 365 * 86_400_000
    fold.apply(taken(0, BEGUN, year_ms))
    fold.apply(taken(1, ENDED, year_ms))
    for offset, at_ms in enumerate((10 * year_ms, 0, year_ms), 2):
        step = fold.apply(taken(offset, AGAIN, at_ms))
        assert step is not None
        assert not step.accepted
    assert state_of(fold) == "ended"


def test_a_reader_that_begins_later_agrees_about_what_is_not_forgotten() -> None:
    kept = KEPT_ENTRIES
    entries = [taken(0, BEGUN), taken(1, ENDED), taken(kept + 1, AGAIN), taken(kept + 2, FOREIGN)]
    whole, late = OperationFold(), OperationFold()
    for each in entries:
        whole.apply(each)
    for each in entries[1:]:
        late.apply(each)
    assert whole.get("x") == late.get("x")


def test_a_refused_attempt_keeps_the_operation_known() -> None:
    kept = KEPT_ENTRIES
    attempts = [msgspec.structs.replace(AGAIN, entry=f"c.{n}") for n in range(4)]
    offsets = [2, kept * 2 // 3, kept * 4 // 3, kept * 2]
    whole, late = OperationFold(), OperationFold()
    whole.apply(taken(0, BEGUN))
    whole.apply(taken(1, ENDED))
    for offset, each in zip(offsets, attempts, strict=True):
        for fold in (whole, late):
            step = fold.apply(taken(offset, each))
            assert step is not None
            assert not step.accepted or (fold is late and offset == 2), "only who saw nothing before accepts it"
    whole.apply(taken(kept * 3 + 1, b"no entry"))
    assert state_of(whole) == "unknown"


def test_of_too_many_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_log, "KEPT_AT_MOST", 2)
    fold = OperationFold()
    for offset, name in enumerate("xyzx"):
        fold.apply(taken(offset, msgspec.structs.replace(BEGUN, id=name, entry=f"a.{offset}")))
    fold.apply(taken(9, b"no entry"))
    assert [each.id for each in fold.all()] == ["z", "x"]


def test_bytes_that_are_no_entry_are_passed_over() -> None:
    fold = OperationFold()
    for offset, value in enumerate((b"", b"{", b'{"type":"begun"}', b'{"type":"other","id":"x"}')):
        assert fold.apply(taken(offset, value)) is None
    assert len(fold) == 0


def test_a_key_belongs_to_its_principal() -> None:
    assert id_of("ann", "k") == id_of("ann", "k")
    assert len({id_of("ann", "k"), id_of("ben", "k"), id_of("ann", "l"), id_of("ann\0k", "")}) == 4
